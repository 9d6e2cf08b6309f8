"""What the flow of a monitor process asks its shell to do, and what it reads of its rank. Pure.

Each effect says what the flow is resumed with; those that ask the store may raise `StoreFailure` instead.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from nvrx_core.inprocess.protocol.effects import Effect
from nvrx_core.progress.stage import Stage
from nvrx_core.rank_assignment.identity import InitialRank

__all__ = [
    "DescribeDeath", "DescribeSilence", "DescribeStall", "DisownPage", "FindProgress", "HasEvent", "HasLeft",
    "InterruptRank", "JoinForDead", "KillRank", "KillWithoutStore", "MarkRoundOver", "MarkStalled", "MarkStoreLost",
    "MoveLease", "NoteStragglers", "ProbeStore", "RankPage", "ReadLeases", "ReportPause", "Sleep", "TakeSample",
    "TerminateRank",
]  # fmt: skip


class RankPage(Protocol):
    """What a rank says of itself; read whenever the flow needs it."""

    @property
    def stage(self) -> Stage:
        """What the main thread is about."""

    @property
    def iteration(self) -> int:
        """The iteration that it is in, -1 before the first."""

    @property
    def store_lost_at(self) -> float:
        """When the store was lost, monotonic seconds; 0 while it is not."""

    @property
    def hosts_store(self) -> bool:
        """Whether its process hosts the store."""

    @property
    def look_within(self) -> float:
        """Within how many seconds to look at its heartbeats and sections."""

    @property
    def meetings(self) -> int:
        """How many rendezvous it has begun."""

    @property
    def inside(self) -> bool:
        """Whether it is inside of one."""

    @property
    def collectives(self) -> int:
        """How many collectives it has begun."""

    @property
    def exited(self) -> int | None:
        """The iteration that it has completed by exit, and that goes on; None when there is none."""

    def members(self) -> frozenset[InitialRank]:
        """The members that are not lost."""

    def siblings(self) -> list[InitialRank]:
        """Those but the rank itself, in order."""


# The rank


@dataclass(slots=True)
class Sleep(Effect):
    """Wait until the rank's process ends, or its page changes, or for the time; resumed with whether it has ended."""

    until: float


@dataclass(slots=True)
class ReportPause(Effect):
    """This process was paused for so many seconds, which nobody is blamed for."""

    seconds: float


@dataclass(slots=True)
class TakeSample(Effect):
    """Resumed with the `ProgressSample` of the rank; it has to be out of the function by `out_by`, awake seconds."""

    out_by: float


@dataclass(slots=True)
class MarkStalled(Effect):
    """Note on the page that the rank is reported in the iteration."""

    iteration: int


@dataclass(slots=True)
class MarkRoundOver(Effect):
    """Note on the page that the round is over."""

    iteration: int


@dataclass(slots=True)
class InterruptRank(Effect):
    """Send the interrupt signal."""

    reason: str


@dataclass(slots=True)
class TerminateRank(Effect):
    """End the rank, with time for a handler of its own."""

    reason: str


@dataclass(slots=True)
class KillRank(Effect):
    """Kill the rank, which was told to end."""

    reason: str


@dataclass(slots=True)
class KillWithoutStore(Effect):
    """Kill the rank, whose death the store cannot be told."""

    reason: str


@dataclass(slots=True)
class DisownPage(Effect):
    """Write on the page no longer: it may become the next rank's."""


@dataclass(slots=True)
class MarkStoreLost(Effect):
    """Note on the page that the store is lost."""


@dataclass(slots=True)
class NoteStragglers(Effect):
    """The rank waits for members that are behind it."""

    iteration: int
    members: tuple[InitialRank, ...]


@dataclass(slots=True)
class DescribeStall(Effect):
    """Resumed with the fault that this rank holds the others up."""

    reason: str
    iteration: int


@dataclass(slots=True)
class DescribeDeath(Effect):
    """Resumed with the fault that the rank's death is.

    Attributes:
        reason: why this process has ended it; None when it has not.
        since: since when it had made no progress then, monotonic seconds; None: since its last sign of life.
    """

    reason: str | None
    since: float | None


@dataclass(slots=True)
class DescribeSilence(Effect):
    """Resumed with the fault that a sibling's monitor process is silent."""

    member: InitialRank


# The store


@dataclass(slots=True)
class MoveLease(Effect):
    """Move this rank's lease on."""


@dataclass(slots=True)
class ProbeStore(Effect):
    """Ask whether the store answers."""


@dataclass(slots=True)
class FindProgress(Effect):
    """Resumed with the `PeerProgress` of the other members."""


@dataclass(slots=True)
class HasEvent(Effect):
    """Resumed with whether the round has its event."""

    iteration: int


@dataclass(slots=True)
class ReadLeases(Effect):
    """Resumed with the leases of those of these members that have one."""

    members: Collection[InitialRank]


@dataclass(slots=True)
class HasLeft(Effect):
    """Resumed with whether the member needs the store no longer: it was marked as left, or the call is over."""

    member: InitialRank


@dataclass(slots=True)
class JoinForDead(Effect):
    """Finish the dead rank's way into a generation of keys; resumed with whether there is one to report it in."""
