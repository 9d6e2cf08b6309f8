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
    DetectorAction,
    Excuse,
    HangDetector,
    KillRank,
    QueryPeers,
    SendSignal,
    SoftTimeout,
    TerminateRank,
)
from nvrx_core.progress.limits import ProgressSample

__all__ = ["Detectors", "Judging"]

MonitorAction = DetectorAction | GilStallAction | RenewConnections
Clock = Callable[[], float]


@dataclass
class Detectors:
    """The machines that judge one rank; times are in awake seconds."""

    hangs: HangDetector
    gil_stalls: GilStallPolicy
    clean_exit: CleanExitPolicy
    unheard: UnheardRoundPolicy = field(
        default_factory=lambda: UnheardRoundPolicy(every=math.inf, renews_after=math.inf, ends_after=math.inf)
    )

    @property
    def deadline(self) -> float:
        """When to judge again at the latest."""
        return min(self.hangs.deadline, self.gil_stalls.deadline, self.clean_exit.deadline, self.unheard.deadline)


class Judging:
    """The judgement of one rank.

    Args:
        detectors: the machines.
        ports: of the watch.
        now: awake seconds.

    Attributes:
        ended_for: why the rank was ended; None if it was not.
    """

    def __init__(self, detectors: Detectors, ports: WatchPorts, now: Clock) -> None:
        self.detectors, self.ports, self.page, self.now = detectors, ports, ports.page, now
        self.ended_for: str | None = None
        self._stragglers_of = self._reported = -1

    async def judge(self) -> ProgressSample:
        """Judge the rank by its progress, and do what is due; return the last sample.

        First whether it hangs: peers that are behind excuse it, a soft timeout is announced, a hard one ends it. Then
        whether a call that holds the GIL keeps it from leaving a round that is over.
        """
        hangs, gil_stalls, soft = self.detectors.hangs, self.detectors.gil_stalls, None
        while True:
            now = self.now()
            sample = await self.ports.rank.sample(gil_stalls.out_by)
            actions = hangs.evaluate(sample, now=now)
            for action in actions:
                await self._carry_out(action, sample.iteration, now)
                soft = action if isinstance(action, SoftTimeout) else soft
            if QueryPeers() not in actions:
                break
        if soft is not None:
            silent = sample.stopped or now >= sample.watchdog_alive_at + gil_stalls.silent
            await self._announce(sample.iteration, soft.reason, silent=silent)
            sample = await self.ports.rank.sample(math.inf)  # to announce it takes time
        now = self.now()
        for stalled in gil_stalls.evaluate(sample, now=now):
            await self._carry_out(stalled, sample.iteration, now)
        return sample

    async def judge_by_store(self, sample: ProgressSample) -> None:
        """Judge the rank by what the store knows, and do what is due.

        First whether the round goes on without a rank that does not hear of it. Then whether others wait in a
        rendezvous for a rank that has exited, which blocks them.

        Raises:
            StoreFailure: when the store does not answer.
        """
        now, store, unheard = self.now(), self.ports.store, self.detectors.unheard
        question = unheard.question(sample, now=now)
        if question is not None:
            is_event = question is Question.EVENT
            if await (store.has_event(sample.iteration) if is_event else store.has_decision(sample.iteration)):
                unheard.is_over(now=now)
        for action in unheard.actions(sample, now=now):
            if isinstance(action, TerminateRank):
                self.detectors.hangs.terminate(action.reason, now=now)
            await self._carry_out(action, sample.iteration, now)
        exited, clean_exit = self.page.exited, self.detectors.clean_exit
        if clean_exit.due(exited, now=self.now()) and exited is not None:
            progress = await store.find_progress()
            reason = clean_exit.waiting(progress.waiting(self.page.iteration, self.page.rendezvous))
            if reason is not None:
                await self._announce(exited, reason)

    async def _announce(self, iteration: int, reason: str, *, silent: bool = False) -> None:
        """Announce that this rank blocks the others.

        Args:
            iteration: the round; the rank may be about to enter the next one.
            reason: for people.
            silent: no thread of the rank runs, so that it cannot say where it is.
        """
        fault = await self.ports.reports.describe_stall(reason, iteration)
        try:
            await self.ports.store.announce(iteration, fault)
        except StoreFailure:
            return  # the next task in the store finds that it is lost
        if silent:
            await self._report_hang(iteration)

    async def _report_hang(self, iteration: int) -> None:
        """Report once where the rank is, whose threads do not run, if a soft timeout has ended the round."""
        if self._reported != iteration:
            self._reported = iteration
            with suppress(StoreFailure):
                await self.ports.store.report_hang(iteration)

    async def _carry_out(self, action: MonitorAction, iteration: int, now: float) -> None:
        rank = self.ports.rank
        match action:
            case QueryPeers():
                excuse = Excuse.PEER_BEHIND if await self._is_peer_behind() else None
                self.detectors.hangs.answered(excuse, now=now)
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
                    for each in self.detectors.gil_stalls.round_over(now=now):
                        await self._carry_out(each, iteration, now)
            case MarkRoundOver():
                await rank.mark_round_over(iteration)
                await self._report_hang(iteration)
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
