"""The flows of a rank's two threads through one call: its iterations, from entry to exit. Pure.

The main thread's store operations are single and quick. For everything that depends on another rank it waits for the
monitor thread, in a wait that a signal interrupts, no longer than the round's deadline.

The monitor thread waits in the store on its own connection, where a fault is pushed to it: for the round's event, upon
which it ends the function, then for the decision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from nvrx_core.errors import BarrierTimeout, JobMismatch, RankDiscarded, RestartAbort, StoreLost, UsageError
from nvrx_core.fault.exceptions import add_note, type_name
from nvrx_core.fault.record import JOB_MISMATCH, FaultRecord
from nvrx_core.fault.retry_limit import LONG, NoProgressLimit
from nvrx_core.inprocess.protocol.decision import ArrivalStatus, RoundDecision
from nvrx_core.inprocess.protocol.outcome import IterationResult, Outcome, given_up
from nvrx_core.inprocess.protocol.ports import CallPorts, FunctionAbortPort, StoreFailure
from nvrx_core.inprocess.protocol.round import (
    AskHolders,
    EndFunction,
    Endpoint,
    Enter,
    Finish,
    GiveUp,
    LateCompletion,
    RoundAction,
    Rounds,
    RoundStore,
    RoundView,
    run_store_actions,
)
from nvrx_core.progress.stage import Stage
from nvrx_core.rank_assignment.base import AssignmentState
from nvrx_core.values import value

__all__ = ["FlowRules", "MainThread", "MonitorThreadFlow"]


@value
class FlowRules:
    """The rules that are fixed for a call.

    Attributes:
        no_progress_limit: restarts in a row without progress; None for any number.
        needs_entry_rendezvous: the process group of iteration 0 also needs a rendezvous that the wrapper hosts.
        hosts_store: the process of this rank hosts the control store.
        store_is_hosted: the process of some rank hosts it.
    """

    no_progress_limit: int | None = None
    needs_entry_rendezvous: bool = False
    hosts_store: bool = False
    store_is_hosted: bool = False


_DONE = (Outcome.RETURNED, Outcome.EXITED, Outcome.RESERVE)
_LEAVES = (Outcome.LEFT, Outcome.EXITED)
"""Outcomes with which the rank leaves the job, whatever the others do."""


class MainThread:
    """One call.

    Args:
        rounds: shared with the monitor thread.
        state: the state of this rank; its assignment changes it.
        rules: the rules of the call.
        ports: of this thread.
        now: monotonic seconds.

    Attributes:
        over: the others have been told that this rank leaves, or cannot be told.
    """

    def __init__(
        self, rounds: Rounds, state: AssignmentState, rules: FlowRules, *, ports: CallPorts, now: Callable[[], float]
    ) -> None:
        self.rounds, self.state, self.rules, self.ports, self.now = rounds, state, rules, ports, now
        self.limit = NoProgressLimit(rules.no_progress_limit)
        self.endpoint: Endpoint | None = None
        self.failure: BaseException | None = None
        self.ended: IterationResult | None = None
        self.completed = self.left_early = self.over = False
        self.began, self.pause_until = math.inf, 0.0

    async def run(self) -> IterationResult:
        """Run the function until all ranks have completed it, or this rank leaves; return the result.

        Raises:
            StoreLost: when the store is lost, and this rank was not about to leave.
            BaseException: the exception of an early exit.
        """
        try:
            ended = await self._iterations()
        except GeneratorExit:
            raise
        except (StoreFailure, StoreLost) as loss:
            self.over = True
            ended = await self._without_store(loss)
        except BaseException as error:  # boundary: whatever ends the call out of turn, the others are told first
            if not isinstance(error, BarrierTimeout):
                await self.ports.leaving.abandon(error)
            self.over = True
            await self.ports.faults.report_failure(None)
            raise
        self.over = True
        await self._finish(ended)
        return ended

    async def _without_store(self, loss: StoreFailure | StoreLost) -> IterationResult:
        """Return how this rank leaves, if it was about to: it has said why it ends, and needs no other rank for that.

        Raises:
            StoreLost: when it was not.
        """
        lost = loss if isinstance(loss, StoreLost) else await self.ports.leaving.lose_store(str(loss))
        if self.ended is not None and self.ended.outcome in _LEAVES:
            return self.ended
        if self.ended is not None and self.failure is None:  # a failure that was not announced: nobody has logged it
            await self.ports.faults.release_iteration(self.ended, keep_trace=True)
        await self.ports.faults.report_failure(None)
        raise lost from None

    async def _iterations(self) -> IterationResult:
        ended = IterationResult(Outcome.LEFT)
        ended.error = await self.ports.plug_ins.declare_keys(-1)
        leaving = ended.error is not None
        self.ended = ended if leaving else None
        decision = await self._arrive(ArrivalStatus.LEAVING if leaving else ArrivalStatus.ALIVE)
        if ended.error is None:
            ended.error = _lost(self.state, decision)
        if ended.error is not None:
            await self._terminate(ended)
            return ended
        while True:
            early = await self._prepare(decision)
            ended = self.ended = early or (await self._execute(decision))
            if early is None and ended.outcome in _DONE and (await self._complete(ended)):
                return ended
            following = await (self._leave_early(ended) if early else self._restart(ended))
            if following is None:
                await self._terminate(ended)
                return ended
            decision = following

    # Into an iteration

    async def _prepare(self, decision: RoundDecision) -> IterationResult | None:
        """Take the rank that the decision assigns; return the result of this rank if it leaves instead."""
        await self.ports.status.note_decision(decision.lost)
        error = await self.ports.plug_ins.assign(decision)
        if error is not None:
            return IterationResult(Outcome.LEFT, error=_exit_of(error, decision), occurred=self.now())
        if decision.iteration >= 0 or self.rules.needs_entry_rendezvous:
            await self._provide_rendezvous(decision.rendezvous)
        await self.ports.status.begin_iteration()
        self.completed, self.began = False, self.now()
        return None

    async def _provide_rendezvous(self, offered: Endpoint | None) -> None:
        """Provide the rendezvous of the next process group, at the endpoint that its rank 0 has offered."""
        state, endpoint = self.state, offered
        if state.active_rank == 0:
            hosted = await self.ports.function.host_rendezvous()
            if endpoint is None:
                await self.ports.store.set_rendezvous(state.iteration, hosted)
        if endpoint is None and state.active_rank is not None:
            await self.ports.status.enter(Stage.WAITING)
            endpoint = await self.ports.store.await_rendezvous(state.iteration)
            await self.ports.status.enter(Stage.STARTING)
        await self.ports.function.use_rendezvous(endpoint)
        self.endpoint = endpoint

    async def _execute(self, decision: RoundDecision) -> IterationResult:
        await self._back_off()
        early = await self.ports.function.initialize()
        if early is not None:
            early.error = _exit_of(early.error, decision)
            return early
        if self.state.iteration > 0 and self.endpoint is None:  # rank 0 is lost, and its fault is told
            await self.ports.status.enter(Stage.WAITING)
            await self._await(self.rounds.view, RoundView.is_aborted)
        return await self.ports.function.run()

    async def _back_off(self) -> None:
        """Wait before a restart that follows equal failures, unless the round has its event already."""
        view = self.rounds.view
        if self.now() >= self.pause_until:
            return
        await self.ports.status.enter(Stage.WAITING)
        while self.now() < self.pause_until and not view.is_aborted():
            await self.ports.status.wait(view, RoundView.is_aborted, self.pause_until)
        await self.ports.status.enter(Stage.STARTING)

    # Out of an iteration

    async def _complete(self, ended: IterationResult) -> bool:
        """Wait until all ranks have completed; return False if the round restarts instead."""
        view = self.rounds.view
        await self.ports.status.enter(Stage.WAITING)
        if ended.outcome is Outcome.EXITED:
            await self.ports.function.release_groups(ended)
        await self._carry_out(view, view.round.completed())
        self.completed = True
        if ended.outcome is not Outcome.RESERVE:
            await self._carry_out(view, view.round.waits_for_completion(now=self.now()))
        await self._await(view, RoundView.is_over)
        return view.finished

    async def _restart(self, ended: IterationResult) -> RoundDecision | None:
        """Pass the round's barrier; return the decision, or None if this rank leaves (with `ended.error`)."""
        view, fault = self.rounds.view, None
        failed, leaving = ended.outcome is Outcome.FAILED, ended.outcome in _LEAVES
        if ended.outcome in (Outcome.FAILED, Outcome.LEFT):
            fault = await self.ports.faults.describe_fault(ended)
            await self._announce(view, fault)  # before anything that can block
        await self._await(view, RoundView.is_aborted)  # `MonitorThreadFlow` ends the function, on all ranks alike
        await self.ports.status.round_ended(view)
        self.failure = ended.error if failed else None
        await self.ports.faults.release_iteration(ended, keep_trace=failed or leaving)
        if not leaving:
            ended.error = await self.ports.plug_ins.recover(self.failure)
            if ended.error is None:
                ended.error = await self.ports.plug_ins.declare_keys(view.round.iteration)
            if ended.error is not None:
                ended.outcome, leaving = Outcome.LEFT, True
        decision = await self._arrive(ArrivalStatus.LEAVING if leaving else ArrivalStatus.ALIVE, fault)
        if not leaving:
            ended.error = self._ends_by(decision)
            if ended.error is None:
                await self.ports.faults.survive(self.failure, decision.cause)
                self.failure = self.ended = None
                await self.ports.faults.collect_postponed()
                return decision
        if self.failure is None or ended.error is not self.failure:
            await self.ports.faults.report_failure(decision.cause)
        return None

    async def _announce(self, view: RoundView, fault: FaultRecord) -> None:
        """Announce a fault, then write it down, unless the round has ended without it."""
        announcement = view.round.fault(fault)
        await self._carry_out(view, announcement)
        if announcement:
            await self.ports.faults.record_fault(fault)

    async def _leave_early(self, ended: IterationResult) -> None:
        """Leave a round that continues without this rank; it restarts if the others rely on this rank."""
        view, fault = self.rounds.view, None
        self.left_early = True
        await self.ports.faults.release_iteration(ended, keep_trace=True)
        if not isinstance(ended.error, RankDiscarded):
            fault = await self.ports.faults.describe_fault(ended)
            await self._announce(view, fault)
            await self.ports.store.set_rendezvous(view.round.iteration, "")
        arrival = await self.ports.arrivals.describe_arrival(ArrivalStatus.LEAVING, fault)
        await self._carry_out(view, view.round.leave(arrival))

    def _ends_by(self, decision: RoundDecision) -> BaseException | None:
        """Return the error with which the decision ends the call on this rank; None if it goes on.

        No restart of any rank mends a job whose ranks contradict each other, or call the library wrongly. Too many
        other failures in a row end it as well. A rank that the others have declared lost never goes on.
        """
        cause = decision.cause
        if cause is None:
            return _lost(self.state, decision)
        if cause.error_type == JOB_MISMATCH:
            return JobMismatch(cause.message)
        if cause.error_type == (name := type_name(UsageError)):
            text = cause.message.removeprefix(f"{name}: ")
            return UsageError(text, culprit=cause.initial_rank, advice="")  # the message has it
        verdict = self.limit.iteration_ended(
            error_type=cause.error_type or cause.interruption,
            origin=cause.origin,
            raised_at=cause.raised_at,
            step=decision.step if decision.step >= 0 else None,
            culprit=cause.initial_rank,
            counts=not decision.long and cause.initial_rank not in decision.lost,
            message=cause.message,
            behind_step=cause.behind_step,
        )
        self.pause_until = self.now() + verdict.pause if verdict.pause else 0.0
        if not verdict.reached:
            return _lost(self.state, decision)
        text = f"giving up: {verdict.reason}"
        mine = self.failure if cause.initial_rank == self.state.initial_rank else None
        if mine is None:
            return RestartAbort(text, culprit=verdict.culprit)
        add_note(mine, f"nvrx: {text}")
        return mine

    async def _terminate(self, ended: IterationResult) -> None:
        error = await self.ports.plug_ins.terminate()
        if error is not None:
            ended.error = error

    # The barrier

    async def _arrive(self, status: ArrivalStatus, fault: FaultRecord | None = None) -> RoundDecision:
        """Arrive at the end of the round and wait for its decision."""
        view = self.rounds.view
        long = self.now() - self.began >= LONG
        arrival = await self.ports.arrivals.describe_arrival(status, fault, completed=self.completed, long=long)
        await self.ports.status.enter(Stage.ARRIVED)
        await self._carry_out(view, view.round.arrive(arrival, now=self.now()))
        if view.round.iteration >= 0:
            await self.ports.faults.collect_garbage()
        # `view`, not `rounds.view`: the monitor thread goes on to the next round before it shows this one's decision.
        await self._await(view, RoundView.is_decided)
        await self.ports.status.enter(Stage.STARTING)
        assert view.decision is not None
        return view.decision

    async def _await(self, view: RoundView, until: Callable[[RoundView], bool]) -> None:
        """Wait until the monitor thread has made the predicate true, and execute what is due meanwhile."""
        while not until(view):
            due = view.round.tick(now=self.now())
            if due:
                await self._carry_out(view, due)
            if not until(view):
                await self.ports.status.wait(view, until, view.round.deadline)

    async def _carry_out(self, view: RoundView, actions: Iterable[RoundAction]) -> None:
        """Execute the actions of the round's machine.

        Raises:
            BarrierTimeout: when it gives up, and there is no decision after all.
        """
        for action in await run_store_actions(view.round, actions, self.ports.store):
            if isinstance(action, AskHolders):
                holders = await self.ports.status.find_holders(view.round.iteration, action.members)
                await self._carry_out(view, view.round.held_up(holders, now=self.now()))
            elif isinstance(action, LateCompletion):
                await self._announce(view, await self.ports.faults.describe_late(action.reason))
            elif isinstance(action, GiveUp) and await self.ports.store.read_decision(view.round.iteration) is None:
                seconds = view.round.timeouts.barrier
                raise BarrierTimeout(action.reason, barrier="iteration", seconds=seconds)

    # Out of the call

    async def _finish(self, ended: IterationResult) -> None:
        """Report that all ranks have completed, or that this one leaves, even if a signal handler raises meanwhile."""
        try:
            if ended.outcome in _DONE and self.rounds.view.finished:
                failure = await self.ports.plug_ins.complete()
                ended.error = ended.error if failure is None else failure
            else:
                await self.ports.leaving.report_left(ended.error)
        except GeneratorExit:
            raise
        except BaseException as error:  # boundary: the call ends by it
            ended.error = error
        await self._mark_left()

    async def _mark_left(self) -> None:
        """Write that this rank no longer needs the store; the rank that hosts it first waits for all others."""
        view = self.rounds.view
        try:
            await self.ports.leaving.finish_reports()
            await self.ports.store.mark_left(self.state.initial_rank)
            await self.ports.status.enter(Stage.LEFT)
            if self.rules.hosts_store:
                await self.ports.leaving.await_clients(view.round.members, completed=view.finished)
            elif self.rules.store_is_hosted:
                if view.finished:
                    await self.ports.leaving.await_host_closed()
            elif view.finished or self.left_early:
                await self.ports.store.count_out(view.round.iteration, len(view.round.members))
            else:
                await self.ports.store.delete_if_over()
        except StoreFailure:
            return  # its host has ended first: nobody is left who would wait for this rank


def _exit_of(error: BaseException | None, decision: RoundDecision) -> BaseException | None:
    """Return the exception with which this rank leaves before it has entered the function."""
    return given_up(error, decision.exit) if isinstance(error, RestartAbort) else error


def _lost(state: AssignmentState, decision: RoundDecision) -> RankDiscarded | None:
    """Return the error of this rank if the others have declared it lost."""
    if state.initial_rank not in decision.lost:
        return None
    return RankDiscarded(f"initial rank {state.initial_rank} was declared lost by the others", rank=state.rank)


class MonitorThreadFlow:
    """The rounds of one call, as the monitor thread sees them.

    Args:
        rounds: shared with the main thread.
        store: the keys of the rounds, on this thread's connection.
        abort: ends the function.
    """

    def __init__(self, rounds: Rounds, store: RoundStore, abort: FunctionAbortPort) -> None:
        self.rounds, self.store, self.abort = rounds, store, abort

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
            await self.abort.decision_received(view.round.iteration)
            going_on = await self._go_on(view, decision)
            await self.abort.round_decided()

    async def _await_end(self, view: RoundView) -> None:
        """Wait for the event, and end the function if the round restarts."""
        await self.store.await_event(view.round.iteration)
        await self.abort.event_received(view.round.iteration)
        actions = view.round.event_written()
        for action in await run_store_actions(view.round, actions, self.store):
            if isinstance(action, EndFunction):
                await self._end_function(view, action)
            else:
                assert isinstance(action, Finish)
                view.finished = True

    async def _end_function(self, view: RoundView, end: EndFunction) -> None:
        """Interrupt, then abort: a busy main thread would compete with the abort for the interpreter's lock."""
        abort, iteration = self.abort, view.round.iteration
        await abort.notice(iteration)
        if view.round.timeouts.last_call > 0:
            await abort.last_call(view.round.timeouts.last_call)
        await abort.interrupt_function(end.reason)
        await abort.abort_function(iteration)
        view.aborted = True
        await abort.await_out()

    async def _go_on(self, view: RoundView, decision: RoundDecision) -> bool:
        """Continue with the next round; return False if this rank is not part of it."""
        actions = view.round.decided(decision)
        enter = next((action for action in actions if isinstance(action, Enter)), None)
        if enter is not None:
            await self.abort.reset_interrupt()
            self.rounds.advance(enter.members)
        view.decision = decision
        return enter is not None
