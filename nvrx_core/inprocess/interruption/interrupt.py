"""Interruption of the main thread in the wrapped function: a signal whose handler raises, and atomic sections.

The handler runs in the main thread, so no lock is needed: the monitor thread writes `requested` before it reads
`depth`, the main thread increments `depth` before it reads `requested`, and the GIL makes these sequential. The
exception instance is tracked by a weak reference, from which `policy.py` learns whether it still unwinds, was
swallowed, or was stored.
"""

from __future__ import annotations

import logging
import math
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Set
from contextlib import suppress
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple, NoReturn, Protocol

from nvrx_core.fault.exceptions import chain_contains
from nvrx_core.flow import operation, run
from nvrx_core.inprocess.interruption.async_exception import AsyncException, Withdrawn
from nvrx_core.inprocess.interruption.landing import Landing, drops_exception, is_library, is_safe_line, judge, location
from nvrx_core.inprocess.interruption.next_line import NextLine
from nvrx_core.inprocess.interruption.policy import FireReason, InterruptPolicy, ThreadSample, begin, drive
from nvrx_core.inprocess.interruption.swallowed import CaughtInterruptions, innermost_frames
from nvrx_core.inprocess.interruption.thread_state import SystemCallProbe, handled_exception
from nvrx_core.inprocess.protocol.outcome import LoopShouldEnd, RankShouldRestart
from nvrx_core.process.signal_safe import SignalSafeEvent
from nvrx_core.progress.page import Page, ProgressField

__all__ = ["BlockingCalls", "Delivery", "Interrupt", "Shot"]

log = logging.getLogger("nvrx_core.inprocess")
_RESET: Final = (signal.SIG_DFL, signal.SIG_IGN)
_OTHER_HANDLER: Final = (
    "signal %d was given another handler: blocking calls cannot be interrupted; set Wrapper(interrupt_signal=...)"
)
FRESH: Final = 0.001
"""Seconds for which a probe of the thread is valid."""


class Shot(NamedTuple):
    """What the signal handler is to know of the signal, written before it is sent.

    Attributes:
        raised: how many exceptions the sender has seen raised.
        insists: the exception is raised wherever it lands.
        waits: the thread waits in a system call.
        patient: library code defers it.
    """

    raised: int = 0
    insists: bool = False
    waits: bool = False
    patient: bool = False


class BlockingCalls(Protocol):
    """The calls in which the thread may block where no signal reaches it."""

    def unblock(self) -> int:
        """Shut down what they wait for; return how many connections."""


class Interrupt:
    """The interruption of one thread, the one that creates this object.

    The thread itself runs the handler, arms and leaves; another thread requests the interruption, and delivers it by
    one `Delivery` for each request.

    Args:
        signum: the signal to use; a handler that is already installed for it is chained.
        unwind: seconds that cleanup in the function may take before it is interrupted as well.
        hold: seconds for which anything but an import may defer the interruption in total.
        page: the progress page, on which the monitor process writes that the round is over while no thread of this
            process has noticed it, and the interruption that an import for which it waits goes on; None without one.

    Attributes:
        drop: withdraws an exception that was set and not raised; the function's thread calls it right after `armed`
            has become false, with no other call in between.
    """

    def __init__(self, signum: int, unwind: float, hold: float = 0.0, page: Page | None = None) -> None:
        self.signum, self.unwind, self.hold, self._page = signum, unwind, hold, page
        self.armed = False
        self.depth = 0
        self.raised = self.deferred = self.waited = self.iteration = 0
        self.landing, self.held_at = Landing.SAFE, ""
        self.requested = False
        self.out = SignalSafeEvent()
        self.free = SignalSafeEvent()
        self._unblocking = threading.Lock()
        self.thread = threading.get_ident()
        self.by_signal = threading.current_thread() is threading.main_thread()
        self._make: Callable[[], BaseException] = RankShouldRestart
        self._raised: Callable[[], BaseException | None] = _nothing
        self.shot = Shot()
        self._installed = self._blocked = False
        self._last_frame = self._handler = ""
        self._catching_code: CodeType | None = None
        self._next_line = NextLine(self._at_line)
        self._probe: SystemCallProbe | None = None
        self._previous: Any = None
        self._caught = CaughtInterruptions()
        self._delivery: Delivery | None = None
        self._async = AsyncException(self.thread, self)
        self.drop: Callable[[], Any] = _nothing if self.by_signal else self._async.drop

    def install(self) -> None:
        """Install the signal handler, and unblock the signal in this thread."""
        if not self.by_signal:
            log.warning(
                "the wrapped function does not run in the main thread: blocking calls cannot be interrupted there"
            )
            return
        self._previous = signal.signal(self.signum, self._handle)
        self._blocked = self.signum in signal.pthread_sigmask(signal.SIG_UNBLOCK, [self.signum])
        self._probe = SystemCallProbe(threading.get_native_id())
        self._installed = True

    def uninstall(self, *, may_come: bool = False) -> None:
        """Restore the previous signal handler.

        Args:
            may_come: whether the signal may still be sent: then it is ignored if it had no handler before, because the
                default action would terminate the process.
        """
        if not self._installed:
            return
        self._installed = False
        previous = self._previous if self._previous is not None else signal.SIG_DFL
        signal.signal(self.signum, signal.SIG_IGN if may_come and previous == signal.SIG_DFL else previous)
        if self._blocked:
            signal.pthread_sigmask(signal.SIG_BLOCK, [self.signum])
        if self._probe is not None:
            self._probe.close()

    def disown(self) -> None:
        """Disable interruption in a child of `os.fork`; atomic sections can be entered and left without effect."""
        self.requested = self.armed = False
        self._next_line.cancel()
        self.out, self.free, self._unblocking = SignalSafeEvent(), SignalSafeEvent(), threading.Lock()
        self.thread = threading.get_ident()
        with suppress(Withdrawn):
            self.drop()
        if self.by_signal and signal.getsignal(self.signum) == self._handle:
            self.uninstall()

    def reset(self) -> None:
        """Discard an earlier request; only between rounds."""
        self.requested = self.armed = False
        self.depth = self.raised = self.deferred = self.waited = 0
        self.iteration += 1
        self._raised, self._delivery, self._handler = _nothing, None, ""
        self.shot = Shot(patient=self.shot.patient)
        self._make = RankShouldRestart
        self.out.clear()
        self.free.clear()

    def arm(self) -> None:
        """Allow interruption of the function from here on; an earlier request is raised at once.

        A function that has reset the handlers of all signals has taken the interruption's as well: it is put back.
        """
        self._catching_code = sys._getframe(1).f_code
        if self._installed and signal.getsignal(self.signum) in _RESET:
            signal.signal(self.signum, self._handle)
        self.armed = True
        if self.requested:
            self._raise()

    def leave(self) -> None:
        """Record that the thread has left the function and all its atomic sections.

        What `drive` closes meanwhile is the function's: the thread waits for that before it uses any connection itself.
        """
        self.armed = False
        self._next_line.cancel()
        self.out.set()
        self.free.set()
        with self._unblocking:
            pass

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        page = self._page if self.armed else None
        notified = page is not None and page[ProgressField.ROUND_OVER] == page[ProgressField.ITERATION] + 1
        if notified:
            self.requested = True
        if not self.requested:
            if callable(self._previous):
                self._previous(signum, frame)
        elif self.armed and self.depth == 0 and not self._next_line.busy:  # else: the first signal is being handled
            self._next_line.busy = True
            try:
                self._raise_if_safe(frame, notified)
            finally:
                self._next_line.busy = False

    def import_progressed(self) -> None:
        """Record that an import for which the interruption waits has added modules."""
        if self._page is not None:
            self._page[ProgressField.IMPORTED_AT] = time.monotonic_ns()

    def _raise_if_safe(self, frame: FrameType | None, notified: bool) -> None:
        """Raise the exception if it may land in `frame`, else await the next line at which it may."""
        shot, self.shot = self.shot, self.shot._replace(insists=False, waits=False)
        insist = shot.insists and self.raised == shot.raised  # else a line has raised since
        waits = shot.waits or notified  # a long call counts as a wait: it acquires no lock
        if not insist and self.unwinds():
            return
        verdict = judge(frame, self._catching_code, library=shot.patient)
        if insist or verdict.landing is Landing.SAFE or (verdict.landing is Landing.FRAGILE and waits):
            self._last_frame = location(frame)
            self._raise()
        self.landing, self.held_at = verdict.landing, verdict.location
        self._next_line.await_from(frame, self._catching_code)
        self.deferred, self.waited = self.deferred + 1, self.waited + waits

    def _at_line(self, frame: FrameType, within: Set[int]) -> None:
        """Raise the exception at a line that was awaited, unless it is withdrawn or raised by other means."""
        if not self.armed or self.depth or self.unwinds():
            self._next_line.cancel()
        elif is_safe_line(frame, self._catching_code, within):
            self._last_frame = location(frame)
            self._raise()

    def _raise(self) -> NoReturn:
        self._next_line.cancel()
        self._handler = ""
        error, asyncio = self._make(), sys.modules.get("asyncio")
        runs_loop = asyncio is not None and asyncio._get_running_loop() is not None
        if runs_loop and not isinstance(error, KeyboardInterrupt | SystemExit):
            error = LoopShouldEnd(*error.args)
        self._raised = weakref.ref(error, self._note_handler)
        self.raised += 1
        try:
            raise error
        finally:
            del error

    def _note_handler(self, _: object) -> None:
        """Note the handler that swallows the exception: at its end, the exception is destroyed.

        An exception that was stored is destroyed anywhere, also by a thread that ends, which has no frame.
        """
        if not self.armed or threading.get_ident() != self.thread:
            return
        frame = sys._getframe(1)
        if not is_library(frame) and drops_exception(frame):
            self._handler = f"{frame.f_code.co_filename}:{frame.f_lineno}"

    def unwinds(self) -> bool:
        """Return whether this thread, the function's, unwinds because of the last raised exception."""
        error = self._raised()
        return error is not None and chain_contains(sys.exception(), error)

    def request(self, make: Callable[[], BaseException]) -> None:
        """Request that the function ends with the exception that `make` creates; any thread may call this."""
        self._make = make
        self.requested = True

    def begin(self) -> None:
        """Interrupt after `request`, and repeat while it is deferred; `drive` continues from here."""
        if self.by_signal:
            self._delivery = Delivery(self)
            run(begin(self._delivery.machine, self._delivery, time.monotonic))

    def wait_unmasked(self) -> bool:
        """Wait until no atomic section is open; after `request` none can be entered.

        Returns:
            whether the thread has left the function.
        """
        while self.depth and not self.out.is_set():
            self.free.wait()
            self.free.clear()
        return self.out.is_set()

    def drive(self, blocking: BlockingCalls | None) -> None:
        """Interrupt until the thread has left the function.

        Args:
            blocking: unblocked when the thread does not react to signals; None: nothing is.
        """
        delivery, self._delivery = self._delivery or Delivery(self), None
        delivery.blocking = blocking
        run(drive(delivery.machine, delivery, time.monotonic))
        if self._handler:
            self._caught.ran_on(self._handler)


class Delivery:
    """The delivery of one requested interruption, in the thread that interrupts; the port of its flows.

    Args:
        target: the thread that is interrupted.

    Attributes:
        machine: decides when to fire.
        blocking: the calls that the abort has not ended; None before it.
    """

    def __init__(self, target: Interrupt) -> None:
        self._target = target
        self.machine = InterruptPolicy(target.unwind, target.hold)
        self.blocking: BlockingCalls | None = None
        self._cpu_clock = time.pthread_getcpuclockid(target.thread)
        self._raised = self._deferred = self._modules = 0

    @operation
    def observe(self) -> ThreadSample:
        """Return what is seen of the thread."""
        target = self._target
        if target.deferred > self._deferred and target.landing is Landing.IMPORT:
            before, self._modules = self._modules, len(sys.modules)
            if self._modules > before:
                target.import_progressed()
        self._raised, self._deferred = target.raised, target.deferred
        error = target._raised()
        alive = error is not None and chain_contains(handled_exception(target.thread), error)
        return ThreadSample(
            out=not target.armed, masked=target.depth > 0, raised=self._raised, alive=alive,
            stored=error is not None and not alive, deferred=target.deferred,
            awaited=target._next_line.awaited, landing=target.landing,
            waited=target.waited, ran=time.clock_gettime(self._cpu_clock),
        )  # fmt: skip

    @operation
    def fire(self, why: FireReason) -> None:
        """Interrupt the thread."""
        shot = Shot(self._raised, why.insists, patient=why is not FireReason.DEFERRED)
        if self._target.by_signal:
            self._signal(shot, why)
        else:
            self._set_exception(shot)

    @operation
    def close_blocked(self) -> None:
        """Close what the thread blocks in, unless it has left the function: then it may block in the wrapper's own."""
        with self._target._unblocking:
            if self._target.out.is_set() or self.blocking is None:
                return
            if not self.blocking.unblock() and log.isEnabledFor(logging.DEBUG):
                frames = innermost_frames(self._target.thread)
                log.debug("the function does not react to the interruption:\n%s", frames)

    @operation
    def await_left(self, deadline: float) -> bool:
        """Wait until the thread has left the function, or until the deadline; return whether it has left."""
        seconds = deadline - time.monotonic()
        return self._target.out.wait(max(0.0, seconds) if seconds < math.inf else None)

    @operation
    def await_unmasked(self) -> bool:
        """Wait until no atomic section is open; return whether the thread has left the function."""
        return self._target.wait_unmasked()

    @operation
    def report_stored(self) -> None:
        """The function has caught the interruption and stored it."""
        target = self._target
        target._caught.stored(target._raised(), __file__, target._last_frame)

    @operation
    def report_swallowed(self, count: int) -> None:
        """The function has swallowed that many interruptions."""
        target = self._target
        target._caught.swallowed(count, target._last_frame, target._handler)

    @operation
    def report_deferred(self) -> None:
        """The interruption is deferred for long."""
        log.warning("the interruption was deferred at %s: %s", self._target.held_at, self._target.landing.value)

    def _signal(self, shot: Shot, why: FireReason) -> None:
        target = self._target
        handler = signal.getsignal(target.signum)
        if handler != target._handle and why is FireReason.FIRST:
            log.error(_OTHER_HANDLER, target.signum)
        if handler in _RESET:  # the default action would end the process
            target.drop = target._async.drop
            self._set_exception(shot)
            return
        signal.siginterrupt(target.signum, True)  # else a blocking call that the kernel can restart goes on
        probed = time.monotonic()
        waits = target._probe is not None and target._probe.waits()
        target.shot = shot._replace(waits=waits and time.monotonic() < probed + FRESH)
        with suppress(BlockingIOError):  # more pending signals than `ulimit -i` allows: it is sent again
            signal.pthread_kill(target.thread, target.signum)

    def _set_exception(self, shot: Shot) -> None:
        """Let the interpreter raise the exception in the thread if it may land at the present instruction."""
        target, insists = self._target, shot.insists
        frame = sys._current_frames().get(target.thread)
        at = frame.f_lasti if frame is not None else -1
        verdict = judge(frame, target._catching_code)
        if verdict.landing is Landing.SAFE or insists:
            target._last_frame = verdict.location
            if target._async.set_if(shot.raised, None if insists else frame, at):
                return
        target.landing, target.held_at = verdict.landing, verdict.location
        target.deferred += 1


def _nothing() -> None:
    """Do nothing."""
