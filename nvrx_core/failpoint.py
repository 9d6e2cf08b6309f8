"""Named points where a test may let something happen: a kill, a delay, an exception.

While no hook is installed a point costs one look at a module variable; the two of an atomic section cost nothing. A
child of fork has its parent's hook. The points that begin with `monitor-` are passed by a rank's monitor process, all
others by the rank: `abort-before`, `abort-during` and `decision-after` in its monitor thread, the rest in the thread
that made the call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

__all__ = ["NAMES", "Hook", "clear", "hit", "install", "installed"]

NAMES: Final = (
    "store-connect",  # before the first connection to the control store
    "barrier-before",  # before the rank arrives in the barrier at the end of an iteration, or before the first one
    "decision-after",  # the decision of the barrier is known to the rank
    "entry-before",  # before the function is entered
    "init-pg-before",  # a process group is about to be created
    "init-pg-after",  # it was created
    "atomic-enter",  # an atomic section is open
    "atomic-exit",  # it is about to be closed
    "abort-before",  # before the user's abort
    "abort-during",  # in `AbortTorchDistributed`, before anything is cut
    "monitor-ready",  # a monitor process has begun, and has not said so yet
    "monitor-reattach",  # the replacement of a monitor process has reached the store, and has done nothing there yet
)
"""The points, in the order of a rank's life."""

Hook = Callable[[str, int], None]
"""Called with the name of the point and the iteration it is passed in; -1 before the first one."""

_hook: Hook | None = None


def hit(name: str, iteration: int) -> None:
    """Call the hook, if there is one; what it raises goes to the caller.

    Raises:
        ValueError: when a hook is installed and `name` is none of `NAMES`.
    """
    hook = _hook
    if hook is not None:
        if name not in NAMES:
            raise ValueError(f"no failpoint {name!r}; the failpoints are {', '.join(NAMES)}")
        hook(name, iteration)


def install(hook: Hook) -> None:
    """Call `hook` at every point from now on, in place of the one before."""
    global _hook  # noqa: PLW0603 (a hit must cost no more than this look-up)
    _hook = hook


def installed() -> bool:
    """Whether there is a hook."""
    return _hook is not None


def clear() -> None:
    """Switch all points off."""
    global _hook  # noqa: PLW0603
    _hook = None
