"""Stragglers: ranks that are slower than their peers are named, and nothing is done about them.

Each launcher reads the pages of its ranks every second, and every five seconds publishes their section times, some 30
bytes for each rank and section. The launcher that runs the coordinator compares those of all nodes: one request for all
of them, the rarer the more nodes there are. Launchers that meet by a handler of the user's compare their own ranks.
"""

from __future__ import annotations

import logging
import math
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, Protocol

from nvrx_core.fault.stragglers import READ_EVERY, SAMPLE_TIME, NodePaces, PaceSampler, StragglerDetector
from nvrx_core.fault_tolerance.config import FaultToleranceConfig
from nvrx_core.parsing import ranges
from nvrx_launcher.history import History
from nvrx_launcher.rendezvous.coordination import Coordination
from nvrx_launcher.rendezvous.messages import Decision, DecisionKind

__all__ = ["Stragglers"]

log = logging.getLogger("nvrx_launcher")
NODES_A_SECOND: Final = 100
"""How many nodes publish their section times in a second, at most: each of more nodes does it more rarely."""
MAX_LINES: Final = 4
"""News that have a line of their own at a time; one more line has the ranks of the others."""


class Ranks(Protocol):
    """The monitored ranks of this node."""

    def section_runs(self, section: str, most: int) -> Iterable[tuple[int, int, list[float]]]:
        """Return rank, completed runs of a section, and the seconds of the last ones, of each rank."""


class Stragglers:
    """Finds stragglers among the ranks of a job.

    Args:
        config: the factor, the sections and the steps; without a factor or sections nothing is done.
        ranks: the ranks of this node.
        exchange: the connection to the other nodes.
        events: records what is found.

    Attributes:
        deadline: when `tick` is due, monotonic seconds.
    """

    def __init__(self, config: FaultToleranceConfig, ranks: Ranks, exchange: Coordination, events: History) -> None:
        self._ranks, self._exchange, self._events = ranks, exchange, events
        self._steps, self._host = config.straggler_steps, socket.gethostname()
        names = map(str.strip, config.straggler_sections.split(","))
        self._sections, factor = list(dict.fromkeys(filter(None, names))), config.straggler_factor
        self._detector = StragglerDetector(factor, self._steps) if factor is not None and self._sections else None
        self._cycle, self._sampler, self._interval = -1, PaceSampler(self._steps), SAMPLE_TIME
        self._nodes, self._is_sharing = tuple[int, ...](), False
        self.deadline = self._share_at = math.inf

    def decided(self, decision: Decision, *, now: float) -> None:
        """Begin with the cycle of a decision, or end with it."""
        if self._detector is None or decision.kind not in (DecisionKind.RUN, DecisionKind.STOP, DecisionKind.END):
            return
        if decision.kind is not DecisionKind.RUN:
            self._cycle, self.deadline = -1, math.inf
            return
        self._cycle, self._sampler = decision.cycle, PaceSampler(self._steps)
        self._detector.begin_cycle(decision.cycle, decision.world_size)
        self._nodes = tuple(member.node for member in decision.members)
        self._interval = max(SAMPLE_TIME, len(self._nodes) / NODES_A_SECOND)
        self.deadline, self._share_at = now + READ_EVERY, now + self._interval

    def tick(self, *, now: float) -> None:
        """Read the pages, and publish what they say, if that is due."""
        if now < self.deadline:
            return
        self.deadline = now + READ_EVERY
        for section in self._sections:
            self._sampler.observe(section, self._ranks.section_runs(section, self._steps), now=now)
        if now >= self._share_at and not self._is_sharing:
            self._share_at, self._is_sharing = now + self._interval, True
            paces = NodePaces(self._cycle, self._host, self._sampler.sections())
            self._exchange.share_pace(paces.encode(), self._nodes, self._compare)

    def _compare(self, texts: Sequence[bytes]) -> None:
        self._is_sharing = False
        nodes = list[NodePaces]()
        for text in texts:
            with suppress(ValueError):
                nodes.append(NodePaces.decode(text))
        if self._detector is None or self._cycle < 0:
            return
        news = self._detector.evaluate(nodes)
        for each in news:
            self._events.straggles(each)
        for each in news[:MAX_LINES]:
            log.warning("straggler: %s", each.sentence)
        for has_begun, what in (True, "slow"), (False, "about as fast as the others again"):
            more = sorted(rank for each in news[MAX_LINES:] if each.has_begun == has_begun for rank in each.ranks)
            if more:
                ranks, verb = ("ranks", "are") if len(more) > 1 else ("rank", "is")
                log.warning("straggler: %d more %s %s %s: %s %s", len(more), ranks, verb, what, ranks, ranges(more))
