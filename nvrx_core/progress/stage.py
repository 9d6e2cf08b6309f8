"""The stages of a rank's main thread. Pure."""

from __future__ import annotations

import enum

__all__ = ["Stage"]


class Stage(enum.IntEnum):
    """The stage of the main thread."""

    OUTSIDE = 0
    STARTING = 1  # assignment, initialize, first health check
    RUNNING = 2  # inside the wrapped function
    WAITING = 3  # in a barrier, or as a reserve: waits for others, cannot hang by itself
    UNWINDING = 4  # out of the function after a fault: abort, finalize, health check
    ARRIVED = 5  # in the iteration barrier
    LEFT = 6  # its last word to the others is said
    EXITED_ABNORMALLY = 7  # it has left without a word; its monitor process speaks for it
