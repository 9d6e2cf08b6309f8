"""Abort of the calls in which the function blocks, and how far the function had come.

The user's abort is a chain of independent steps: one that fails does not prevent the others. A composition is taken
apart into its parts, in the order in which it would run them. A part that names an `AbortPhase` goes there; the others
keep their place before or after torch's abort. The parts of phase `MAIN_THREAD` wait for the main thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from nvrx_core.errors import ParameterError
from nvrx_core.fault.blame import RankProgress
from nvrx_core.inprocess.abort import Abort, AbortPhase, AbortTorchDistributed
from nvrx_core.inprocess.call.own_faults import clear_frames
from nvrx_core.inprocess.compose import Compose
from nvrx_core.inprocess.groups.observer import GroupObserver
from nvrx_core.inprocess.interruption.interrupt import Interrupt
from nvrx_core.inprocess.interruption.swallowed import innermost_frames
from nvrx_core.inprocess.state import FrozenState, State
from nvrx_core.progress.page import Page, ProgressField
from nvrx_core.progress.stage import Stage

__all__ = ["AbortChain", "FunctionAbort", "RoundProgress", "steps_of"]


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


class RoundProgress:
    """The progress of this rank when a round ended, sampled once, as soon as the round's event is received.

    Later the counters change: the abort clears torch's groups, and an interrupted function runs its cleanup.

    Args:
        page: the rank's page.
        stalled_after: seconds without a sign of life after which a rank counts as stalled.
        observe: updates the page's count of collectives, and returns the counts of the other groups.

    Attributes:
        progress: the progress of the rank.
        stalled: it had shown no sign of life for so long, or was reported.
    """

    def __init__(self, page: Page, stalled_after: float, observe: Callable[[], tuple[tuple[int, int], ...]]) -> None:
        self.page, self._stalled_after, self._observe = page, stalled_after, observe
        self.iteration = -1
        self.progress, self.stalled = RankProgress(), False

    def take(self, iteration: int) -> None:
        """Take the sample of this round; a rank that has not started the iteration has no progress."""
        if iteration == self.iteration:
            return
        page, self.progress, self.stalled = self.page, RankProgress(), False
        if page[ProgressField.ITERATION] == iteration:
            groups = self._observe()
            silent = time.monotonic() - page.alive_at() > self._stalled_after
            silent = silent and page[ProgressField.STAGE] == Stage.RUNNING
            self.stalled = silent or page[ProgressField.STALLED] == iteration + 1
            self.progress = RankProgress(
                rendezvous=page[ProgressField.RENDEZVOUS_COUNT],
                inside=page[ProgressField.RENDEZVOUS_DEPTH],
                collectives=page[ProgressField.COLLECTIVES],
                step=page[ProgressField.STEP],
                groups=groups,
            )
        self.iteration = iteration


class FunctionAbort:
    """Aborts the calls in which the function of one rank blocks; used by the other threads.

    Args:
        abort: the user's abort; None for none.
        state: the state of this rank.
        page: its progress page.
        interrupt: knows where the main thread is.
        observer: knows the function's process groups and stores.
        sample: the progress of the rank when the round ended.
        noticed: called with the iteration when its round has ended, before the function is interrupted.

    Attributes:
        begun_in: the last iteration whose abort has started; a later failure in it is a consequence of the abort.
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
        noticed: Callable[[int], None],
    ) -> None:
        self._chain, self._aborts, self._state, self._page = AbortChain(abort), abort is not None, state, page
        self._interrupt, self._observer, self._sample, self._noticed = interrupt, observer, sample, noticed
        self.begun_in = -1

    def notice(self, iteration: int) -> None:
        """Record the rank's progress at the round's event, before the abort changes it."""
        self._sample.take(iteration)
        self._noticed(iteration)

    def begin(self, iteration: int) -> None:
        """Run the user's abort for the function of this iteration."""
        self.begun_in = iteration
        self._chain.run(self._state.freeze())

    def finish(self, state: FrozenState) -> None:
        """Run the parts of the user's abort that need the main thread, which has left the function."""
        self._chain.run_in_main_thread(state)

    def unblock(self) -> None:
        """Close the connection on which the main thread blocks, if no signal reaches it."""
        if not self._observer.unblock() and log.isEnabledFor(logging.DEBUG):
            log.debug("the function does not react to the interruption:\n%s", innermost_frames(self._interrupt.thread))

    def release(self) -> None:
        """Release the connections of the function's process groups, once the round is decided."""
        self._observer.release()

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
