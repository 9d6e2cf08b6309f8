"""Log lines about an interruption that the function caught: swallowed, or stored for later."""

from __future__ import annotations

import logging
import sys
import traceback
from typing import Final

__all__ = ["innermost_frames", "report_stored", "report_swallowed"]

log = logging.getLogger("nvrx_core.inprocess")
WARN_AFTER: Final = 3


def report_stored(error: BaseException | None, handler: str, last_frame: str) -> None:
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
        log.warning("the interruption was caught and stored at %s; raising it again", where)


def report_swallowed(times: int, last_frame: str) -> None:
    """Log that the function has swallowed the exception so many times, last when the signal reached `last_frame`."""
    if times == WARN_AFTER:
        log.warning("the interruption was swallowed %d times, last at %s; raising it again", times, last_frame)
    elif times:
        log.debug("the interruption was swallowed at %s", last_frame)


def innermost_frames(thread: int) -> str:
    """Return the innermost frames of a thread, for messages about a hang."""
    frame = sys._current_frames().get(thread)
    return "".join(traceback.format_stack(frame)[-3:]) if frame is not None else ""
