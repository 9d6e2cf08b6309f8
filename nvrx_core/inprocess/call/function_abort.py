"""The end of the function of a round that restarts: its interruption, and the abort of the calls in which it blocks.

The user's abort is a chain of independent steps: one that fails does not prevent the others. A composition is taken
apart into its parts, in the order in which it would run them. A part that names an `AbortPhase` goes there; the others
keep their place before or after torch's abort. The parts of phase `MAIN_THREAD` wait for the main thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from nvrx_core.errors import ParameterError
from nvrx_core.failpoint import hit
from nvrx_core.flow import operation
from nvrx_core.inprocess.abort import Abort, AbortPhase, AbortTorchDistributed
from nvrx_core.inprocess.call.hang_reporter import HangReporter, RoundProgress
from nvrx_core.inprocess.call.own_faults import clear_frames
from nvrx_core.inprocess.compose import Compose
from nvrx_core.inprocess.groups.observer import GroupObserver
from nvrx_core.inprocess.interruption.interrupt import Interrupt, RankShouldRestart
from nvrx_core.inprocess.interruption.switch_interval import ShortTurns
from nvrx_core.inprocess.state import FrozenState, State
from nvrx_core.process.signal_safe import SignalSafeCondition
from nvrx_core.progress.page import Page, ProgressField

__all__ = ["AbortChain", "FunctionAbort", "steps_of"]


log = logging.getLogger("nvrx_core.inprocess")
Step = Callable[[FrozenState], Any]
_PLACE: Final = {AbortPhase.BEFORE_TORCH: 0, None: 1, AbortPhase.AFTER_TORCH: 2}


def steps_of(abort: Step) -> list[Step]:
    """Return the parts of a composition in the order in which they run, also of one inside another.

    Raises:
        ValueError: when a part's `phase` is none.
    """
    if isinstance(abort, Compose) and type(abort).__call__ is Compose.__call__:
        return [step for part in reversed(abort.instances) for step in steps_of(part)]
    if not isinstance(phase_of(abort), AbortPhase | None):
        expected = "a member of nvrx_core.inprocess.abort.AbortPhase, or None"
        raise ParameterError(f"{_name(abort)}.phase", phase_of(abort), expected)
    return [abort]


def phase_of(step: Step) -> Any:
    """Return the phase that a step names, None for its place in the composition."""
    return getattr(step, "phase", None)


class AbortChain:
    """The steps of one abort.

    Args:
        abort: the user's; None for nothing.

    Attributes:
        beside: those that run beside the function, in order.
        main: those that run in the main thread once it is out of the function.
    """

    def __init__(self, abort: Step | None) -> None:
        steps = [] if abort is None else steps_of(abort)
        self.main = [step for step in steps if phase_of(step) is AbortPhase.MAIN_THREAD]
        self.beside = _in_order([step for step in steps if phase_of(step) is not AbortPhase.MAIN_THREAD])
        self._aborts_groups = abort is not None

    def run(self, state: FrozenState) -> None:
        """Run the steps beside the function; if one fails, torch's groups are aborted all the same."""
        failed = _run(self.beside, state)
        aborted = any(_is_torch_abort(step) and step not in failed for step in self.beside)
        if self._aborts_groups and failed and not aborted:
            _run([AbortTorchDistributed()], state)

    def run_in_main_thread(self, state: FrozenState) -> None:
        """Run the steps that wait for the main thread."""
        _run(self.main, state)


def _in_order(steps: list[Step]) -> list[Step]:
    """Put the steps in the order of their phases; within one they stay in that of the composition."""
    torch_abort = next((number for number, step in enumerate(steps) if _is_torch_abort(step)), None)

    def place(numbered: tuple[int, Step]) -> int:
        number, step = numbered
        if torch_abort is None or phase_of(step) is not None:
            return _PLACE[phase_of(step)]
        return (number > torch_abort) - (number < torch_abort) + 1

    return [step for _, step in sorted(enumerate(steps), key=place)]


def _is_torch_abort(step: Step) -> bool:
    return isinstance(step, AbortTorchDistributed)


def _run(steps: Iterable[Step], state: FrozenState) -> list[Step]:
    """Run each step, whatever those before it did, and log its outcome; return those that failed."""
    failed = list[Step]()
    for step in steps:
        began = time.monotonic()
        try:
            returned = step(state)
        except BaseException:  # boundary: a user's abort; the other steps and the interruption must follow
            failed.append(step)
            log.exception("abort failed in %s after %s", _name(step), _since(began))
        else:
            state = returned if isinstance(returned, FrozenState) else state
            log.debug("abort: %s is done after %s", _name(step), _since(began))
    return failed


def _name(step: Step) -> str:
    return str(getattr(step, "__qualname__", type(step).__qualname__))


def _since(began: float) -> str:
    return f"{(time.monotonic() - began) * 1000:.1f} ms"


class FunctionAbort:
    """Gets the main thread out of the function: interrupts it, and aborts the calls in which it blocks.

    It is the `FunctionAbortPort` of the monitor thread; other threads use `leave_early`, the main thread `finish` and
    `release_completed`.

    Args:
        abort: the user's abort; None for none.
        state: the state of this rank.
        page: its progress page.
        interrupt: interrupts the main thread in the function.
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
        interrupt: Interrupt,
        observer: GroupObserver,
        sample: RoundProgress,
        hangs: HangReporter,
        changed: SignalSafeCondition,
    ) -> None:
        self._chain, self._aborts, self._state, self._page = AbortChain(abort), abort is not None, state, page
        self._interrupt, self._observer, self._sample, self._hangs = interrupt, observer, sample, hangs
        self._changed, self._turns, self._stopping = changed, ShortTurns(), False
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
        self._interrupt.request(lambda: RankShouldRestart(reason))
        self._interrupt.begin()
        self._interrupt.wait_unmasked()

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
        self._interrupt.drive(self._observer)

    @operation
    def reset_interrupt(self) -> None:
        """The next round starts: discard the request to leave the function."""
        self._interrupt.reset()

    @operation
    def round_decided(self) -> None:
        """The round is decided: the main thread continues, or leaves the job; release what the function has left."""
        self._turns.end()
        self._observer.release()

    def stop(self) -> None:
        """End the waits of the monitor thread."""
        self._stopping = True
        self._interrupt.out.set()
        self._interrupt.free.set()
        self._changed.notify_all()

    def thread_ended(self) -> None:
        """The monitor thread has ended, whatever it was about to do."""
        self._turns.end()

    def leave_early(self, make: Callable[[], BaseException]) -> None:
        """End the function for good, with the exception that `make` creates; in the main thread, only request it."""
        self._interrupt.request(make)
        self._changed.notify_all()
        if threading.get_ident() != self._interrupt.thread:
            self._abort(self._state.iteration)
            self._interrupt.drive(self._observer)

    def finish(self, state: FrozenState) -> None:
        """Run the parts of the user's abort that need the main thread, which has left the function."""
        self._chain.run_in_main_thread(state)

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
