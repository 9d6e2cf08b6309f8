"""The flow of a rank's main thread through one call: its iterations, from entry to exit. Pure.

Its store operations are single and quick. For everything that depends on another rank it waits for the monitor thread,
in a wait that a signal interrupts, no longer than the round's deadline.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from nvrx_core.errors import BarrierTimeout, JobMismatch, RankDiscarded, RestartAbort, StoreLost
from nvrx_core.fault.exceptions import add_note
from nvrx_core.fault.record import JOB_MISMATCH, FaultRecord
from nvrx_core.fault.retry_limit import LONG, NoProgressLimit
from nvrx_core.inprocess.protocol import effects
from nvrx_core.inprocess.protocol.actions import Action, Announce, AskHolders, GiveUp, LateCompletion, WaitFor
from nvrx_core.inprocess.protocol.call_rules import CallRules
from nvrx_core.inprocess.protocol.decision import ArrivalStatus, Decision
from nvrx_core.inprocess.protocol.effects import Flow, StoreFailure
from nvrx_core.inprocess.protocol.outcome import IterationResult, Outcome, given_up
from nvrx_core.inprocess.protocol.play import play
from nvrx_core.inprocess.protocol.view import Rounds, RoundView
from nvrx_core.progress.stage import Stage
from nvrx_core.rank_assignment.base import State

__all__ = ["MainThread"]

_UNTOLD = (StoreLost, BarrierTimeout, GeneratorExit)
"""What ends a call without a word to the others: they know, or nobody can tell them."""
_DONE = (Outcome.RETURNED, Outcome.EXITED, Outcome.RESERVE)
_LEAVES = (Outcome.LEFT, Outcome.EXITED)
"""Outcomes with which the rank leaves the job, whatever the others do."""
Endpoint = tuple[str, int]


class MainThread:
    """One call.

    Args:
        rounds: shared with the monitor thread.
        state: the state of this rank; `Assign` changes it.
        rules: the rules of the call.
        now: monotonic seconds.
    """

    def __init__(self, rounds: Rounds, state: State, rules: CallRules, now: Callable[[], float]) -> None:
        self.rounds, self.state, self.rules, self.now = rounds, state, rules, now
        self.limit = NoProgressLimit(rules.no_progress_limit)
        self.endpoint: Endpoint | None = None
        self.failure: BaseException | None = None
        self.ended: IterationResult | None = None
        self.completed = self.left_early = False
        self.began, self.pause_until = math.inf, 0.0

    def run(self) -> Flow[IterationResult]:
        """Run the function until all ranks have completed it, or this rank leaves; return the result.

        Raises:
            StoreLost: when the store is lost, and this rank was not about to leave.
            BaseException: the exception of an early exit.
        """
        try:
            ended = yield from self._iterations()
        except (StoreFailure, StoreLost) as loss:
            ended = yield from self._without_store(loss)
        except BaseException as error:  # boundary: whatever ends the call out of turn, the others are told
            if not isinstance(error, _UNTOLD):
                yield effects.Abandon(error)
            raise
        yield from self._finish(ended)
        return ended

    def _without_store(self, loss: StoreFailure | StoreLost) -> Flow[IterationResult]:
        """Return how this rank leaves, if it was about to: it has said why it ends, and needs no other rank for that.

        Raises:
            StoreLost: when it was not.
        """
        lost = loss if isinstance(loss, StoreLost) else (yield effects.LoseStore(str(loss)))
        if self.ended is not None and self.ended.how in _LEAVES:
            return self.ended
        if self.ended is not None and self.failure is None:  # a failure that was not announced: nobody has logged it
            yield effects.ClearFrames(self.ended, True)
        raise lost from None

    def _iterations(self) -> Flow[IterationResult]:
        ended = IterationResult(Outcome.LEFT)
        ended.error = yield effects.DeclareKeys(-1)
        leaving = ended.error is not None
        self.ended = ended if leaving else None
        decision = yield from self._arrive(ArrivalStatus.LEAVING if leaving else ArrivalStatus.ALIVE)
        if leaving or _is_lost(self.state, decision, ended):
            yield from self._terminate(ended)
            return ended
        while True:
            early = yield from self._prepare(decision)
            ended = self.ended = early or (yield from self._execute(decision))
            if early is None and ended.how in _DONE and (yield from self._complete(ended)):
                return ended
            following = yield from (self._leave_early(ended) if early else self._restart(ended))
            if following is None:
                yield from self._terminate(ended)
                return ended
            decision = following

    # Into an iteration

    def _prepare(self, decision: Decision) -> Flow[IterationResult | None]:
        """Take the rank that the decision assigns; return the result of this rank if it leaves instead."""
        yield effects.LoseMembers(decision.lost)
        offered = decision.endpoint_of(self.rules.leader(self.state.world_size, decision.terminated))
        error = yield effects.Assign(decision)
        if error is not None:
            return IterationResult(Outcome.LEFT, error=_exit_of(error, decision))
        if decision.iteration >= 0 or self.rules.meets_on_entry:
            yield from self._provide_rendezvous(offered)
        yield effects.BeginIteration()
        self.completed, self.began = False, self.now()
        return None

    def _provide_rendezvous(self, offered: Endpoint | None) -> Flow[None]:
        """Provide the rendezvous of the next process group, at the endpoint that its rank 0 has offered."""
        state, endpoint = self.state, offered
        if state.active_rank == 0:
            hosted = yield effects.HostRendezvous()
            if endpoint is None:
                yield effects.SetRendezvous(state.iteration, hosted)
        if endpoint is None and state.active_rank is not None:
            yield effects.EnterStage(Stage.WAITING)
            endpoint = yield effects.AwaitRendezvous(state.iteration)
            yield effects.EnterStage(Stage.STARTING)
        yield effects.UseRendezvous(endpoint)
        self.endpoint = endpoint

    def _execute(self, decision: Decision) -> Flow[IterationResult]:
        yield from self._back_off()
        early: IterationResult | None = yield effects.Initialize()
        if early is not None:
            early.error = _exit_of(early.error, decision)
            return early
        if self.state.iteration > 0 and self.endpoint is None:  # rank 0 is lost, and its fault is told
            yield effects.EnterStage(Stage.WAITING)
            yield from self._await(self.rounds.view, RoundView.is_aborted)
        ended: IterationResult = yield effects.RunFunction()
        return ended

    def _back_off(self) -> Flow[None]:
        """Wait before a restart that follows equal failures, unless the round has its event already."""
        view = self.rounds.view
        if self.now() >= self.pause_until:
            return
        yield effects.EnterStage(Stage.WAITING)
        while self.now() < self.pause_until and not view.is_aborted():
            yield effects.Await(view, RoundView.is_aborted, self.pause_until)
        yield effects.EnterStage(Stage.STARTING)

    # Out of an iteration

    def _complete(self, ended: IterationResult) -> Flow[bool]:
        """Wait until all ranks have completed; return False if the round restarts instead."""
        view = self.rounds.view
        yield effects.EnterStage(Stage.WAITING)
        if ended.how is Outcome.EXITED:
            yield effects.ReleaseGroups(ended)
        yield from self._play(view, view.round.completed(now=self.now()))
        self.completed = True
        if ended.how is not Outcome.RESERVE:
            yield from self._play(view, view.round.waits_for_completion(now=self.now()))
        yield from self._await(view, RoundView.is_over)
        return view.finished

    def _restart(self, ended: IterationResult) -> Flow[Decision | None]:
        """Pass the round's barrier; return the decision, or None if this rank leaves (with `ended.error`)."""
        view, fault = self.rounds.view, None
        if ended.how in (Outcome.FAILED, Outcome.LEFT):
            fault = yield from self._announce(view, ended)
        yield from self._await(view, RoundView.is_aborted)
        yield effects.RoundEnded(view)
        leaving = yield from self._recover(ended, view.round.iteration)
        decision = yield from self._arrive(ArrivalStatus.LEAVING if leaving else ArrivalStatus.ALIVE, fault)
        ends = leaving or _contradicts(decision, ended) or self._is_out_of_retries(decision, ended)
        if ends or _is_lost(self.state, decision, ended):
            return None
        yield effects.ReleaseFailure(self.failure)
        self.failure = self.ended = None
        yield effects.CollectPostponed()
        return decision

    def _announce(self, view: RoundView, ended: IterationResult) -> Flow[FaultRecord]:
        """Announce this rank's fault, before anything that can block."""
        assert ended.error is not None
        fault: FaultRecord = yield effects.MakeFault(ended.error)
        actions = view.round.fault(fault, now=self.now())
        yield from self._play(view, actions)
        if Announce(fault) in actions:
            yield effects.ReportAnnounced(fault)
        return fault

    def _recover(self, ended: IterationResult, iteration: int) -> Flow[bool]:
        """Prepare for the next iteration; return True if this rank leaves instead."""
        failed = ended.how is Outcome.FAILED
        self.failure = ended.error if failed else None
        yield effects.ClearFrames(ended, failed or ended.how in _LEAVES)
        if ended.how in _LEAVES:
            return True
        ended.error = yield effects.Recover(self.failure)
        if ended.error is None:
            ended.error = yield effects.DeclareKeys(iteration)
        if ended.error is not None:
            ended.how = Outcome.LEFT
        return ended.how is Outcome.LEFT

    def _leave_early(self, ended: IterationResult) -> Flow[None]:
        """Leave a round that continues without this rank; it restarts if the others rely on this rank."""
        view, fault = self.rounds.view, None
        self.left_early = True
        yield effects.ClearFrames(ended, True)
        if not isinstance(ended.error, RankDiscarded):
            fault = yield from self._announce(view, ended)
            yield effects.SetRendezvous(view.round.iteration, "")
        arrival = yield effects.DescribeArrival(ArrivalStatus.LEAVING, fault, False, False)
        yield from self._play(view, view.round.leave(arrival, now=self.now()))

    def _is_out_of_retries(self, decision: Decision, ended: IterationResult) -> bool:
        cause = decision.cause
        if cause is None:
            return False
        verdict = self.limit.iteration_ended(
            error_type=cause.error_type or cause.interruption,
            origin=cause.origin,
            step=decision.step if decision.step >= 0 else None,
            culprit=cause.initial_rank,
            counts=not decision.long and cause.initial_rank not in decision.lost,
        )
        self.pause_until = self.now() + verdict.pause if verdict.pause else 0.0
        if verdict.reached:
            told = f"giving up: {verdict.reason}"
            mine = self.failure if cause.initial_rank == self.state.initial_rank else None
            if mine is not None:
                add_note(mine, f"nvrx: {told}")
            ended.error = mine or RestartAbort(told, culprit=verdict.culprit)
        return verdict.reached

    def _terminate(self, ended: IterationResult) -> Flow[None]:
        error: BaseException | None = yield effects.Terminate()
        if error is not None:
            ended.error = error

    # The barrier

    def _arrive(self, status: ArrivalStatus, fault: FaultRecord | None = None) -> Flow[Decision]:
        """Arrive at the end of the round and wait for its decision."""
        view = self.rounds.view
        arrival = yield effects.DescribeArrival(status, fault, self.completed, self.now() - self.began >= LONG)
        yield effects.EnterStage(Stage.ARRIVED)
        yield from self._play(view, view.round.arrive(arrival, now=self.now()))
        if view.round.iteration >= 0:
            yield effects.CollectGarbage()
        yield from self._await(view, RoundView.is_decided)
        yield effects.EnterStage(Stage.STARTING)
        assert view.decision is not None
        return view.decision

    def _await(self, view: RoundView, until: Callable[[RoundView], bool]) -> Flow[None]:
        """Wait until the monitor thread has made the predicate true, and execute what is due meanwhile."""
        while not until(view):
            due = view.round.tick(now=self.now())
            if due:
                yield from self._play(view, due)
            if not until(view):
                yield effects.Await(view, until, view.round.deadline)

    def _play(self, view: RoundView, actions: Iterable[Action]) -> Flow[None]:
        """Execute the actions of the round's machine.

        Raises:
            BarrierTimeout: when it gives up, and there is no decision after all.
        """
        rest: list[Action] = yield from play(view.round, actions, self.now)
        for action in rest:
            if isinstance(action, AskHolders):
                holders = yield effects.FindHolders(view.round.iteration, action.members)
                yield from self._play(view, view.round.held_up(holders, now=self.now()))
            elif isinstance(action, WaitFor):
                yield effects.LogWaiting(action.reason)
            elif isinstance(action, LateCompletion):
                fault = yield effects.LateFault(action.reason)
                yield from self._play(view, view.round.fault(fault, now=self.now()))
                yield effects.ReportAnnounced(fault)
            elif isinstance(action, GiveUp) and (yield effects.ReadDecision(view.round.iteration)) is None:
                seconds = view.round.timeouts.barrier
                raise BarrierTimeout(action.reason, barrier="iteration", seconds=seconds)

    # Out of the call

    def _finish(self, ended: IterationResult) -> Flow[None]:
        """Report that all ranks have completed, or that this one leaves, even if a signal handler raises meanwhile."""
        try:
            if ended.how in _DONE and self.rounds.view.finished:
                failure: BaseException | None = yield effects.Complete()
                ended.error = ended.error if failure is None else failure
            else:
                yield effects.ReportLeft(ended.error)
        except GeneratorExit:
            raise
        except BaseException as error:  # boundary: the call ends by it
            ended.error = error
        yield from self._say_left()

    def _say_left(self) -> Flow[None]:
        """Write that this rank no longer needs the store; the rank that hosts it first waits for all others."""
        view = self.rounds.view
        yield effects.StopHousekeeping()
        try:
            yield effects.MarkLeft(self.state.initial_rank)
            yield effects.EnterStage(Stage.LEFT)
            if self.rules.hosts_store:
                yield effects.AwaitClients(view.round.members, view.finished)
            elif self.rules.store_is_hosted:
                if view.finished:
                    yield effects.AwaitHostClosed()
            elif view.finished or self.left_early:
                yield effects.CountOut(view.round.iteration, len(view.round.members))
            else:
                yield effects.DeleteIfOver()
        except StoreFailure:
            return  # its host has ended first: nobody is left who would wait for this rank


def _exit_of(error: BaseException | None, decision: Decision) -> BaseException | None:
    """Return the exception with which this rank leaves before it has entered the function."""
    return given_up(error, decision.exit) if isinstance(error, RestartAbort) else error


def _is_lost(state: State, decision: Decision, ended: IterationResult) -> bool:
    """Whether the others have declared this rank lost."""
    lost = state.initial_rank in decision.lost
    if lost:
        reason = f"initial rank {state.initial_rank} was declared lost by the others"
        ended.error = RankDiscarded(reason, rank=state.rank)
    return lost


def _contradicts(decision: Decision, ended: IterationResult) -> bool:
    """Whether the decision's cause is a contradiction between the ranks, which ends the job."""
    cause = decision.cause
    if cause is None or cause.error_type != JOB_MISMATCH:
        return False
    ended.error = JobMismatch(cause.message)
    return True
