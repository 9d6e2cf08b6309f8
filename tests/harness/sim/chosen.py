"""The machines of a member's monitor process, whose verdicts the checker chooses, and the page that it reads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from nvrx_core.inprocess.monitor.sibling_ring import SiblingRing
from nvrx_core.inprocess.monitor.watch import StoreSchedule, StoreTask
from nvrx_core.liveness.hang_detector import DetectorAction, SoftTimeout
from nvrx_core.progress.limits import ProgressSample
from nvrx_core.progress.stage import Stage
from nvrx_core.rank_assignment.identity import InitialRank

from .virtual_ports import VirtualPage

if TYPE_CHECKING:
    from .member import Member

__all__ = ["VERDICTS", "Chosen", "MemberPage"]


class Chosen:
    """The verdicts of a monitor process's machines, chosen by the checker, each once."""

    def __init__(self, member: InitialRank) -> None:
        self.stalls, self.silent = False, tuple[InitialRank, ...]()
        self.deadline, self.no_progress_since = math.inf, None
        self.schedule, self.ring = _Schedule(self), _Ring(self, member)

    def evaluate(self, sample: ProgressSample, *, now: float) -> tuple[DetectorAction, ...]:
        """Judge as is chosen."""
        stalls, self.stalls = self.stalls, False
        return (SoftTimeout("chosen"),) if stalls else ()


class _Schedule(StoreSchedule):
    """Has the siblings watched when one is to be silent."""

    def __init__(self, chosen: Chosen) -> None:
        super().__init__(heartbeat=math.inf, probe=math.inf, siblings=math.inf)
        self.chosen, self.deadline = chosen, math.inf

    def due(self, *, now: float) -> tuple[StoreTask, ...]:
        return (StoreTask.WATCH_SIBLINGS,) if self.chosen.silent else ()


class _Ring(SiblingRing):
    """Finds those silent that are chosen."""

    def __init__(self, chosen: Chosen, member: InitialRank) -> None:
        super().__init__(member, math.inf, math.inf)
        self.chosen = chosen

    def observe(
        self, watched: list[InitialRank], leases: Mapping[InitialRank, str], *, all_have_arrived: bool, now: float
    ) -> tuple[InitialRank, ...]:
        silent, self.chosen.silent = self.chosen.silent, ()
        return silent


VERDICTS: Final = (Chosen, _Schedule, _Ring)
"""The machines whose verdicts are chosen."""


class MemberPage(VirtualPage):
    """The progress page of a member."""

    def __init__(self, member: Member) -> None:
        self.member = member

    @property
    def stage(self) -> Stage:
        return self.member.stage

    @property
    def iteration(self) -> int:
        return self.member.iteration

    @property
    def store_lost_at(self) -> float:
        return float(self.member.lost_store)

    @property
    def hosts_store(self) -> bool:
        return self.member.config.hosted and self.member.member == 0

    def members(self) -> frozenset[InitialRank]:
        return self.member.known

    def siblings(self) -> list[InitialRank]:
        return sorted(self.member.known - {self.member.member})
