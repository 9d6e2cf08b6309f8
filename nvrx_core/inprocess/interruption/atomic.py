"""Atomic sections: parts of the wrapped function that no restart interrupts."""

from __future__ import annotations

import threading
from types import TracebackType

from nvrx_core import failpoint
from nvrx_core.inprocess.interruption.interrupt import FunctionThread

__all__ = ["Atomic", "new_atomic"]


class Atomic:
    """A section that is never interrupted; sections can be nested.

    A request that arrives inside the section is raised when the outermost section is left. One that arrived earlier is
    raised before the section is entered, unless its exception already unwinds. A section left open in a suspended
    generator ends with the iteration.
    """

    __slots__ = ("_iteration", "_thread")

    def __init__(self, thread: FunctionThread) -> None:
        self._thread = thread
        self._iteration = thread.iteration

    @property
    def is_open(self) -> bool:
        """Whether a section is open."""
        return self._thread.depth > 0

    def __enter__(self) -> None:
        thread = self._thread
        if threading.get_ident() != thread.ident:
            raise RuntimeError("atomic() belongs to the thread that runs the wrapped function; enter it there")
        thread.depth += 1
        self._iteration = thread.iteration
        if thread.requested and thread.depth == 1 and thread.armed:
            thread.depth = 0  # first: a requested exception may be raised at any of these calls
            if not thread.unwinds():
                thread.free.set()
                thread.raise_requested()
            thread.depth = 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        thread = self._thread
        if self._iteration != thread.iteration:
            return
        thread.depth -= 1
        if thread.requested and thread.depth == 0:
            thread.free.set()
            if thread.armed and not thread.unwinds():
                thread.raise_requested()


class _ObservedAtomic(Atomic):
    """An atomic section with failpoints, which are hit while it is open."""

    __slots__ = ("_number",)

    def __init__(self, thread: FunctionThread, iteration: int) -> None:
        super().__init__(thread)
        self._number = iteration

    def __enter__(self) -> None:
        super().__enter__()
        try:
            failpoint.hit("atomic-enter", self._number)
        except BaseException as error:  # boundary: an exception of the hook closes the section
            super().__exit__(type(error), error, error.__traceback__)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            failpoint.hit("atomic-exit", self._number)
        finally:
            super().__exit__(kind, error, trace)


def new_atomic(thread: FunctionThread, iteration: int) -> Atomic:
    """Return the atomic section of one iteration; it has failpoints only if a hook is installed by then."""
    return _ObservedAtomic(thread, iteration) if failpoint.installed() else Atomic(thread)
