"""Abort of the calls in which the function blocks: the user's abort, then whatever still blocks the main thread."""

from __future__ import annotations

import logging

from nvrx_core.inprocess.abort import Abort
from nvrx_core.inprocess.configuration.abort_chain import AbortChain
from nvrx_core.inprocess.faults.fault_maker import clear_frames
from nvrx_core.inprocess.groups.observer import GroupObserver
from nvrx_core.inprocess.interruption.interrupt import Interrupt
from nvrx_core.inprocess.interruption.swallowed import innermost_frames
from nvrx_core.inprocess.monitor.round_progress import RoundProgress
from nvrx_core.inprocess.state import FrozenState, State
from nvrx_core.progress.page import Page, ProgressField

__all__ = ["FunctionAbort"]

log = logging.getLogger("nvrx_core.inprocess")


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
