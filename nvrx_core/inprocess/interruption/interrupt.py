"""Interruption of the thread that runs the wrapped function: a signal whose handler raises, and atomic sections.

Two parts, by the thread that runs them. `Interrupter` is called by other threads: it requests the interruption, and
carries out what `policy.py` decides, in one `Delivery` for each request. `FunctionThread` is the function's: the way
into and out of the function, and the signal handler, which raises, or awaits a line at which it may.

The handler runs in the function's thread, so no lock is needed: another thread writes `requested` before it reads
`depth`, the function's increments `depth` before it reads `requested`, and the GIL makes these sequential. The
exception instance is tracked by a weak reference, from which the policy learns whether it still unwinds, was
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
from nvrx_core.inprocess.interruption.landing import (
    Judged,
    Landing,
    drops_exception,
    is_library,
    is_safe_line,
    judge,
    location,
)
from nvrx_core.inprocess.interruption.next_line import NextLine
from nvrx_core.inprocess.interruption.policy import FireReason, InterruptPolicy, ThreadSample, begin, drive
from nvrx_core.inprocess.interruption.swallowed import CaughtInterruptions, innermost_frames
from nvrx_core.inprocess.interruption.thread_state import SystemCallProbe, handled_exception
from nvrx_core.inprocess.protocol.outcome import LoopShouldEnd, RankShouldRestart
from nvrx_core.process.signal_safe import SignalSafeEvent
from nvrx_core.progress.page import Page, ProgressField

__all__ = ["BlockingCalls", "Delivery", "FunctionThread", "Interrupter", "Shot"]

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


class Interrupter:
    """The interruption of the function's thread, by any other thread.

    It writes of the thread only what `FunctionThread` says.

    Args:
        thread: the thread to interrupt.
        unwind: seconds that cleanup in the function may take before it is interrupted as well.
        hold: seconds for which anything but an import may defer the interruption in total.

    Attributes:
        thread, unwind, hold: as given.
    """

    def __init__(self, thread: FunctionThread, unwind: float, hold: float = 0.0) -> None:
        self.thread, self.unwind, self.hold = thread, unwind, hold
        self._exception = AsyncException(thread.ident, thread)
        if not thread.by_signal:
            thread.drop = self._exception.drop
        self._caught = CaughtInterruptions()
        self._begun: Delivery | None = None

    def request(self, make: Callable[[], BaseException]) -> None:
        """Request that the function ends with the exception that `make` creates."""
        self.thread.make = make
        self.thread.requested = True

    def begin(self) -> None:
        """Interrupt after `request`, and repeat while it is deferred; `drive` continues from here."""
        if self.thread.by_signal:
            delivery = self.new_delivery()
            run(begin(delivery.machine, delivery, time.monotonic))
            self._begun = delivery

    def wait_unmasked(self) -> bool:
        """Wait until no atomic section is open; after `request` none can be entered.

        Returns:
            whether the thread has left the function.
        """
        return self.thread.wait_unmasked()

    def drive(self, blocking: BlockingCalls | None) -> None:
        """Interrupt until the thread has left the function.

        Args:
            blocking: unblocked when the thread does not react to signals; None: nothing is.
        """
        delivery, self._begun = self._begun or self.new_delivery(), None
        delivery.blocking = blocking
        run(drive(delivery.machine, delivery, time.monotonic))
        if self.thread.swallowed_at:
            self._caught.ran_on(self.thread.swallowed_at)

    def new_delivery(self) -> Delivery:
        """Return the delivery of a request; only one thread at a time may use it."""
        machine = InterruptPolicy(self.unwind, self.hold)
        return Delivery(self.thread, machine, exception=self._exception, caught=self._caught)

    def reset(self) -> None:
        """Discard an earlier request; only between rounds, while the thread is outside of the function."""
        self._begun = None
        self.thread.reset()

    def stop(self) -> None:
        """End the waits of the threads that interrupt."""
        self.thread.out.set()
        self.thread.free.set()


class Delivery:
    """The delivery of one requested interruption, in the thread that interrupts; the port of its flows.

    Args:
        thread: the thread that is interrupted.
        machine: decides when to fire.
        exception: the one to set where no signal handler runs.
        caught: the log lines about interruptions that the function has caught.

    Attributes:
        machine: as given.
        blocking: the calls that the abort has not ended; None before it.
    """

    def __init__(
        self,
        thread: FunctionThread,
        machine: InterruptPolicy,
        *,
        exception: AsyncException,
        caught: CaughtInterruptions,
    ) -> None:
        self._thread, self.machine, self._exception, self._caught = thread, machine, exception, caught
        self.blocking: BlockingCalls | None = None
        self._raised = self._deferred = self._modules = 0
        # Without a signal, this thread judges where the interruption would land, instead of the handler.
        self._refusals = 0
        self._refused: Judged | None = None
        self._landed_at = ""

    @operation
    def observe(self) -> ThreadSample:
        """Return what is seen of the thread."""
        seen = self._thread.sample()
        if self._refusals:
            landing = self._refused.landing if self._refused is not None else seen.landing
            seen = seen._replace(deferred=seen.deferred + self._refusals, landing=landing)
        if seen.deferred > self._deferred and seen.landing is Landing.IMPORT:
            before, self._modules = self._modules, len(sys.modules)
            if self._modules > before:
                self._thread.import_progressed()
        self._raised, self._deferred = seen.raised, seen.deferred
        return seen

    @operation
    def fire(self, why: FireReason) -> None:
        """Interrupt the thread."""
        shot = Shot(self._raised, why.insists, patient=why is not FireReason.DEFERRED)
        if self._thread.by_signal:
            self._signal(shot, why)
        else:
            self._set_exception(shot)

    @operation
    def close_blocked(self) -> None:
        """Close what the thread blocks in, unless it has left the function: then it may block in the wrapper's own."""
        with self._thread.unblocking:
            if self._thread.out.is_set() or self.blocking is None:
                return
            if not self.blocking.unblock() and log.isEnabledFor(logging.DEBUG):
                frames = innermost_frames(self._thread.ident)
                log.debug("the function does not react to the interruption:\n%s", frames)

    @operation
    def await_left(self, deadline: float) -> bool:
        """Wait until the thread has left the function, or until the deadline; return whether it has left."""
        seconds = deadline - time.monotonic()
        return self._thread.out.wait(max(0.0, seconds) if seconds < math.inf else None)

    @operation
    def await_unmasked(self) -> bool:
        """Wait until no atomic section is open; return whether the thread has left the function."""
        return self._thread.wait_unmasked()

    @operation
    def report_stored(self) -> None:
        """The function has caught the interruption and stored it."""
        self._caught.stored(self._thread.error(), __file__, self._landed_at or self._thread.landed_at)

    @operation
    def report_swallowed(self, count: int) -> None:
        """The function has swallowed that many interruptions."""
        self._caught.swallowed(count, self._landed_at or self._thread.landed_at, self._thread.swallowed_at)

    @operation
    def report_deferred(self) -> None:
        """The interruption is deferred for long."""
        refused = self._refused or self._thread.deferral
        log.warning("the interruption was deferred at %s: %s", refused.location, refused.landing.value)

    def _signal(self, shot: Shot, why: FireReason) -> None:
        thread = self._thread
        handler = signal.getsignal(thread.signum)
        if handler != thread.handle_signal and why is FireReason.FIRST:
            log.error(_OTHER_HANDLER, thread.signum)
        if handler in _RESET:  # the default action would end the process
            thread.drop = self._exception.drop
            self._set_exception(shot)
            return
        self._refused, self._landed_at = None, ""
        signal.siginterrupt(thread.signum, True)  # else a blocking call that the kernel can restart goes on
        probed = time.monotonic()
        waits = thread.probe is not None and thread.probe.waits()
        thread.shot = shot._replace(waits=waits and time.monotonic() < probed + FRESH)
        with suppress(BlockingIOError):  # more pending signals than `ulimit -i` allows: it is sent again
            signal.pthread_kill(thread.ident, thread.signum)

    def _set_exception(self, shot: Shot) -> None:
        """Let the interpreter raise the exception in the thread if it may land at the present instruction."""
        thread, insists = self._thread, shot.insists
        frame = sys._current_frames().get(thread.ident)
        at = frame.f_lasti if frame is not None else -1
        verdict = judge(frame, thread.catching_code)
        if verdict.landing is Landing.SAFE or insists:
            self._landed_at = verdict.location
            if self._exception.set_if(shot.raised, None if insists else frame, at):
                return
        self._refused = verdict
        self._refusals += 1


class FunctionThread:
    """The thread of the function, the one that creates this object; its methods run in it, and write the attributes.

    The exceptions are few. Another thread, one that interrupts, writes `make`, `requested`, `shot` and `drop`. It calls
    `sample`, `wait_unmasked` and `import_progressed`; and between two rounds, while this thread is outside of the
    function, `reset`.

    Args:
        signum: the signal to use; a handler that is already installed for it is chained.
        page: the progress page, on which the monitor process writes that the round is over while no thread of this
            process has noticed it, and the interruption that an import for which it waits goes on; None without one.

    Attributes:
        signum: as given.
        ident: the thread.
        by_signal: whether signals reach it: it is the main thread.
        probe: tells the threads that interrupt whether this one waits in a system call; None before `install`.
        armed: whether it is in the function.
        depth: the nesting depth of its atomic sections.
        iteration: the number of rounds that have ended.
        raised, deferred, waited: how many interruptions were raised; how many were not, because of where they would
            have landed, and how many of these while it waited in a system call.
        deferral: of the last one that was not, what it would have done, and where.
        landed_at: file and line at which the last one was raised.
        swallowed_at: file and line of the handler of the user's in which the last exception has ended, or empty.
        error: returns the last exception that was raised, while it exists.
        catching_code: the code of the frame that has armed, which catches the exception.
        out: set when it has left the function.
        free: set when it has left an atomic section with a request pending.
        unblocking: held while another thread closes what the function blocks in.
        make: creates the exception. Written by the interrupter, before `requested`.
        requested: whether the function is to end. Set by the interrupter, and by the signal handler, which finds the
            end of the round on the page; cleared between rounds.
        shot: what the handler is to know of the next signal. Written by the interrupter, before it sends the signal.
        drop: withdraws an exception that was set and not raised; this thread calls it right after `armed` has become
            false, with no other call in between. Written by the interrupter that sets exceptions, before it sets one.
    """

    def __init__(self, signum: int, page: Page | None = None) -> None:
        self.signum, self._page = signum, page
        self.ident = threading.get_ident()
        self.by_signal = threading.current_thread() is threading.main_thread()
        self.probe: SystemCallProbe | None = None
        self._cpu_clock = time.pthread_getcpuclockid(self.ident)
        self.armed = False
        self.depth = 0
        self.raised = self.deferred = self.waited = self.iteration = 0
        self.deferral = Judged(Landing.SAFE, "")
        self.landed_at = self.swallowed_at = ""
        self.error: Callable[[], BaseException | None] = _nothing
        self.catching_code: CodeType | None = None
        self.out, self.free, self.unblocking = SignalSafeEvent(), SignalSafeEvent(), threading.Lock()
        self.make: Callable[[], BaseException] = RankShouldRestart
        self.requested = False
        self.shot = self._last_shot = Shot()
        self.drop: Callable[[], Any] = _nothing
        self._next_line = NextLine(self._at_line)
        self._installed = self._blocked = False
        self._previous: Any = None

    def install(self) -> None:
        """Install the signal handler, and unblock the signal in this thread."""
        if not self.by_signal:
            log.warning(
                "the wrapped function does not run in the main thread: blocking calls cannot be interrupted there"
            )
            return
        self._previous = signal.signal(self.signum, self.handle_signal)
        self._blocked = self.signum in signal.pthread_sigmask(signal.SIG_UNBLOCK, [self.signum])
        self.probe = SystemCallProbe(threading.get_native_id())
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
        if self.probe is not None:
            self.probe.close()

    def disown(self) -> None:
        """Disable interruption in a child of `os.fork`; atomic sections can be entered and left without effect."""
        self.requested = self.armed = False
        self._next_line.cancel()
        self.out, self.free, self.unblocking = SignalSafeEvent(), SignalSafeEvent(), threading.Lock()
        self.ident = threading.get_ident()
        with suppress(Withdrawn):
            self.drop()
        if self.by_signal and signal.getsignal(self.signum) == self.handle_signal:
            self.uninstall()

    def reset(self) -> None:
        """Discard an earlier request, and begin to count anew; only between rounds."""
        self.requested = self.armed = False
        self.depth = self.raised = self.deferred = self.waited = 0
        self.iteration += 1
        self.error, self.swallowed_at = _nothing, ""
        self.shot = Shot(patient=self.shot.patient)
        self.make = RankShouldRestart
        self.out.clear()
        self.free.clear()

    def arm(self) -> None:
        """Allow interruption of the function from here on; an earlier request is raised at once.

        A function that has reset the handlers of all signals has taken the interruption's as well: it is put back.
        """
        self.catching_code = sys._getframe(1).f_code
        if self._installed and signal.getsignal(self.signum) in _RESET:
            signal.signal(self.signum, self.handle_signal)
        self.armed = True
        if self.requested:
            self.raise_requested()

    def leave(self) -> None:
        """Record that the thread has left the function and all its atomic sections.

        What `drive` closes meanwhile is the function's: the thread waits for that before it uses any connection itself.
        """
        self.armed = False
        self._next_line.cancel()
        self.out.set()
        self.free.set()
        with self.unblocking:
            pass

    def handle_signal(self, signum: int, frame: FrameType | None) -> None:
        """Handle the signal: raise the exception in the function, or defer it."""
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

    def _raise_if_safe(self, frame: FrameType | None, notified: bool) -> None:
        """Raise the exception if it may land in `frame`, else await the next line at which it may."""
        shot = self.shot
        is_new, self._last_shot = shot is not self._last_shot, shot  # else it was for an earlier signal
        insist = is_new and shot.insists and self.raised == shot.raised  # else a line has raised since
        waits = (is_new and shot.waits) or notified  # a long call counts as a wait: it acquires no lock
        if not insist and self.unwinds():
            return
        verdict = judge(frame, self.catching_code, library=shot.patient)
        if insist or verdict.landing is Landing.SAFE or (verdict.landing is Landing.FRAGILE and waits):
            self.landed_at = location(frame)
            self.raise_requested()
        self.deferral = verdict
        self._next_line.await_from(frame, self.catching_code)
        self.deferred, self.waited = self.deferred + 1, self.waited + waits

    def _at_line(self, frame: FrameType, within: Set[int]) -> None:
        """Raise the exception at a line that was awaited, unless it is withdrawn or raised by other means."""
        if not self.armed or self.depth or self.unwinds():
            self._next_line.cancel()
        elif is_safe_line(frame, self.catching_code, within):
            self.landed_at = location(frame)
            self.raise_requested()

    def raise_requested(self) -> NoReturn:
        """Raise the exception here."""
        self._next_line.cancel()
        self.swallowed_at = ""
        error, asyncio = self.make(), sys.modules.get("asyncio")
        runs_loop = asyncio is not None and asyncio._get_running_loop() is not None
        if runs_loop and not isinstance(error, KeyboardInterrupt | SystemExit):
            error = LoopShouldEnd(*error.args)
        self.error = weakref.ref(error, self._note_handler)
        self.raised += 1
        try:
            raise error
        finally:
            del error

    def _note_handler(self, _: object) -> None:
        """Note the handler that swallows the exception: at its end, the exception is destroyed.

        An exception that was stored is destroyed anywhere, also by a thread that ends, which has no frame.
        """
        if not self.armed or threading.get_ident() != self.ident:
            return
        frame = sys._getframe(1)
        if not is_library(frame) and drops_exception(frame):
            self.swallowed_at = f"{frame.f_code.co_filename}:{frame.f_lineno}"

    def unwinds(self) -> bool:
        """Return whether this thread unwinds because of the last raised exception."""
        error = self.error()
        return error is not None and chain_contains(sys.exception(), error)

    def sample(self) -> ThreadSample:
        """Return what is to be seen of this thread; for other threads."""
        raised, error = self.raised, self.error()
        alive = error is not None and chain_contains(handled_exception(self.ident), error)
        return ThreadSample(
            out=not self.armed, masked=self.depth > 0, raised=raised, alive=alive,
            stored=error is not None and not alive, deferred=self.deferred, awaited=self._next_line.awaited,
            landing=self.deferral.landing, waited=self.waited, ran=time.clock_gettime(self._cpu_clock),
        )  # fmt: skip

    def wait_unmasked(self) -> bool:
        """Wait until no atomic section is open; return whether the thread has left the function. For other threads."""
        while self.depth and not self.out.is_set():
            self.free.wait()
            self.free.clear()
        self.free.set()  # another thread that waits may not have seen it before it was cleared
        return self.out.is_set()

    def import_progressed(self) -> None:
        """Record that an import for which the interruption waits has added modules; for other threads."""
        if self._page is not None:
            self._page[ProgressField.IMPORTED_AT] = time.monotonic_ns()


def _nothing() -> None:
    """Do nothing."""
