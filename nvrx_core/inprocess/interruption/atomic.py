"""Atomic sections: parts of the wrapped function that no restart interrupts."""

from __future__ import annotations

import threading
from types import TracebackType

from nvrx_core import failpoint
from nvrx_core.inprocess.interruption.interrupt import Interrupt

__all__ = ["Atomic", "new_atomic"]


class Atomic:
    """A section that is never interrupted; sections can be nested.

    A request that arrives inside the section is raised when the outermost section is left. One that arrived earlier is
    raised before the section is entered, unless its exception already unwinds. A section left open in a suspended
    generator ends with the iteration.
    """

    __slots__ = ("_interrupt", "_iteration")

    def __init__(self, interrupt: Interrupt) -> None:
        self._interrupt = interrupt
        self._iteration = interrupt.iteration

    @property
    def is_open(self) -> bool:
        """Whether a section is open."""
        return self._interrupt.depth > 0

    def __enter__(self) -> None:
        interrupt = self._interrupt
        if threading.get_ident() != interrupt.thread:
            raise RuntimeError("atomic() belongs to the thread that runs the wrapped function; enter it there")
        interrupt.depth += 1
        self._iteration = interrupt.iteration
        if interrupt.requested and interrupt.depth == 1 and interrupt.armed:
            interrupt.depth = 0  # first: a requested exception may be raised at any of these calls
            if not interrupt.unwinds():
                interrupt.free.set()
                interrupt._raise()
            interrupt.depth = 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        interrupt = self._interrupt
        if self._iteration != interrupt.iteration:
            return
        interrupt.depth -= 1
        if interrupt.requested and interrupt.depth == 0:
            interrupt.free.set()
            if interrupt.armed and not interrupt.unwinds():
                interrupt._raise()


class _ObservedAtomic(Atomic):
    """An atomic section with failpoints, which are hit while it is open."""

    __slots__ = ("_number",)

    def __init__(self, interrupt: Interrupt, iteration: int) -> None:
        super().__init__(interrupt)
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


def new_atomic(interrupt: Interrupt, iteration: int) -> Atomic:
    """Return the atomic section of one iteration; it has failpoints only if a hook is installed by then."""
    return _ObservedAtomic(interrupt, iteration) if failpoint.installed() else Atomic(interrupt)
