"""Getting the main thread out of the wrapped function: a signal whose handler raises, and sections that hold it off.

The handler runs in the main thread, so nothing here needs a lock: the monitor thread writes `requested` before it reads
`depth`, the main thread raises `depth` before it reads `requested`, and under the interpreter's lock these are
sequential. The exception instance is tracked by a weak reference, which is how `nvrx_core.inprocess.interruption` knows
whether it still unwinds
or was swallowed.
"""

from __future__ import annotations

import ctypes
import logging
import math
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Final

from nvrx_core import failpoint
from nvrx_core.inprocess.interruption import Fire, InterruptionMachine, Seen, Unblock, Why

__all__ = ["Atomic", "Interrupt", "RankShouldRestart", "new_atomic"]

log = logging.getLogger("nvrx_core.inprocess")
NAME_SWALLOWER_AFTER: Final = 3


class RankShouldRestart(BaseException):
    """Raised inside the wrapped function when the round ends; it must reach the wrapper."""


class Interrupt:
    """Interrupts one thread, the one that made this object.

    Args:
        signum: the signal to use; a handler that is already installed for it is chained.
        unwind: seconds that cleanup in the function may take before it is interrupted as well.
    """

    def __init__(self, signum: int, unwind: float) -> None:
        self.signum, self.unwind = signum, unwind
        self.armed = False
        self.depth = 0
        self.raised = 0
        self.requested = False
        self.out = threading.Event()
        self.free = threading.Event()
        self.thread = threading.get_ident()
        self.by_signal = threading.current_thread() is threading.main_thread()
        self._make: Callable[[], BaseException] = RankShouldRestart
        self._reference: weakref.ref[BaseException] | None = None
        self._insist = False
        self._last_frame = ""
        self._previous: Any = None

    def install(self) -> None:
        """Take over the signal."""
        if not self.by_signal:
            log.warning(
                "the wrapped function does not run in the main thread: calls that block cannot be interrupted there"
            )
            return
        self._previous = signal.signal(self.signum, self._handle)

    def uninstall(self) -> None:
        """Give the signal back to its former handler."""
        if self.by_signal:
            signal.signal(self.signum, self._previous if self._previous is not None else signal.SIG_DFL)

    def disown(self) -> None:
        """In a child of `os.fork`: nothing interrupts it; sections may be left and entered, and hold nothing off."""
        self.requested = self.armed = False
        self.out, self.free = threading.Event(), threading.Event()
        self.thread = threading.get_ident()
        if self.by_signal and signal.getsignal(self.signum) == self._handle:
            self.uninstall()

    def reset(self) -> None:
        """Forget an earlier request; only between rounds."""
        self.requested = self.armed = False
        self.depth = self.raised = 0
        self._reference = None
        self._make = RankShouldRestart
        self.out.clear()
        self.free.clear()

    def arm(self) -> None:
        """Let the function be interrupted from here on; a request made before is raised at once."""
        self.armed = True
        if self.requested:
            self._raise()

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if not self.requested:
            if callable(self._previous):
                self._previous(signum, frame)
        elif self.armed and self.depth == 0 and (self._insist or not self.alive):
            self._insist = False
            self._last_frame = _place(frame)
            self._raise()

    def _raise(self) -> None:
        error = self._make()
        self._reference = weakref.ref(error)
        self.raised += 1
        try:
            raise error
        finally:
            del error

    @property
    def alive(self) -> bool:
        """The exception raised last still exists: it is unwinding."""
        return self._reference is not None and self._reference() is not None

    def request(self, make: Callable[[], BaseException]) -> None:
        """Ask the function to end, by the exception that `make` makes; any thread may call this."""
        self._make = make
        self.requested = True

    def fire(self) -> None:
        """Send the signal once, after `request`: a busy function ends before the abort competes with it for the GIL."""
        if self.by_signal and self.armed:
            signal.pthread_kill(self.thread, self.signum)

    def wait_unmasked(self) -> None:
        """Wait until no atomic section is open; after `request` none is entered any more."""
        while self.depth and not self.out.is_set():
            self.free.wait()
            self.free.clear()

    def drive(self, unblock: Callable[[], None]) -> None:
        """Interrupt until the thread is out of the function; returns then.

        Args:
            unblock: called when no signal reaches the thread, to close what it waits in.
        """
        machine = InterruptionMachine(self.unwind)
        while not self.out.is_set():
            if not self.armed:
                self.out.wait()
                return
            seen = Seen(out=False, masked=self.depth > 0, raised=self.raised, alive=self.alive)
            for action in machine.tick(seen, now=time.monotonic()):
                self._perform(action, unblock)
            self._name_swallower(machine.swallowed)
            if seen.masked:
                self.wait_unmasked()
            elif machine.deadline < math.inf:
                self.out.wait(max(0.0, machine.deadline - time.monotonic()))

    def _perform(self, action: Fire | Unblock, unblock: Callable[[], None]) -> None:
        if isinstance(action, Unblock):
            unblock()
        elif not self.by_signal:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread), ctypes.py_object(RankShouldRestart))
        else:
            if signal.getsignal(self.signum) != self._handle:
                log.error(
                    "signal %d was given another handler: no interruption possible; set Wrapper(interrupt_signal=...)",
                    self.signum,
                )
            self._insist = action.why is Why.STUCK
            signal.pthread_kill(self.thread, self.signum)

    def _name_swallower(self, swallowed: int) -> None:
        if swallowed == NAME_SWALLOWER_AFTER:
            log.warning(
                "the interruption was swallowed %d times, last at %s; raising it again", swallowed, self._last_frame
            )
        elif swallowed:
            log.debug("the interruption was swallowed at %s", self._last_frame)

    def stack(self) -> str:
        """Where the thread is now, for messages about a hang."""
        frame = sys._current_frames().get(self.thread)
        return "".join(traceback.format_stack(frame)[-3:]) if frame is not None else ""


class Atomic:
    """A section that is never interrupted; sections nest.

    A request that arrives meanwhile is raised when the outermost section is left; one that arrived before is raised
    before the section is entered.
    """

    __slots__ = ("_interrupt",)

    def __init__(self, interrupt: Interrupt) -> None:
        self._interrupt = interrupt

    @property
    def is_open(self) -> bool:
        """Whether a section is open now."""
        return self._interrupt.depth > 0

    def __enter__(self) -> None:
        interrupt = self._interrupt
        if threading.get_ident() != interrupt.thread:
            raise RuntimeError("atomic() belongs to the thread that runs the wrapped function; enter it there")
        interrupt.depth += 1
        if interrupt.requested and interrupt.depth == 1 and interrupt.armed:
            interrupt.depth = 0
            interrupt.free.set()
            interrupt._raise()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        interrupt = self._interrupt
        interrupt.depth -= 1
        if interrupt.requested and interrupt.depth == 0:
            interrupt.free.set()
            if interrupt.armed and not interrupt.alive:
                interrupt._raise()


class _ObservedAtomic(Atomic):
    """An atomic section with its failpoints, both passed while it is open."""

    __slots__ = ("_iteration",)

    def __init__(self, interrupt: Interrupt, iteration: int) -> None:
        super().__init__(interrupt)
        self._iteration = iteration

    def __enter__(self) -> None:
        super().__enter__()
        try:
            failpoint.hit("atomic-enter", self._iteration)
        except BaseException as error:  # boundary: what the hook raises closes the section
            super().__exit__(type(error), error, error.__traceback__)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            failpoint.hit("atomic-exit", self._iteration)
        finally:
            super().__exit__(kind, error, trace)


def new_atomic(interrupt: Interrupt, iteration: int) -> Atomic:
    """The sections of one iteration; a section knows failpoints only if a hook was there before the iteration."""
    return _ObservedAtomic(interrupt, iteration) if failpoint.installed() else Atomic(interrupt)


def _place(frame: FrameType | None) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "unknown"
