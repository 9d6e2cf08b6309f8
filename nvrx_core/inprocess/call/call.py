"""One call of a wrapped function, from entry to exit: the shell of `nvrx_core.inprocess.protocol.main_thread`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

from nvrx_core.errors import StoreLost
from nvrx_core.failpoint import hit
from nvrx_core.fault.exceptions import text_of
from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.call.fault_maker import forget, let_go
from nvrx_core.inprocess.call.parameters import Parameters
from nvrx_core.inprocess.call.rendezvous import leader_of, offer, use
from nvrx_core.inprocess.call.resources import Equipment
from nvrx_core.inprocess.call.user_code import UserCode
from nvrx_core.inprocess.coordination.guests import await_guests
from nvrx_core.inprocess.coordination.interpreter import Rules, interpret
from nvrx_core.inprocess.coordination.store_rules import store_rules
from nvrx_core.inprocess.protocol import effects
from nvrx_core.inprocess.protocol.decision import Arrival, ArrivalStatus
from nvrx_core.inprocess.protocol.main_thread import CallRules, MainThread
from nvrx_core.inprocess.protocol.outcome import IterationResult
from nvrx_core.inprocess.state import State
from nvrx_core.process.forks import inert_in_children, run_in_rank_only
from nvrx_core.process.garbage import collect_garbage
from nvrx_core.progress.page import ProgressField
from nvrx_core.progress.stage import Stage
from nvrx_core.rank_assignment.base import Mode
from nvrx_core.settings.environment import set_ranks

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
        self.step = -1
        self.over = False

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
            kit = self.kit = Equipment(self.parameters, self.number, self.state, self._undone)
            self._code = UserCode(self.parameters, self.state, kit, function)
            self._undone.enter_context(inert_in_children(self))
            flow = MainThread(kit.rounds, self.state, self._settled(), time.monotonic)
            ended: IterationResult = interpret(flow.run(), self._rules(), kit.thread.step)
        set_ranks(self.state.rank, self.state.world_size)
        if ended.error is not None:
            raise ended.error
        return ended.result

    def _settled(self) -> CallRules:
        kit, parameters = self.kit, self.parameters
        return CallRules(
            leader=lambda world_size, terminated: leader_of(parameters, world_size, terminated),
            no_progress_limit=parameters.no_progress_limit,
            meets_on_entry=not kit.links.is_torch_store,
            hosts_store=kit.hosted,
            store_is_hosted=bool(kit.critical),
        )

    def _rules(self) -> Rules:
        kit = self.kit
        return {
            **store_rules(kit.control_store, kit.size),
            **self._code.rules(),
            **self._round_rules(),
            **self._fault_rules(),
            effects.HostRendezvous: lambda effect: kit.links.host_rendezvous(),
            effects.UseRendezvous: lambda effect: use(kit.observer, self.state, effect.endpoint),
            effects.AwaitMonitorProcess: lambda effect: kit.await_monitor(),
            effects.StopHousekeeping: lambda effect: kit.housekeeping.close(),
            effects.AwaitGuests: self._await_guests,
            effects.AwaitHostClosed: lambda effect: kit.links.wait_host_closed(),
        }

    def _await_guests(self, effect: effects.AwaitGuests) -> None:
        control_store, parameters = self.kit.control_store, self.parameters
        with suppress(effects.StoreFailure):
            if effect.completed:
                control_store.wait_left(effect.members, parameters.barrier_timeout)
            else:
                log.warning("this rank hosts the control store and stays until the others need it no longer")
                await_guests(control_store, range(self.kit.size), parameters.heartbeat_timeout.total_seconds())

    # A round

    def _round_rules(self) -> Rules:
        kit = self.kit
        return {
            effects.Await: self._await,
            effects.EnterStage: self._enter,
            effects.LoseMembers: self._lose,
            effects.BeginIteration: lambda effect: kit.begin(self.state),
            effects.DescribeArrival: self._arrival,
            effects.FindHolders: lambda effect: kit.control_store.holders(effect.iteration, effect.members, kit.member),
            effects.LogWaiting: lambda effect: log.warning("%s", effect.reason),
            effects.CollectGarbage: lambda effect: collect_garbage(),
            effects.RoundEnded: lambda effect: kit.end_round(effect.view),
        }

    def _await(self, effect: effects.Await) -> None:
        """Wait for the monitor thread, where a signal reaches this one."""
        view, until, early_exit = effect.view, effect.until, self.kit.early_exit
        changed = self.kit.thread.changed
        with changed:
            while not until(view) and early_exit.reason is None and (now := time.monotonic()) < effect.deadline:
                changed.wait(min(effect.deadline - now, threading.TIMEOUT_MAX))
        if early_exit.reason is not None and not until(view):
            raise early_exit.reason()

    def _enter(self, effect: effects.EnterStage) -> None:
        if effect.stage is Stage.ARRIVED:
            hit("barrier-before", self.kit.rounds.view.round.iteration)
        self.kit.enter(effect.stage)

    def _lose(self, effect: effects.LoseMembers) -> None:
        self.kit.mark("decided")
        self.kit.page.lose(effect.members)

    def _arrival(self, effect: effects.DescribeArrival) -> Arrival:
        state, sample, standing = self.state, self.kit.sample, effect.standing
        progress = sample.progress if state.mode is Mode.ACTIVE else None
        return Arrival(
            initial_rank=state.initial_rank, rank=state.rank, standing=standing, world_size=state.world_size,
            fault=effect.fault, step=self.step, progress=progress, stalled=sample.stalled,
            completed=effect.completed, keys=self._code.keys,
            place=offer(self.kit.links, self.parameters) if standing is ArrivalStatus.ALIVE else "",
        )  # fmt: skip

    # A fault

    def _fault_rules(self) -> Rules:
        kit = self.kit
        return {
            effects.MakeFault: lambda effect: kit.faults.of(effect.error, self.state.rank, kit.struck),
            effects.LateFault: self._late_fault,
            effects.ReportAnnounced: lambda effect: kit.tell(effect.fault),
            effects.ClearFrames: self._clear_frames,
            effects.ReleaseFailure: lambda effect: forget(effect.error),
            effects.ReleaseGroups: self._release_groups,
            effects.ReportLeft: self._report_left,
            effects.LoseStore: self._lose_store,
            effects.Abandon: self._abandon,
        }

    def _late_fault(self, effect: effects.LateFault) -> FaultRecord:
        return self.kit.faults.late_completion(effect.reason, self.state.rank, time.monotonic())

    def _clear_frames(self, effect: effects.ClearFrames) -> None:
        effect.ended.result = None
        let_go(effect.ended.error)
        if not effect.keep_trace:
            forget(effect.ended.error)

    def _release_groups(self, effect: effects.ReleaseGroups) -> None:
        kit = self.kit
        let_go(effect.ended.error)
        kit.page[ProgressField.EXITED] = self.state.iteration + 1
        kit.sample.take(self.state.iteration)
        if self.parameters.abort is not None:  # the user's own is for faults, and this is none
            kit.observer.abort_groups()
        kit.observer.release()

    def _report_left(self, effect: effects.ReportLeft) -> None:
        reason = text_of(effect.error) if effect.error is not None else ""
        self.kit.events.write("left", self.state.iteration, reason=reason)

    def _lose_store(self, effect: effects.LoseStore) -> StoreLost:
        self.kit.lose_store(effect.reason)
        return self.kit.store_lost()

    def _abandon(self, effect: effects.Abandon) -> None:
        log.warning("initial rank %d leaves: %s", self.state.initial_rank, text_of(effect.error))
        self.kit.enter(Stage.EXITED_ABNORMALLY)
