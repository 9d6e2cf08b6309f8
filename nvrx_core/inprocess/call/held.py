"""What undoes a call: in reverse when it ends, and otherwise in a child of `os.fork`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from nvrx_core.process.forks import keep_for_good

__all__ = ["Held"]


class Held(ExitStack):
    """What undoes a call when it ends; a child of `os.fork` disowns it instead."""

    def __init__(self) -> None:
        super().__init__()
        self._in_child = ExitStack()

    def disown_by(self, disown: Callable[[], object]) -> None:
        """Have a child of `os.fork` call this."""
        self._in_child.callback(disown)

    def disown(self) -> None:
        """In such a child: nothing is undone, and all of it stays as it is, out of use."""
        keep_for_good(self.pop_all())
        self._in_child.close()
