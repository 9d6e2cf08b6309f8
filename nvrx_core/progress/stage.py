"""The stages of a rank's main thread. Pure."""

from __future__ import annotations

import enum

__all__ = ["Stage"]


class Stage(enum.IntEnum):
    """The stage of the main thread."""

    OUTSIDE = 0
    STARTING = 1  # assignment, initialize, first health check
    RUNNING = 2  # inside the wrapped function
    WAITING = 3  # for a rendezvous, a completion or a pause, or as a reserve: it cannot hang by itself
    UNWINDING = 4  # out of the function: abort, finalize, health check
    ARRIVED = 5  # in the iteration barrier
    LEFT = 6  # it leaves, and has told the others so
    EXITED_ABNORMALLY = 7  # it has left and told nobody; its monitor process reports that
