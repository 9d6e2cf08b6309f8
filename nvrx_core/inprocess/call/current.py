"""The one wrapped call of this process, and the handle of its function for code that gets none as an argument.

A child of `os.fork` has a copy of the handle, but no call: a handle is valid only in the process that has set it.

What outlives an iteration, such as a save in the background, asks for the number of interruptions: an iteration is
interrupted unless its call returns with it. Until that is known, it counts as interrupted.
"""

from __future__ import annotations

import os
import threading
from typing import Final

from nvrx_core.errors import RestartAbort

__all__ = ["OneCall", "clear", "ended", "held", "hold", "interruptions"]


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


Holder = tuple[int, int]
"""The process and the thread that run a wrapped function."""
_running: Final[dict[str, Holder]] = {}


class OneCall:
    """A context that reserves the process for one call.

    It is not a generator: `contextlib` assigns the traceback of an exception, which a frozen dataclass refuses.
    """

    def __enter__(self) -> None:
        """Reserve the process.

        Raises:
            RestartAbort: when a call is in progress in this process, or in the one that it was forked from.
        """
        mine = os.getpid(), threading.get_ident()
        holder = _running.setdefault("call", mine)  # atomic: two threads may come at once
        if holder is not mine:
            raise _refusal(holder, mine)

    def __exit__(self, *error: object) -> None:
        _running.pop("call", None)


def _refusal(holder: Holder, mine: Holder) -> RestartAbort:
    if holder[0] != mine[0]:
        return RestartAbort(
            f"a wrapped function was called in process {mine[0]}, a child of the rank in process {holder[0]}, which "
            "runs one",
            advice="call it in the rank only; a child that is to be a rank is started anew, with a RANK of its own",
        )
    if holder[1] != mine[1]:
        return RestartAbort(
            "a wrapped function was called in a second thread while another thread runs one",
            advice="call one after the other: a process is one rank, and runs one wrapped function at a time",
        )
    return RestartAbort(
        "a wrapped function was called inside another wrapped function",
        advice="wrap the outer function only; its restarts cover what it calls",
    )
