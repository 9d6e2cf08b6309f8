"""Faults of this rank's own: an exception as a record, and its frames let go."""

from __future__ import annotations

import os
import socket
import time
import traceback

from nvrx_core.events.log import boot_id
from nvrx_core.inprocess.attribution import Interruption
from nvrx_core.inprocess.fault import Fault

__all__ = ["FaultMaker", "let_go", "origin"]


class FaultMaker:
    """Makes the faults of one rank.

    Args:
        initial_rank: the rank.
    """

    def __init__(self, initial_rank: int) -> None:
        self.initial_rank = initial_rank
        self._host, self._boot_id = socket.gethostname(), boot_id()

    def of(self, error: BaseException, rank: int, struck: float) -> Fault:
        """The fault that `error` is."""
        kind = Interruption.EXCEPTION if isinstance(error, Exception) else Interruption.BASE_EXCEPTION
        name = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
        return Fault(
            initial_rank=self.initial_rank,
            rank=rank,
            interruption=kind.name,
            message=f"{name}: {error}",
            error_type=name,
            origin=origin(error),
            struck=struck,
            announced=time.monotonic(),
            wall=time.time(),
            boot_id=self._boot_id,
            host=self._host,
            pid=os.getpid(),
        )

    def on_my_clock(self, fault: Fault) -> tuple[float, float]:
        """When the fault struck and was announced, in monotonic seconds of this host."""
        if fault.boot_id == self._boot_id:
            return fault.struck, fault.announced
        announced = time.monotonic() - (time.time() - fault.wall)
        return announced - (fault.announced - fault.struck), announced


def origin(error: BaseException) -> str:
    """File and line where the error was raised."""
    frames = traceback.extract_tb(error.__traceback__, limit=-1)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def let_go(error: BaseException | None) -> None:
    """Clear the locals of all frames that the error and its causes hold: they keep process groups alive."""
    seen = set[int]()
    pending = [error]
    while pending:
        found = pending.pop()
        if found is not None and id(found) not in seen:
            seen.add(id(found))
            traceback.clear_frames(found.__traceback__)
            pending += [found.__cause__, found.__context__]
