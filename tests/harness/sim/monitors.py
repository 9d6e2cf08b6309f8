"""Rank monitors in virtual time: ranks that train together, hang or are slow, and monitors that are lost and replaced.

The monitors are the production ones, without their sockets: each judges by its rank's page. A turn begins at the time
that the last one has returned, and waits for the answers of the peer monitors. A lost monitor loses its state; its
replacement has only the page.
"""

from __future__ import annotations

import logging
import math
import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

from nvrx_core.fault_tolerance.peers import Progress
from nvrx_core.fault_tolerance.plan import RankMonitorPlan
from nvrx_core.progress.page import Page, ProgressField, SectionField

from .monitor_mutants import Modules

__all__ = ["LOST_FOR", "SURVEY", "Failure", "Host", "Scenario"]

SURVEY: Final = 0.2
"""Maximum response time of a peer monitor, seconds."""
LOST_FOR: Final = 2.0
"""Maximum time until a lost monitor is replaced, seconds."""
FIRST_LOOK: Final = 1.0
"""Seconds for which a rank is excused that is overdue when a monitor first sees it, at most."""
ASK_AGAIN: Final = 0.5
"""Seconds from an answer that excuses a rank to the next question, at most."""
TICK: Final = 0.05
TURN: Final = SURVEY + 2 * TICK
"""Seconds that a turn takes at most, from its deadline to its verdict: both are noticed a tick later. A monitor that is
lost in the middle of its turn leaves no trace of it, so that its replacement begins with the question again."""
INTERVAL: Final = 5.0
GRACE: Final = 15.0
START: Final = 1000.0
"""Monotonic seconds: on a page, 0 stands for what has not happened."""


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
        stubborn: ranks that outlive the termination signal.
    """

    ranks: int
    timeout: float
    by_sections: bool
    pace: tuple[float, ...]
    hangs: dict[int, float]
    losses: dict[int, list[tuple[float, float]]]
    stubborn: frozenset[int] = frozenset()

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
        by_sections = rng.random() < 0.5
        stubborn = frozenset(rank for rank in hung if rng.random() < 0.5)
        return cls(ranks, timeout, by_sections, pace, hangs, losses, stubborn)


class Rank:
    """One rank, with its page.

    Attributes:
        ends_at: when its step is done.
        excusable_at: when the others' answers would last have excused it.
        ended_at: when it was sent its termination signal.
        gone: it does not run any more.
    """

    def __init__(self, number: int, scenario: Scenario) -> None:
        self.step, self.moved_at, self.ends_at = 1, 0.0, scenario.pace[number]
        self.ended_at, self.excusable_at, self.gone = math.inf, 0.0, False
        self.page, self.slots = Page(1), list[int]()
        self.page[ProgressField.RANK], self.page[ProgressField.ATTACHED_AT] = number, int(START * 1e9)
        if scenario.by_sections:
            self.slots = [self.page.declare_section(name) for name in ("step", "other", "closed")]
            for slot, factor in zip(self.slots, (1, 10, 1), strict=True):
                self.page.words[slot + SectionField.TIMEOUT] = int(factor * scenario.timeout * 1e9)
        else:
            self.page[ProgressField.HEARTBEAT_TIMEOUT] = int(scenario.timeout * 1e9)
        self.write(0.0)

    def write(self, now: float) -> None:
        """Begin a step."""
        page, at = self.page, int((START + now) * 1e9)
        self.moved_at = now
        if self.slots:
            for slot in self.slots[:2]:
                page.words[slot + SectionField.OPENED_AT] = at
            page.words[self.slots[0] + SectionField.COUNT] = self.step
            page[ProgressField.SECTION_AT] = at
        else:
            page[ProgressField.HEARTBEAT_AT], page[ProgressField.HEARTBEATS] = at, self.step


class Survey:
    """The question of a rank's monitor to the others.

    A monitor that is lost does not answer; that of a rank that was ended is gone.
    """

    def __init__(self, host: Host, number: int) -> None:
        self._host, self._others = host, [other for other in range(len(host.ranks)) if other != number]
        self.deadline, self.pending = START + host.now + SURVEY / 2, True

    @property
    def answers(self) -> list[Progress]:
        host = self._host
        return [Progress.of_page(host.ranks[other].page) for other in self._others if host.monitors[other]]

    @property
    def lost(self) -> bool:
        return any(self._host.ranks[other].ended_at < math.inf for other in self._others)

    def is_complete(self, *, now: float) -> bool:
        return now >= self.deadline

    def close(self) -> None:
        pass


@dataclass
class Monitor:
    """One monitor, and when its next turn is due."""

    monitor: Any
    due: float = math.inf
    begun: bool = False


class Host:
    """The ranks and monitors of a scenario.

    Args:
        modules: as shipped or with a mistake in one of them.
    """

    def __init__(self, scenario: Scenario, modules: Modules) -> None:
        self.scenario, self.modules, self.now = scenario, modules, 0.0
        self.ranks = [Rank(number, scenario) for number in range(scenario.ranks)]
        self.monitors = list[Monitor | None]([None] * scenario.ranks)
        self.ended = list[int]()
        clock = SimpleNamespace(monotonic=lambda: START + self.now)
        for name, value in {
            "log": logging.getLogger(__name__), "send": self._send, "time": clock,
            "Survey": lambda path, **_: Survey(self, int(path)), "WatchedRank": SimpleNamespace(of_page=_watched),
        }.items():  # fmt: skip
            setattr(modules.process, name, value)

    def run(self, seconds: float = 80.0) -> list[int]:
        """Run; returns the ranks that were ended, in order.

        Raises:
            Failure: when a rank was ended that should not be, or not in time.
        """
        try:
            while self.now < seconds:
                self.now += TICK
                for number, rank in enumerate(self.ranks):
                    self._train(number, rank)
                for number, rank in enumerate(self.ranks):
                    self._watch(number, rank)
                self._check()
        finally:
            for rank in self.ranks:
                rank.page.close()
        return self.ended

    def _new(self, number: int) -> Monitor:
        plan = RankMonitorPlan(0, 0, "", (0, 0), INTERVAL, termination_signal=signal.SIGTERM)
        listener = SimpleNamespace(path=str(number))
        return Monitor(self.modules.process.RankMonitor(plan, self.ranks[number].page, listener))

    def _train(self, number: int, rank: Rank) -> None:
        """Take a step, when the last one is done and no rank is behind."""
        hung = self.now >= self.scenario.hangs.get(number, math.inf) or rank.ended_at < math.inf
        waits = any(other.step < rank.step for other in self.ranks)
        if hung or waits or self.now < rank.ends_at:
            return
        rank.step += 1
        rank.ends_at = self.now + self.scenario.pace[number]
        rank.write(self.now)

    def _watch(self, number: int, rank: Rank) -> None:
        lost = any(begun <= self.now < begun + length for begun, length in self.scenario.losses[number])
        if lost or rank.gone:
            self.monitors[number] = None
            return
        monitor = self.monitors[number] = self.monitors[number] or self._new(number)
        if START + self.now >= monitor.due or not monitor.begun:
            monitor.due, monitor.begun = monitor.monitor.turn(monitor.due), True
            monitor.monitor.detector.check()

    def _send(self, pidfd: int, signals: Sequence[int]) -> None:
        """A monitor signals its rank."""
        number, rank = pidfd, self.ranks[pidfd]
        if signal.SIGKILL in signals:
            if self.now < rank.ended_at + GRACE - TICK:
                self._fail(f"rank {number} is killed {self.now - rank.ended_at:.2f} s after its signal")
            rank.gone = True
            return
        silence = self.now - rank.moved_at
        if silence < self.scenario.timeout - TICK:
            self._fail(f"rank {number} is ended, and has moved {silence:.2f} s ago")
        if rank.ended_at == math.inf:
            self.ended.append(number)
        rank.ended_at, rank.gone = self.now, number not in self.scenario.stubborn

    def _check(self) -> None:
        for number, rank in enumerate(self.ranks):
            bound = 2 * self.scenario.timeout + TURN + TICK + self._missed(number, rank.moved_at)
            if rank.ended_at == math.inf and self.now - rank.moved_at > bound:
                self._fail(f"rank {number} is still there, {self.now - rank.moved_at:.2f} s after it has moved")
            others = [other for other in self.ranks if other is not rank]
            if any(other.step < rank.step or other.ended_at < math.inf for other in others):
                rank.excusable_at = self.now
            overdue = self.now - max(rank.moved_at + self.scenario.timeout, rank.excusable_at)
            bound = ASK_AGAIN + TURN + TICK + self._missed(number, rank.moved_at)
            if rank.ended_at == math.inf and overdue > bound:
                self._fail(f"rank {number} is still there, {overdue:.2f} s after it was overdue without an excuse")
            bound = GRACE + 2 * TICK + self._missed(number, rank.ended_at)
            if not rank.gone and self.now - rank.ended_at > bound:
                self._fail(f"rank {number} is still there, {self.now - rank.ended_at:.2f} s after its signal")

    def _missed(self, number: int, since: float) -> float:
        """Seconds by which the losses of a monitor since then delay the end of its rank, at most."""
        losses = (loss for loss in self.scenario.losses[number] if since < sum(loss) and loss[0] <= self.now)
        return sum(length + TICK + FIRST_LOOK + TURN for _, length in losses)

    def _fail(self, what: str) -> None:
        raise Failure(f"at {self.now:.2f} s {what}: {self.scenario}")


def _watched(page: Page) -> Any:
    """The process that a page names."""
    number = page[ProgressField.RANK]
    return SimpleNamespace(pid=number + 1, pidfd=number, is_on=lambda _: True, close=lambda: None)
