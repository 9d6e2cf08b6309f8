"""The cleanup at the end of a call, and what a child of `os.fork` does instead."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from nvrx_core.process.forks import keep_for_good

__all__ = ["CleanupStack"]


class CleanupStack(ExitStack):
    """Undoes a call in reverse when it ends; a child of `os.fork` disowns what the call holds, and undoes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._child = ExitStack()

    def in_child(self, disown: Callable[[], object]) -> None:
        """Register what a child of `os.fork` calls."""
        self._child.callback(disown)

    def disown(self) -> None:
        """Disown all that the call holds, in such a child; what is not disowned is kept alive and not used again."""
        keep_for_good(self.pop_all())
        self._child.close()
