"""One call of a wrapped function: its iterations, from entry to exit.

The shell around `Round` in the main thread: it runs the function, and goes through the barrier to the next iteration.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from nvrx_core.errors import BarrierTimeout, HealthCheckError, RankDiscarded, RestartAbort, StoreLost
from nvrx_core.failpoint import hit
from nvrx_core.inprocess.barrier import Barrier
from nvrx_core.inprocess.board import StoreFailure
from nvrx_core.inprocess.decision import Arrival, Decision, Standing
from nvrx_core.inprocess.environment import set_ranks
from nvrx_core.inprocess.equipment import Equipment
from nvrx_core.inprocess.fault import Fault
from nvrx_core.inprocess.faults import forget, let_go, text_of
from nvrx_core.inprocess.forks import EndedInChild, inert_in_children, run_in_rank_only
from nvrx_core.inprocess.meeting import foretold, meet, offer
from nvrx_core.inprocess.monitor_thread import RoundView
from nvrx_core.inprocess.outcome import Ended, How, RankShouldRestart, how_it_ended
from nvrx_core.inprocess.retry_limit import NoProgressLimit
from nvrx_core.inprocess.rules import Parameters
from nvrx_core.inprocess.state import State
from nvrx_core.progress.page import Word
from nvrx_core.progress.stage import Stage
from nvrx_core.rank_assignment.base import Mode, RankAssignmentCtx
from nvrx_core.rank_assignment.composition import assign, declare, snapshot

__all__ = ["Call"]

log = logging.getLogger("nvrx_core.inprocess")


class Call:
    """One call.

    Args:
        parameters: the wrapper's.
        number: which call of this process it is.
    """

    def __init__(self, parameters: Parameters, number: int) -> None:
        self.parameters, self.number = parameters, number
        self.state = State.from_env()
        self.limit = NoProgressLimit(parameters.no_progress_limit)
        self.step = -1
        self.place: tuple[str, int] | None = None
        self.failure: BaseException | None = None
        self.keys: tuple[str, ...] = ()
        self.over = self.completed = False

    def run(self, function: Callable[[], Any]) -> Any:
        """Run the function until all ranks have completed it.

        Raises:
            BaseException: what the function raised to leave, or what ends the job.
        """
        return run_in_rank_only(self._run, function)

    def disown(self) -> None:
        """In a child of `os.fork`: nothing of this call is undone there, and all of it stays as it is, out of use."""
        self.over = True
        self.kit.disown(self._undone.pop_all())

    def _run(self, function: Callable[[], Any]) -> Any:
        with ExitStack() as self._undone:
            self.kit = Equipment(self.parameters, self.number, self.state, self._undone)
            self.barrier = Barrier(self.kit)
            self._undone.enter_context(inert_in_children(self))
            try:
                ended = self._iterations(function)
            except StoreFailure as failure:
                self.kit.lose_store(str(failure))
                raise self.kit.store_lost() from None
            except EndedInChild:
                raise
            except BaseException as error:  # boundary: whatever ends the call, the others are told
                self._break_away(error)
                raise
            self._farewell(ended)
        set_ranks(self.state.rank, self.state.world_size)
        if ended.error is not None:
            raise ended.error
        return ended.result

    def _iterations(self, function: Callable[[], Any]) -> Ended:
        ended = Ended(How.LEFT)
        leaving = self._declare(ended, -1)
        decision = self._arrive(Standing.LEAVING if leaving else Standing.ALIVE)
        if leaving or self._expelled(decision, ended):
            self._terminate(ended)
            return ended
        while True:
            early = self._prepare(decision)
            ended = early or self._execute(function)
            if early is None and ended.how in (How.RETURNED, How.EXITED, How.RESERVE) and self._complete(ended):
                return ended
            following = self._restart(ended, early=early is not None)
            if following is None:
                return ended
            decision = following

    # Between two iterations

    def _prepare(self, decision: Decision) -> Ended | None:
        """Take the place that the decision gives; how this rank leaves instead, if it does."""
        state, kit = self.state, self.kit
        kit.page.lose(decision.lost)
        place = foretold(self.parameters, state.world_size, decision)
        try:
            store = kit.assignment_store(decision.iteration + 1)
            ranks, terminated = self.parameters.rank_assignment, set(decision.terminated)
            round_, keys = decision.iteration, decision.keys
            facts = snapshot(ranks, state.freeze(), iteration=round_, terminated=terminated, columns=keys)
            assign(ranks, RankAssignmentCtx(state, store, terminated, facts))
            if self.parameters.rank_filter is not None:
                self.parameters.rank_filter(RankAssignmentCtx(state, store, set()))
        except BaseException as error:  # boundary: a user's rank assignment; whatever it raises, the rank leaves
            state.mode = Mode.TERMINATED
            return Ended(How.LEFT, error=error)
        if decision.iteration >= 0:
            state.advance()
        state.set_distributed_vars()
        if decision.iteration >= 0 or not kit.links.torchs:
            self.place = meet(kit, state, place)
        if decision.iteration < 0:
            kit.await_monitor()
        kit.begin(state)
        self.completed = False
        kit.mark("assigned")
        return None

    def _execute(self, function: Callable[[], Any]) -> Ended:
        """Run the function once; every way out of it ends here."""
        kit = self.kit
        try:
            return self._armed(function)
        except (EndedInChild, StoreLost):
            raise
        except BaseException as error:  # boundary: the wrapped function
            return self._ended_by(error)
        finally:
            kit.struck = time.monotonic()
            kit.interrupt.armed = False
            kit.enter(Stage.UNWINDING)
            kit.interrupt.leave()

    def _ended_by(self, error: BaseException) -> Ended:
        kit = self.kit
        landed = kit.aborting or kit.interrupt.raised > 0
        how = how_it_ended(error, requested=kit.interrupt.requested, landed=landed)
        if isinstance(error, RankShouldRestart):
            kit.report_restart()
        if how is How.INTERRUPTED:
            kit.mark("interrupted")
        return Ended(how, error=error)

    def _armed(self, function: Callable[[], Any]) -> Ended:
        kit, parameters = self.kit, self.parameters
        kit.observer.clear_groups()
        if parameters.initialize is not None:
            parameters.initialize(self.state.freeze())
        try:
            self._check_health()
        except HealthCheckError as error:
            return Ended(How.LEFT, error=error)
        kit.mark("initialized")
        if self.state.mode is not Mode.ACTIVE:
            self._entered()
            return Ended(How.RESERVE)
        kit.observer.begin()
        kit.threads.begin(self.state.iteration)
        kit.enter(Stage.RUNNING)
        hit("entry-before", self.state.iteration)
        if self.state.iteration > 0 and self.place is None:
            self._await_event()
        try:
            kit.interrupt.arm()
            if kit.departure.reason is not None:
                raise kit.departure.reason()
            self._entered()
            return Ended(How.RETURNED, result=function())
        finally:  # in this order, and nothing before them
            kit.interrupt.armed = False
            kit.interrupt.drop()

    def _await_event(self) -> None:
        """The new rank 0 is lost, and its fault is told: there is nowhere to meet, and no function to enter."""
        view = self.kit.thread.view
        self.kit.enter(Stage.WAITING)
        self.barrier.wait(view, lambda: view.aborted)

    def _entered(self) -> None:
        self.kit.mark("entered")
        self.kit.report_restart()
        self.kit.housekeeping.entered(self.state)
        self.kit.marks = {}

    def _check_health(self) -> None:
        if self.parameters.health_check is None:
            return
        try:
            self.parameters.health_check(self.state.freeze())
        except Exception as error:  # boundary: a user's health check
            message = f"health check failed: {text_of(error)}"
            raise HealthCheckError(message, initial_rank=self.state.initial_rank) from error

    # The end of an iteration

    def _complete(self, ended: Ended) -> bool:
        """Wait until all ranks have completed; False when the round restarts instead."""
        kit, view = self.kit, self.kit.thread.view
        kit.enter(Stage.WAITING)
        if ended.how is How.EXITED:
            let_go(ended.error)
            kit.page[Word.EXITED] = self.state.iteration + 1
            kit.sample.take(self.state.iteration)
            if self.parameters.abort is not None:  # the user's own is for faults, and this is none
                kit.observer.abort_groups()
            kit.observer.release()
        self.barrier.play(view, view.round.completed(now=time.monotonic()))
        self.completed = True
        if ended.how is not How.RESERVE:
            view.round.waits_for_completion(now=time.monotonic())
        self.barrier.wait(view, lambda: view.finished or view.aborted)
        return view.finished

    def _restart(self, ended: Ended, *, early: bool) -> Decision | None:
        """Go through the round's barrier; the decision, or None when this rank leaves (with `ended.error`)."""
        view = self.kit.thread.view
        leaving = ended.how in (How.LEFT, How.EXITED)
        fault = self._tell(view, ended) if ended.how in (How.FAILED, How.LEFT) and not early else None
        if not early:
            self.barrier.wait(view, lambda: view.aborted)
            self.kit.end_round(view)
        self.failure = ended.error if ended.how is How.FAILED else None
        let_go(ended.error)
        if not leaving:
            if self.failure is None:
                forget(ended.error)
            ended.error = None
            leaving = self._recover(ended) or self._declare(ended, view.round.iteration)
        if early:
            self._leave_early(view, ended)
            self._terminate(ended)
            return None
        decision = self._arrive(Standing.LEAVING if leaving else Standing.ALIVE, fault)
        if not leaving:
            leaving = self._out_of_retries(decision, ended) or self._expelled(decision, ended)
        if leaving:
            self._terminate(ended)
            return None
        forget(self.failure)
        self.failure = None
        return decision

    def _tell(self, view: RoundView, ended: Ended) -> Fault:
        """Announce this rank's fault, before anything that can block."""
        assert ended.error is not None
        fault = self.kit.faults.of(ended.error, self.state.rank, self.kit.struck)
        actions = view.round.fault(fault, now=time.monotonic())
        self.barrier.play(view, actions)
        if actions:
            self.kit.tell(fault)
        return fault

    def _recover(self, ended: Ended) -> bool:
        """Finalize and check health; True when that failed and the rank leaves."""
        self.state.fn_exception = self.failure
        try:
            if self.parameters.finalize is not None:
                self.parameters.finalize(self.state.freeze())
            self.kit.mark("finalized")
            self._check_health()
            self.kit.mark("health_checked")
        except BaseException as error:  # boundary: a user's plug-in; whatever it raises, the rank leaves
            ended.error = error
            return True
        finally:
            self.state.fn_exception = None
        return False

    def _declare(self, ended: Ended, iteration: int) -> bool:
        """Evaluate the keys that the others need; True when that failed and the rank leaves."""
        try:
            self.keys = declare(self.parameters.rank_assignment, self.state, iteration)
        except BaseException as error:  # boundary: a user's key function; whatever it raises, the rank leaves
            ended.error = error
            return True
        return False

    def _leave_early(self, view: RoundView, ended: Ended) -> None:
        """Leave a round that goes on without this rank; it restarts when the others count on this rank."""
        fault = None
        if not isinstance(ended.error, RankDiscarded):
            fault = self._tell(view, ended)
            self.kit.board.set_master(view.round.iteration, "")
        self.barrier.play(view, view.round.leave(self._arrival(Standing.LEAVING, fault), now=time.monotonic()))

    def _out_of_retries(self, decision: Decision, ended: Ended) -> bool:
        cause = decision.cause
        if cause is None:
            return False
        step = decision.step if decision.step >= 0 else None
        verdict = self.limit.iteration_ended(
            error_type=cause.error_type or cause.interruption,
            origin=cause.origin,
            step=step,
            culprit=cause.initial_rank,
        )
        if verdict.reached:
            mine = cause.initial_rank == self.state.initial_rank and self.failure is not None
            ended.error = (
                self.failure if mine else RestartAbort(f"giving up: {verdict.reason}", culprit=verdict.culprit)
            )
        return verdict.reached

    def _expelled(self, decision: Decision, ended: Ended) -> bool:
        lost = self.state.initial_rank in decision.lost
        if lost:
            ended.error = RankDiscarded(
                f"initial rank {self.state.initial_rank} was declared lost by the others", rank=self.state.rank
            )
        return lost

    def _terminate(self, ended: Ended) -> None:
        if self.parameters.terminate is not None:
            try:
                self.parameters.terminate(self.state.freeze())
            except BaseException as error:  # boundary: a user's plug-in; its exception replaces the original
                ended.error = error

    def _arrive(self, standing: Standing, fault: Fault | None = None) -> Decision:
        return self.barrier.arrive(self._arrival(standing, fault))

    def _arrival(self, standing: Standing, fault: Fault | None) -> Arrival:
        state, sample = self.state, self.kit.sample
        progress = sample.progress if state.mode is Mode.ACTIVE else None
        return Arrival(
            initial_rank=state.initial_rank, rank=state.rank, standing=standing, world_size=state.world_size,
            fault=fault, step=self.step, progress=progress, stalled=sample.stalled,
            completed=self.completed, keys=self.keys,
            place=offer(self.kit.links, self.parameters) if standing is Standing.ALIVE else "",
        )  # fmt: skip

    # The end of the call

    def _farewell(self, ended: Ended) -> None:
        """All ranks are done, or this one leaves: the completion callback, then the barrier before the exit."""
        try:
            if ended.how in (How.RETURNED, How.EXITED, How.RESERVE) and self.kit.thread.view.finished:
                self.kit.events.write("completed", self.state.iteration)
                self._completion()
            else:
                self.kit.events.write(
                    "left", self.state.iteration, reason=text_of(ended.error) if ended.error is not None else ""
                )
        finally:
            self._say_farewell()

    def _say_farewell(self) -> None:
        try:
            self.kit.leave(completed=self.kit.thread.view.finished)
        except StoreFailure as failure:
            log.debug("the store went before this rank had said farewell: %s", failure)

    def _break_away(self, error: BaseException) -> None:
        """Leave out of turn; the monitor process tells the others."""
        if not isinstance(error, (StoreLost, BarrierTimeout)):
            log.warning("initial rank %d leaves: %s", self.state.initial_rank, text_of(error))
            self.kit.enter(Stage.GONE)

    def _completion(self) -> None:
        if self.parameters.completion is not None:
            try:
                self.parameters.completion(self.state.freeze())
            except Exception:  # boundary: a user's completion must not undo a completed job
                log.exception("completion failed")
