"""Named points where a test may let something happen: a kill, a delay, an exception.

While no hook is installed a point costs one look at a module variable. A child of fork has its parent's hook.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

__all__ = ["NAMES", "clear", "hit", "install"]

NAMES: Final = (
    "store-connect", "init-pg-before", "init-pg-after", "atomic-enter", "atomic-exit", "abort-before",
    "abort-during", "barrier-before", "decision-after", "entry-before", "monitor-ready", "monitor-reattach",
)  # fmt: skip
"""The points."""

_hook: Callable[[str], None] | None = None


def hit(name: str) -> None:
    """Call the hook, if there is one, with the name of the point; what it raises goes to the caller.

    Raises:
        ValueError: when a hook is installed and `name` is none of `NAMES`.
    """
    hook = _hook
    if hook is not None:
        if name not in NAMES:
            raise ValueError(f"no failpoint {name!r}; the failpoints are {', '.join(NAMES)}")
        hook(name)


def install(hook: Callable[[str], None]) -> None:
    """Call `hook` at every point from now on, in place of the one before."""
    global _hook  # noqa: PLW0603 (a hit must cost no more than this look-up)
    _hook = hook


def clear() -> None:
    """Switch all points off."""
    global _hook  # noqa: PLW0603
    _hook = None
