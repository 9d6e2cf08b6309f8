"""The flow of the monitor thread: wait for the round's event, end the function, wait for the decision. Pure.

It runs as long as the call. Faults are pushed to it: it waits in the store on its own connection.
"""

from __future__ import annotations

from collections.abc import Callable

from nvrx_core.inprocess.protocol.decision import RoundDecision
from nvrx_core.inprocess.protocol.ports import FunctionAbortPort
from nvrx_core.inprocess.protocol.round import EndFunction, Enter, Finish, Rounds, RoundStore, RoundView, play

__all__ = ["MonitorThreadFlow"]


class MonitorThreadFlow:
    """The rounds of one call, as the monitor thread sees them.

    Args:
        rounds: shared with the main thread.
        store: the keys of the rounds, on this thread's connection.
        function: ends the function.
        now: monotonic seconds.
    """

    def __init__(
        self, rounds: Rounds, store: RoundStore, function: FunctionAbortPort, now: Callable[[], float]
    ) -> None:
        self.rounds, self.store, self.function, self.now = rounds, store, function, now

    async def run(self) -> None:
        """Run the rounds until all have completed or this rank has left the job."""
        going_on = True
        while going_on:
            view = self.rounds.view
            if view.round.iteration >= 0:
                await self._await_end(view)
                if view.finished:
                    return
            decision = await self.store.await_decision(view.round.iteration)
            await self.function.decision_received(view.round.iteration)
            going_on = await self._go_on(view, decision)
            await self.function.round_decided()

    async def _await_end(self, view: RoundView) -> None:
        """Wait for the event, and end the function if the round restarts."""
        await self.store.await_event(view.round.iteration)
        await self.function.event_received(view.round.iteration)
        for action in await play(view.round, view.round.happened(now=self.now()), self.store, self.now):
            if isinstance(action, EndFunction):
                await self._end_function(view, action)
            else:
                assert isinstance(action, Finish)
                view.finished = True

    async def _end_function(self, view: RoundView, end: EndFunction) -> None:
        """Interrupt, then abort: a busy main thread would compete with the abort for the interpreter's lock."""
        function, iteration = self.function, view.round.iteration
        await function.notice(iteration)
        if view.round.timeouts.last_call > 0:
            await function.last_call(view.round.timeouts.last_call)
        await function.interrupt_function(end.reason)
        await function.abort_function(iteration)
        view.aborted = True
        await function.await_out()

    async def _go_on(self, view: RoundView, decision: RoundDecision) -> bool:
        """Continue with the next round; return False if this rank is not part of it."""
        actions = view.round.decided(decision, now=self.now())
        enter = next((action for action in actions if isinstance(action, Enter)), None)
        if enter is not None:
            await self.function.reset_interrupt()
            self.rounds.advance(enter.members)
        view.decision = decision
        return enter is not None
