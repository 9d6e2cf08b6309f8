"""Conversion of an exception to a fault record, and the release of its frames.

The exception is the user's: its `__str__` may raise. The record is created before the fault is announced, so this must
not read a source file, which may be on a file system that no longer responds.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace

from nvrx_core.events.log import boot_id
from nvrx_core.fault.attribution import Interruption
from nvrx_core.fault.exceptions import exit_code, related, set_traceback, text_of, type_name
from nvrx_core.fault.record import LATE_COMPLETION, OUT_OF_MEMORY, FaultRecord
from nvrx_core.fault.user_frames import origin, raised_at
from nvrx_core.process.garbage import watch_frames
from nvrx_core.process.user_packages import user_packages
from nvrx_core.rank_assignment.identity import InitialRank

__all__ = ["FaultMaker", "clear_frames", "of_function", "release_frames"]


class FaultMaker:
    """Creates the fault records of one rank.

    Args:
        initial_rank: the rank.
    """

    def __init__(self, initial_rank: InitialRank) -> None:
        self.initial_rank = initial_rank
        self._host, self._boot_id = socket.gethostname(), boot_id()

    def of(self, error: BaseException, rank: int, occurred: float) -> FaultRecord:
        """Return the fault record of `error`."""
        kind = Interruption.EXCEPTION if isinstance(error, Exception) else Interruption.BASE_EXCEPTION
        name = type_name(type(error))
        fault = self._fault(kind, text_of(error), name, rank=rank, occurred=occurred)
        trace = error.__traceback__
        fault = replace(
            fault, origin=origin(trace, user_packages()), raised_at=raised_at(trace), exit_code=exit_code(error)
        )
        return replace(fault, category=OUT_OF_MEMORY) if _is_out_of_memory(error) else fault

    def late_completion(self, reason: str, rank: int, now: float) -> FaultRecord:
        """Return the fault record for ranks that have not completed in time."""
        return self._fault(Interruption.EXCEPTION, reason, LATE_COMPLETION, rank=rank, occurred=now)

    def _fault(self, kind: Interruption, message: str, error_type: str, *, rank: int, occurred: float) -> FaultRecord:
        return FaultRecord(
            initial_rank=self.initial_rank,
            rank=rank,
            interruption=kind.name,
            message=message,
            error_type=error_type,
            occurred=occurred,
            announced=time.monotonic(),
            wall=time.time(),
            boot_id=self._boot_id,
            host=self._host,
            pid=os.getpid(),
        )

    def on_my_clock(self, fault: FaultRecord) -> tuple[float, float]:
        """Return when the fault occurred and was announced, in monotonic seconds of this host."""
        if fault.boot_id == self._boot_id:
            return fault.occurred, fault.announced
        announced = time.monotonic() - (time.time() - fault.wall)
        return announced - (fault.announced - fault.occurred), announced


def _is_out_of_memory(error: BaseException) -> bool:
    """Python's, the kernel's, torch's of the GPU, known by its name, or of the CPU, known by its text."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    of_the_gpu = any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__)
    return of_the_gpu or "can't allocate memory" in text_of(error)


def of_function(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error that ended the function, and what is chained to it, but not what the function's caller handles.

    Called in the main thread, outside of every `except` of this package.
    """
    return related(error, sys.exception())


def clear_frames(error: BaseException | None) -> None:
    """Clear the locals of all frames that the error and its causes hold: they keep process groups alive."""
    for each in of_function(error):
        watch_frames(each.__traceback__)
        traceback.clear_frames(each.__traceback__)


def release_frames(error: BaseException | None) -> None:
    """Release the frames as well: that of a module keeps all of the module's names, and cannot be cleared."""
    for each in of_function(error):
        traceback.clear_frames(each.__traceback__)
        set_traceback(each, None)
