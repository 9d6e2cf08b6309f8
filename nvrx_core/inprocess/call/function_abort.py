"""Abort of the calls in which the function blocks, and how far the function had come."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from nvrx_core.fault.blame import Progress
from nvrx_core.inprocess.abort import Abort
from nvrx_core.inprocess.configuration.abort_chain import AbortChain
from nvrx_core.inprocess.faults.fault_maker import clear_frames
from nvrx_core.inprocess.groups.observer import GroupObserver
from nvrx_core.inprocess.interruption.interrupt import Interrupt
from nvrx_core.inprocess.interruption.swallowed import innermost_frames
from nvrx_core.inprocess.state import FrozenState, State
from nvrx_core.progress.page import Page, ProgressField
from nvrx_core.progress.stage import Stage

__all__ = ["FunctionAbort", "RoundProgress"]

log = logging.getLogger("nvrx_core.inprocess")


class RoundProgress:
    """The progress of this rank when a round ended, sampled once, as soon as the round's event is received.

    Later the counters change: the abort clears torch's groups, and an interrupted function runs its cleanup.

    Args:
        page: the rank's page.
        soft: soft timeout, seconds.
        observe: updates the page's count of collectives, and returns the counts of the other groups.

    Attributes:
        progress: the progress of the rank.
        stalled: it had shown no sign of life for half the soft timeout, or was reported.
    """

    def __init__(self, page: Page, soft: float, observe: Callable[[], tuple[tuple[int, int], ...]]) -> None:
        self.page, self.soft, self._observe = page, soft, observe
        self.iteration = -1
        self.progress, self.stalled = Progress(), False

    def take(self, iteration: int) -> None:
        """Take the sample of this round; a rank that has not started the iteration has no progress."""
        if iteration == self.iteration:
            return
        page, self.progress, self.stalled = self.page, Progress(), False
        if page[ProgressField.ITERATION] == iteration:
            groups = self._observe()
            silent = page[ProgressField.STAGE] == Stage.RUNNING and time.monotonic() - page.alive_at() > self.soft / 2
            self.stalled = silent or page[ProgressField.STALLED] == iteration + 1
            self.progress = Progress(
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
    ) -> None:
        self._chain, self._aborts, self._state, self._page = AbortChain(abort), abort is not None, state, page
        self._interrupt, self._observer, self._sample = interrupt, observer, sample
        self.begun_in = -1

    def notice(self, iteration: int) -> None:
        """Record the rank's progress at the round's event, before the abort changes it."""
        self._sample.take(iteration)

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
