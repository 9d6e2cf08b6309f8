"""Rank monitors in virtual time: ranks that train together, hang or are slow, and monitors that are lost and replaced.

The machine and the flow of a turn are the production ones. A turn begins at the policy's deadline, and waits for the
answers of the peer monitors. A lost monitor loses its state; its replacement has only the page.
"""

from __future__ import annotations

import math
import random
from collections.abc import Generator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final

__all__ = ["LOST_FOR", "SURVEY", "Failure", "Host", "Scenario"]

SURVEY: Final = 0.2
"""Maximum response time of a peer monitor, seconds."""
LOST_FOR: Final = 2.0
"""Maximum time until a lost monitor is replaced, seconds."""
FIRST_LOOK: Final = 1.0
"""Seconds for which a rank is excused that is overdue when a monitor first sees it, at most."""
TICK: Final = 0.05
TURN: Final = SURVEY + 2 * TICK
"""Seconds that a turn takes at most, from its deadline to its verdict: both are noticed a tick later. A monitor that is
lost in the middle of its turn leaves no trace of it, so that its replacement begins with the question again."""
INTERVAL: Final = 5.0
GRACE: Final = 15.0


class Failure(AssertionError):
    """A violated rule, and its scenario."""


@dataclass(frozen=True)
class Scenario:
    """What happens on one host.

    Attributes:
        ranks: how many train together: no rank begins a step before all have begun the one before.
        timeout: seconds that a step may take.
        by_sections: ranks open a section for each step; else they send heartbeats.
        pace: seconds that each rank takes for a step.
        hangs: when a rank hangs, by rank.
        losses: moments when a rank's monitor is lost, and for how long.
    """

    ranks: int
    timeout: float
    by_sections: bool
    pace: tuple[float, ...]
    hangs: dict[int, float]
    losses: dict[int, list[tuple[float, float]]]

    @classmethod
    def draw(cls, seed: int) -> Scenario:
        rng = random.Random(seed)
        ranks, timeout = rng.randint(1, 5), rng.choice([2.0, 5.0, 20.0])
        hung = rng.sample(range(ranks), rng.randint(0, min(2, ranks)))
        losses = {
            rank: [(rng.uniform(0, 60), rng.uniform(0.1, LOST_FOR)) for _ in range(rng.randint(0, 4))]
            for rank in range(ranks)
        }
        pace = tuple(rng.uniform(0.1, timeout * 0.4) for _ in range(ranks))
        hangs = {rank: rng.uniform(1, 30) for rank in hung}
        return cls(ranks, timeout, rng.random() < 0.5, pace, hangs, losses)


@dataclass
class Rank:
    """One rank, as its page describes it."""

    step: int = 1
    moved_at: float = 0.0
    ends_at: float = 0.0
    ended_at: float = math.inf


@dataclass
class Monitor:
    """One monitor: its policy, the turn it is in, and when the answers to its question are there."""

    policy: Any
    turn: Any = None
    answers_at: float = math.inf


class Answers:
    """The answers of the other monitors, which take time."""

    def __await__(self) -> Generator[None, bool, bool]:
        return (yield)


@dataclass
class Judged:
    """A rank, for a turn of its monitor."""

    host: Host
    number: int
    monitor: Monitor

    def sample(self) -> Any:
        self.monitor.policy.check()
        return self.host.sample(self.number)

    async def is_excused(self, query: Any) -> bool:
        self.monitor.answers_at = self.host.now + SURVEY / 2
        return await Answers()

    def terminate(self, action: Any) -> None:
        self.host.end(self.number)

    def kill(self, action: Any) -> None:
        pass


@dataclass
class Host:
    """The ranks and monitors of a scenario.

    Args:
        rules: the modules `limits`, `policy` and `judging`, as shipped or with a mistake in them.
    """

    scenario: Scenario
    limits: ModuleType
    policy: ModuleType
    judging: ModuleType
    now: float = 0.0
    ranks: list[Rank] = field(default_factory=list)
    monitors: list[Monitor | None] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)

    def run(self, seconds: float = 80.0) -> list[int]:
        """Run; returns the ranks that were ended, in order.

        Raises:
            Failure: when a rank was ended that should not be, or not in time.
        """
        self.ranks = [Rank(ends_at=pace) for pace in self.scenario.pace]
        self.monitors = [self._new() for _ in self.ranks]
        while self.now < seconds:
            self.now += TICK
            for number, rank in enumerate(self.ranks):
                self._train(number, rank)
            for number, rank in enumerate(self.ranks):
                self._watch(number, rank)
            self._check()
        return self.ended

    def _new(self) -> Monitor:
        return Monitor(self.policy.MonitorPolicy(INTERVAL, GRACE))

    def _train(self, number: int, rank: Rank) -> None:
        """Take a step, when the last one is done and no rank is behind."""
        hung = self.now >= self.scenario.hangs.get(number, math.inf) or rank.ended_at < math.inf
        waits = any(other.step < rank.step for other in self.ranks)
        if hung or waits or self.now < rank.ends_at:
            return
        rank.step += 1
        rank.moved_at, rank.ends_at = self.now, self.now + self.scenario.pace[number]

    def _watch(self, number: int, rank: Rank) -> None:
        lost = any(begun <= self.now < begun + length for begun, length in self.scenario.losses[number])
        if lost or rank.ended_at < math.inf:
            self.monitors[number] = None
            return
        monitor = self.monitors[number] = self.monitors[number] or self._new()
        if monitor.turn is not None:
            if self.now >= monitor.answers_at:
                self._go_on(monitor, self._is_excused(number))
        elif self.now >= monitor.policy.deadline:
            monitor.turn = self.judging.turn(monitor.policy, Judged(self, number, monitor), lambda: self.now)
            self._go_on(monitor, None)

    def _go_on(self, monitor: Monitor, excused: bool | None) -> None:
        """Carry out a turn to its end, or until the answers of others are awaited."""
        try:
            monitor.turn.send(excused)
        except StopIteration:
            monitor.turn = None
        monitor.policy.check()

    def _is_excused(self, number: int) -> bool:
        """A monitor that is lost does not answer; that of a rank that was ended is gone."""
        others = [other for other in range(self.scenario.ranks) if other != number]
        gone = any(self.ranks[other].ended_at < math.inf for other in others)
        behind = any(self.monitors[other] and self.ranks[other].step < self.ranks[number].step for other in others)
        return gone or behind

    def end(self, number: int) -> None:
        """A monitor ends its rank."""
        rank = self.ranks[number]
        silence = self.now - rank.moved_at
        if silence < self.scenario.timeout - TICK:
            self._fail(f"rank {number} is ended, and has moved {silence:.2f} s ago")
        rank.ended_at = self.now
        self.ended.append(number)

    def _check(self) -> None:
        for number, rank in enumerate(self.ranks):
            bound = 2 * self.scenario.timeout + TURN + TICK + self._missed(number, rank.moved_at)
            if rank.ended_at == math.inf and self.now - rank.moved_at > bound:
                self._fail(f"rank {number} is still there, {self.now - rank.moved_at:.2f} s after it has moved")

    def _missed(self, number: int, since: float) -> float:
        """Seconds by which the losses of a monitor since then delay the end of its rank, at most."""
        losses = (loss for loss in self.scenario.losses[number] if since < sum(loss) and loss[0] <= self.now)
        return sum(length + TICK + FIRST_LOOK + TURN for _, length in losses)

    def _fail(self, what: str) -> None:
        raise Failure(f"at {self.now:.2f} s {what}: {self.scenario}")

    def sample(self, number: int) -> Any:
        """What the page of a rank says."""
        rank, timeout, limits = self.ranks[number], self.scenario.timeout, self.limits
        if self.scenario.by_sections:
            section = limits.SectionSample("step", rank.moved_at, timeout, rank.step)
            other = limits.SectionSample("other", rank.moved_at, 10 * timeout, 1)
            return limits.RankSample(attached_at=0.0, section_at=rank.moved_at, sections=(section, other))
        return limits.RankSample(attached_at=0.0, heartbeat_at=rank.moved_at, heartbeat_timeout=timeout)
