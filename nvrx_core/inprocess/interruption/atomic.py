"""Sections of the wrapped function that no restart interrupts."""

from __future__ import annotations

import threading
from types import TracebackType

from nvrx_core import failpoint
from nvrx_core.inprocess.interruption.interrupt import Interrupt

__all__ = ["Atomic", "new_atomic"]


class Atomic:
    """A section that is never interrupted; sections nest.

    A request that arrives meanwhile is raised when the outermost section is left; one that arrived before is raised
    before the section is entered, unless its exception unwinds already. A section that the function has left open, in a
    generator that is suspended, ends with the iteration.
    """

    __slots__ = ("_interrupt", "_iteration")

    def __init__(self, interrupt: Interrupt) -> None:
        self._interrupt = interrupt
        self._iteration = interrupt.iteration

    @property
    def is_open(self) -> bool:
        """Whether a section is open now."""
        return self._interrupt.depth > 0

    def __enter__(self) -> None:
        interrupt = self._interrupt
        if threading.get_ident() != interrupt.thread:
            raise RuntimeError("atomic() belongs to the thread that runs the wrapped function; enter it there")
        interrupt.depth += 1
        self._iteration = interrupt.iteration
        if interrupt.requested and interrupt.depth == 1 and interrupt.armed:
            interrupt.depth = 0  # first: an exception that was asked for may be raised at any of these calls
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
    """An atomic section with its failpoints, both passed while it is open."""

    __slots__ = ("_number",)

    def __init__(self, interrupt: Interrupt, iteration: int) -> None:
        super().__init__(interrupt)
        self._number = iteration

    def __enter__(self) -> None:
        super().__enter__()
        try:
            failpoint.hit("atomic-enter", self._number)
        except BaseException as error:  # boundary: what the hook raises closes the section
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
    """The sections of one iteration; a section knows failpoints only if a hook was there before the iteration."""
    return _ObservedAtomic(interrupt, iteration) if failpoint.installed() else Atomic(interrupt)
