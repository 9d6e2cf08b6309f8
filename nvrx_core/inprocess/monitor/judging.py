"""How a monitor process judges its rank: hung, stalled by a call that holds the GIL, or exited and waited for. Pure.

The machines decide; these flows provide their inputs and execute their decisions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from nvrx_core.inprocess.monitor import watch_effects as effects
from nvrx_core.inprocess.monitor.clean_exit import CleanExitPolicy
from nvrx_core.inprocess.monitor.gil_stall import GilStallAction, GilStallPolicy, MarkRoundOver, QueryRoundEvent
from nvrx_core.inprocess.monitor.unheard_round import EndRank, Question, UnheardRoundPolicy
from nvrx_core.inprocess.monitor.watch_effects import RankPage
from nvrx_core.inprocess.protocol.effects import Effect, Flow, StoreFailure
from nvrx_core.liveness.hang_detector import (
    HangDetector,
    Kill,
    ProgressSample,
    QueryPeers,
    SendSignal,
    SoftTimeout,
    Terminate,
)
from nvrx_core.liveness.peer_progress import PeerProgress

__all__ = ["Judges", "Judging", "Stall"]

Clock = Callable[[], float]


@dataclass(frozen=True)
class Stall:
    """The stall of a living rank that blocks the others.

    Attributes:
        iteration: the round; the rank may be about to enter the next one.
        reason: for people.
    """

    iteration: int
    reason: str


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
        page: the progress page of the rank.
        now: awake seconds.

    Attributes:
        ended_for: why the rank was ended; None if it was not.
    """

    def __init__(self, judges: Judges, page: RankPage, now: Clock) -> None:
        self.judges, self.page, self.now = judges, page, now
        self.ended_for: str | None = None
        self._stragglers_of = -1
        self._sample: ProgressSample | None = None

    def judge(self) -> Flow[Stall | None]:
        """Judge the rank, and signal or end it if that is due; return what must be announced to all ranks."""
        stall: Stall | None = None
        asked, detector = True, self.judges.hangs
        while asked:
            asked = False
            sample = yield effects.TakeSample(self.judges.gil_stalls.out_by)
            self._sample, now = sample, self.now()
            for action in detector.evaluate(sample, now=now):
                if isinstance(action, QueryPeers):
                    detector.peers_progressing((yield from self._peers_progressing()), now=now)
                    asked = True
                elif isinstance(action, SoftTimeout):
                    yield effects.MarkStalled(sample.iteration)
                    stall = Stall(sample.iteration, action.reason)
                else:
                    yield self._signal(action)
        if stall is not None:
            self._sample = None  # to announce it takes time
        return stall

    def help_stalled(self) -> Flow[None]:
        """Notify a rank whose threads do not run that its round is over; follows `judge`."""
        sample = self._sample or (yield effects.TakeSample(math.inf))
        now = self.now()
        actions = self.judges.gil_stalls.evaluate(sample, now=now)
        if actions:
            yield from self._help(actions, sample.iteration, now)

    def check_round(self) -> Flow[None]:
        """Find out whether the round goes on without a rank that does not hear of it; follows `help_stalled`.

        Raises:
            StoreFailure: when the store does not answer.
        """
        sample = self._sample or (yield effects.TakeSample(math.inf))
        now, policy = self.now(), self.judges.unheard
        question = policy.question(sample, now=now)
        if question is not None:
            is_event = question is Question.EVENT
            has = effects.HasEvent(sample.iteration) if is_event else effects.HasDecision(sample.iteration)
            if (yield has):
                policy.is_over(now=now)
        for action in policy.actions(sample, now=now):
            if isinstance(action, EndRank):
                yield self._signal(self.judges.hangs.terminate(action.reason, now=now))
            else:
                yield effects.RenewConnections(action.reason)

    def look_who_waits(self) -> Flow[Stall | None]:
        """Return what to announce if others wait in a rendezvous for a rank that has exited.

        Raises:
            StoreFailure: when the store does not answer.
        """
        page, policy, iteration = self.page, self.judges.clean_exit, self.page.exited
        if not policy.due(iteration, now=self.now()) or iteration is None:
            return None
        progress: PeerProgress = yield effects.FindProgress()
        reason = policy.waiting(progress.waiting(page.iteration, page.rendezvous))
        return None if reason is None else Stall(iteration, reason)

    def _signal(self, action: SendSignal | Terminate | Kill) -> Effect:
        if isinstance(action, Terminate):
            self.ended_for = action.reason
            return effects.TerminateRank(action.reason)
        return effects.KillRank(action.reason) if isinstance(action, Kill) else effects.InterruptRank(action.reason)

    def _peers_progressing(self) -> Flow[bool]:
        """Whether a member that this rank may wait for is alive and behind this rank."""
        page, iteration = self.page, self.page.iteration
        try:
            progress: PeerProgress = yield effects.FindProgress()
        except StoreFailure:
            return False
        behind = progress.behind(iteration, page.rendezvous if page.inside else 0, page.collectives)
        if behind and self._stragglers_of != iteration:
            self._stragglers_of = iteration
            yield effects.NoteStragglers(iteration, behind)
        return bool(behind)

    def _help(self, actions: tuple[GilStallAction, ...], iteration: int, now: float) -> Flow[None]:
        for action in actions:
            if isinstance(action, QueryRoundEvent):
                if (yield from self._has_event(iteration)):
                    yield from self._help(self.judges.gil_stalls.round_over(now=now), iteration, now)
            elif isinstance(action, MarkRoundOver):
                yield effects.MarkRoundOver(iteration)
            else:
                yield effects.InterruptRank(action.reason)

    def _has_event(self, iteration: int) -> Flow[bool]:
        try:
            return bool((yield effects.HasEvent(iteration)))
        except StoreFailure:
            return False
