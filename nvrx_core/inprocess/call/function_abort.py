"""The end of the function of a round that restarts: its interruption, and the abort of the calls in which it blocks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from nvrx_core.failpoint import hit
from nvrx_core.flow import operation
from nvrx_core.inprocess.abort import Abort, AbortChain
from nvrx_core.inprocess.call.hang_reporter import HangReporter, RoundProgress
from nvrx_core.inprocess.call.own_faults import clear_frames
from nvrx_core.inprocess.groups.observer import GroupObserver
from nvrx_core.inprocess.interruption.interrupt import Interrupter
from nvrx_core.inprocess.interruption.switch_interval import FastGilSwitching
from nvrx_core.inprocess.protocol.outcome import RankShouldRestart
from nvrx_core.inprocess.state import State
from nvrx_core.process.signal_safe import SignalSafeCondition
from nvrx_core.progress.page import Page, ProgressField

__all__ = ["FunctionAbort"]


class FunctionAbort:
    """Gets the main thread out of the function: interrupts it, and aborts the calls in which it blocks.

    It is the `FunctionAbortPort` of the monitor thread; other threads use `leave_early`, the main thread
    `release_completed`.

    Args:
        abort: the user's abort; None for none.
        state: the state of this rank.
        page: its progress page.
        interrupter: interrupts the main thread in the function.
        observer: knows the function's process groups and stores.
        sample: the progress of the rank when the round ended.
        hangs: looks where the main thread is then, and reports a hang.
        changed: the condition on which the main thread waits outside of the function.

    Attributes:
        begun_in: the last iteration whose abort has started; a later failure in it is a consequence of the abort.
        marks: monotonic seconds of the round that ends, by the names of `nvrx_core.events.phases.MARKS`.
    """

    def __init__(
        self,
        abort: Abort | None,
        state: State,
        page: Page,
        *,
        interrupter: Interrupter,
        observer: GroupObserver,
        sample: RoundProgress,
        hangs: HangReporter,
        changed: SignalSafeCondition,
    ) -> None:
        self._chain, self._aborts, self._state, self._page = AbortChain(abort), abort is not None, state, page
        self._interrupter, self._observer, self._sample, self._hangs = interrupter, observer, sample, hangs
        self._changed, self._turns, self._stopping = changed, FastGilSwitching(), False
        self.begun_in, self.marks = -1, dict[str, float]()

    @operation
    def event_received(self, iteration: int) -> None:
        """Record that the round has its event."""
        self._page[ProgressField.NOTICED] = iteration + 1
        self.marks = {"noticed": time.monotonic()}

    @operation
    def decision_received(self, iteration: int) -> None:
        """The round has its decision."""
        hit("decision-after", iteration)

    @operation
    def notice(self, iteration: int) -> None:
        """The round restarts: record where this rank is, and its progress, before the abort changes it."""
        self._turns.begin()
        self._sample.take(iteration)
        self._hangs.notice(iteration)

    @operation
    def last_call(self, seconds: float) -> None:
        """Wait for late faults, for so many seconds."""
        self._changed.wait_for(lambda: self._stopping, seconds)

    @operation
    def interrupt_function(self, reason: str) -> None:
        """Ask the main thread to leave the function, and wait until it is in no atomic section.

        A main thread that has left the function already ends this at once: it is not interrupted, nor waited for.
        """
        self._interrupter.request(lambda: RankShouldRestart(reason))
        self._interrupter.begin()
        self._interrupter.wait_unmasked()

    @operation
    def abort_function(self, iteration: int) -> None:
        """Abort the calls in which the function blocks."""
        self._page[ProgressField.INTERRUPTING] = iteration + 1
        hit("abort-before", iteration)
        self._abort(iteration)
        self.marks["aborted"] = time.monotonic()

    @operation
    def await_out(self) -> None:
        """Interrupt the main thread until it has left the function."""
        self._interrupter.drive(self._observer)

    @operation
    def reset_interrupt(self) -> None:
        """The next round starts: discard the request to leave the function."""
        self._interrupter.reset()

    @operation
    def round_decided(self) -> None:
        """The round is decided: the main thread continues, or leaves the job; release what the function has left."""
        self._turns.end()
        self._observer.release()

    def stop(self) -> None:
        """End the waits of the monitor thread."""
        self._stopping = True
        self._interrupter.stop()
        self._changed.notify_all()

    def thread_ended(self) -> None:
        """The monitor thread has ended, whatever it was about to do."""
        self._turns.end()

    def leave_early(self, make: Callable[[], BaseException]) -> None:
        """End the function for good, with the exception that `make` creates; in the main thread, only request it."""
        self._interrupter.request(make)
        self._changed.notify_all()
        if threading.get_ident() != self._interrupter.thread.ident:
            self._abort(self._state.iteration)
            self._interrupter.drive(self._observer)

    def release_completed(self, error: BaseException | None) -> None:
        """Unblock the ranks that wait in a collective for this one, which has completed by `SystemExit(0)`: `error`."""
        clear_frames(error)
        iteration = self._state.iteration
        self._page[ProgressField.EXITED] = iteration + 1
        self._sample.take(iteration)
        if self._aborts:  # the user's own is for faults, and this is none
            self._observer.abort_groups()
        self._observer.release()
        self._observer.held.clear()

    def _abort(self, iteration: int) -> None:
        self.begun_in = iteration
        self._chain.run(self._state.freeze())
