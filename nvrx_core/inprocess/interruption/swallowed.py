"""Log lines about an interruption that the function caught: swallowed, or stored for later."""

from __future__ import annotations

import logging
import sys
import traceback
from typing import Final

from nvrx_core.fault.user_frames import is_users
from nvrx_core.process.user_packages import user_packages

__all__ = ["CaughtInterruptions", "innermost_frames"]

log = logging.getLogger("nvrx_core.inprocess")
WARN_AFTER: Final = 3
_INJECTED: Final = "/nvrx_core/testing/"
"""Faults that are injected stand for code of the user's."""
_SWALLOWED_BY: Final = (
    "the interruption of a restart was swallowed at %s, where every BaseException is caught; write `except Exception:` "
    "there, which lets it through; %s"
)


class CaughtInterruptions:
    """The log lines about the interruptions that the function of a call has caught: a warning once for each place.

    What libraries store, as torch does while it creates a process group, is no warning: the user cannot change it.
    """

    def __init__(self) -> None:
        self._warned = set[str]()

    def stored(self, error: BaseException | None, handler: str, last_frame: str) -> None:
        """Log where the exception was caught and stored.

        Args:
            error: the exception; None when it is gone.
            handler: the file of the signal handler that raised it.
            last_frame: where the signal reached the function.
        """
        trace = error.__traceback__ if error is not None else None
        if trace is not None:
            ours = trace.tb_frame.f_code.co_filename == handler
            where = last_frame if ours else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
            log.log(self._level_at(where), "the interruption was caught and stored at %s; raising it again", where)

    def swallowed(self, times: int, last_frame: str, handler: str) -> None:
        """Log that the function has swallowed the exception so many times in this iteration.

        Args:
            times: how often; the third time without a known handler is a warning.
            last_frame: where the signal last reached the function.
            handler: file and line of the user's handler, "" where it is not known.
        """
        if handler:
            log.log(self._level_at(handler), _SWALLOWED_BY, handler, "raising it again")
        elif times == WARN_AFTER:
            text = "the interruption was swallowed %d times, last at %s; raising it again"
            log.log(self._level(last_frame), text, times, last_frame)
        elif times:
            log.debug("the interruption was swallowed at %s", last_frame)

    def ran_on(self, handler: str) -> None:
        """Log that the function has swallowed the exception and run to its end before it was raised again.

        Args:
            handler: file and line of the user's handler.
        """
        log.log(self._level_at(handler), _SWALLOWED_BY, handler, "the function has run on to its end")

    def _level_at(self, place: str) -> int:
        """Return the level of a line about code at this place, which only its author can change."""
        file = place.rpartition(":")[0]
        return self._level(place) if _INJECTED in file or is_users(file, user_packages()) else logging.DEBUG

    def _level(self, place: str) -> int:
        if place in self._warned:
            return logging.DEBUG
        self._warned.add(place)
        return logging.WARNING


def innermost_frames(thread: int) -> str:
    """Return the innermost frames of a thread, for messages about a hang."""
    frame = sys._current_frames().get(thread)
    return "".join(traceback.format_stack(frame)[-3:]) if frame is not None else ""
