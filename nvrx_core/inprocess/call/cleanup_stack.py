"""The cleanup at the end of a call, and what a child of `os.fork` does instead."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from nvrx_core.process.forks import keep_for_good

__all__ = ["CleanupStack"]


class CleanupStack(ExitStack):
    """Releases the resources of a call in reverse order; a child of `os.fork` disowns them, and releases nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._child = ExitStack()

    def in_child(self, disown: Callable[[], object]) -> None:
        """Register a function that a child of `os.fork` calls."""
        self._child.callback(disown)

    def disown(self) -> None:
        """Disown all resources of the call, in such a child; others are kept alive and not used again."""
        keep_for_good(self.pop_all())
        self._child.close()
