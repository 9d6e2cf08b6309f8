"""How a monitor process judges its rank: hung, stalled by a call that holds the GIL, or exited and waited for. Pure.

The machines decide; these flows provide their inputs and execute their decisions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import assert_never

from nvrx_core.inprocess.monitor.policies import (
    CleanExitPolicy,
    GilStallAction,
    GilStallPolicy,
    MarkRoundOver,
    QueryRoundEvent,
    Question,
    RenewConnections,
    UnheardRoundPolicy,
)
from nvrx_core.inprocess.monitor.ports import WatchPorts
from nvrx_core.inprocess.protocol.ports import StoreFailure
from nvrx_core.liveness.hang_detector import (
    Excuse,
    HangAction,
    HangDetector,
    KillRank,
    QueryPeers,
    SendSignal,
    SoftTimeout,
    TerminateRank,
)
from nvrx_core.progress.limits import ProgressSample
from nvrx_core.values import value

__all__ = ["Judges", "Judging", "Stall"]

MonitorAction = HangAction | GilStallAction | RenewConnections
Clock = Callable[[], float]


@value
class Stall:
    """The stall of a living rank that blocks the others.

    Attributes:
        iteration: the round; the rank may be about to enter the next one.
        reason: for people.
        silent: no thread of the rank runs, so that it cannot say where it is.
    """

    iteration: int
    reason: str
    silent: bool = False


@dataclass
class Judges:
    """The machines that judge one rank; times are in awake seconds."""

    hangs: HangDetector
    gil_stalls: GilStallPolicy
    clean_exit: CleanExitPolicy
    unheard: UnheardRoundPolicy = field(default_factory=lambda: UnheardRoundPolicy(math.inf))

    @property
    def deadline(self) -> float:
        """When to judge again at the latest."""
        return min(self.hangs.deadline, self.gil_stalls.deadline, self.clean_exit.deadline, self.unheard.deadline)


class Judging:
    """The judgement of one rank.

    Args:
        judges: the machines.
        ports: of the watch.
        now: awake seconds.

    Attributes:
        ended_for: why the rank was ended; None if it was not.
    """

    def __init__(self, judges: Judges, ports: WatchPorts, now: Clock) -> None:
        self.judges, self.ports, self.page, self.now = judges, ports, ports.page, now
        self.ended_for: str | None = None
        self._stragglers_of = self._reported = -1
        self._sample: ProgressSample | None = None

    async def judge(self) -> Stall | None:
        """Judge the rank, and signal or end it if that is due; return what must be announced to all ranks."""
        hangs, stall, asks = self.judges.hangs, None, True
        while asks:
            now = self.now()
            sample = self._sample = await self.ports.rank.sample(self.judges.gil_stalls.out_by)
            actions = hangs.evaluate(sample, now=now)
            asks = QueryPeers() in actions
            for action in actions:
                await self._carry_out(action, sample.iteration, now)
                if isinstance(action, SoftTimeout):
                    silent = sample.stopped or now >= sample.watchdog_alive_at + self.judges.gil_stalls.silent
                    stall = Stall(sample.iteration, action.reason, silent)
        if stall is not None:
            self._sample = None  # to announce it takes time
        return stall

    async def report_hang(self, iteration: int) -> None:
        """Report once where the rank is, whose threads do not run, if a soft timeout has ended the round."""
        if self._reported != iteration:
            self._reported = iteration
            with suppress(StoreFailure):
                await self.ports.store.report_hang(iteration)

    async def help_stalled(self) -> None:
        """Notify a rank whose threads do not run that its round is over; follows `judge`."""
        now, sample = self.now(), self._sample or await self.ports.rank.sample(math.inf)
        for action in self.judges.gil_stalls.evaluate(sample, now=now):
            await self._carry_out(action, sample.iteration, now)

    async def check_round(self) -> None:
        """Find out whether the round goes on without a rank that does not hear of it; follows `help_stalled`.

        Raises:
            StoreFailure: when the store does not answer.
        """
        now, sample, policy = self.now(), self._sample or await self.ports.rank.sample(math.inf), self.judges.unheard
        question = policy.question(sample, now=now)
        if question is not None:
            store, is_event = self.ports.store, question is Question.EVENT
            if await (store.has_event(sample.iteration) if is_event else store.has_decision(sample.iteration)):
                policy.is_over(now=now)
        for action in policy.actions(sample, now=now):
            if isinstance(action, TerminateRank):
                self.judges.hangs.terminate(action.reason, now=now)
            await self._carry_out(action, sample.iteration, now)

    async def look_who_waits(self) -> Stall | None:
        """Return what to announce if others wait in a rendezvous for a rank that has exited.

        Raises:
            StoreFailure: when the store does not answer.
        """
        page, policy, iteration = self.page, self.judges.clean_exit, self.page.exited
        if not policy.due(iteration, now=self.now()) or iteration is None:
            return None
        progress = await self.ports.store.find_progress()
        reason = policy.waiting(progress.waiting(page.iteration, page.rendezvous))
        return None if reason is None else Stall(iteration, reason)

    async def _carry_out(self, action: MonitorAction, iteration: int, now: float) -> None:
        rank = self.ports.rank
        match action:
            case QueryPeers():
                excuse = Excuse.PEER_BEHIND if await self._is_peer_behind() else None
                self.judges.hangs.answered(excuse, now=now)
            case SoftTimeout():
                await rank.mark_stalled(iteration)
            case SendSignal(reason):
                await rank.interrupt(reason)
            case TerminateRank(reason):
                self.ended_for = reason
                await rank.terminate(reason)
            case KillRank(reason):
                await rank.kill(reason)
            case QueryRoundEvent():
                if await self._has_event(iteration):
                    for each in self.judges.gil_stalls.round_over(now=now):
                        await self._carry_out(each, iteration, now)
            case MarkRoundOver():
                await rank.mark_round_over(iteration)
                await self.report_hang(iteration)
            case RenewConnections(reason):
                await rank.renew_connections(reason)
            case never:
                assert_never(never)

    async def _is_peer_behind(self) -> bool:
        """Whether a member that this rank may wait for is alive and behind this rank."""
        page, iteration = self.page, self.page.iteration
        try:
            progress = await self.ports.store.find_progress()
        except StoreFailure:
            return False
        behind = progress.behind(iteration, page.rendezvous if page.inside else 0, page.collectives)
        if behind and self._stragglers_of != iteration:
            self._stragglers_of = iteration
            await self.ports.reports.note_stragglers(iteration, behind)
        return bool(behind)

    async def _has_event(self, iteration: int) -> bool:
        try:
            return await self.ports.store.has_event(iteration)
        except StoreFailure:
            return False
