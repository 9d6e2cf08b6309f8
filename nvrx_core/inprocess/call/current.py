"""The handle of the function that runs in this process, for code that does not get one as an argument.

A child of `os.fork` has a copy of the handle, but no call: a handle is valid only in the process that has set it.

What outlives an iteration, such as a save in the background, asks for the number of interruptions: an iteration is
interrupted unless its call returns with it. Until that is known, it counts as interrupted.
"""

from __future__ import annotations

import os
from typing import Final

__all__ = ["clear", "ended", "held", "hold", "interruptions"]

_held: Final[dict[str, tuple[int, object]]] = {}
_unfinished: Final[list[int]] = []
"""The iteration in which the running call has entered the function last."""
_interrupted: Final[list[int]] = []
"""The iterations that were interrupted, of all calls."""


def hold(handle: object, iteration: int) -> None:
    """Record that the function is about to run with this handle."""
    _end_unfinished()
    _unfinished.append(iteration)
    _held["handle"] = os.getpid(), handle


def held() -> object | None:
    """Return the handle of the running function; None outside of one."""
    pid, handle = _held.get("handle", (0, None))
    return handle if pid == os.getpid() else None


def clear() -> None:
    """Record that the function has returned or raised."""
    _held.clear()


def ended(iteration: int | None) -> None:
    """Record that the call has returned with this iteration, or, by None, that it has raised."""
    if iteration in _unfinished:
        _unfinished.clear()
    _end_unfinished()


def interruptions() -> int:
    """Return how many iterations of wrapped functions were interrupted in this process."""
    return len(_interrupted) + (len(_unfinished) if held() is None else 0)


def _end_unfinished() -> None:
    _interrupted.extend(_unfinished)
    _unfinished.clear()
