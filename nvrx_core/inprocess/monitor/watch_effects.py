"""The effects of a monitor process's flow, and the progress page that it reads. Pure.

The docstring of an effect says what the flow is resumed with; store operations may raise `StoreFailure` instead.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from nvrx_core.inprocess.protocol.effects import Effect
from nvrx_core.progress.stage import Stage
from nvrx_core.rank_assignment.identity import InitialRank

__all__ = [
    "DescribeDeath", "DescribeSilence", "DescribeStall", "DisownPage", "FindProgress", "HasDecision", "HasEvent",
    "HasLeft", "InterruptRank", "JoinForDead", "KillRank", "KillWithoutStore", "MarkRoundOver", "MarkStalled",
    "MarkStoreLost", "MoveLease", "NoteStragglers", "ProbeStore", "RankPage", "ReadLeases", "RenewConnections",
    "ReportPause", "Sleep", "TakeSample", "TerminateRank",
]  # fmt: skip


class RankPage(Protocol):
    """The progress page of a rank; read whenever the flow needs it."""

    @property
    def stage(self) -> Stage:
        """The stage of the main thread."""

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
        """The number of seconds within which to check its heartbeats and sections."""

    @property
    def rendezvous(self) -> int:
        """The number of rendezvous that it has started."""

    @property
    def inside(self) -> bool:
        """Whether it is inside of one."""

    @property
    def collectives(self) -> int:
        """The number of collectives that it has started."""

    @property
    def exited(self) -> int | None:
        """The iteration that it has completed by exit and that continues; None for none."""

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
    """This process was paused for so many seconds, which do not count against any rank."""

    seconds: float


@dataclass(slots=True)
class TakeSample(Effect):
    """Resumed with the `ProgressSample` of the rank; it has to be out of the function by `out_by`, awake seconds."""

    out_by: float


@dataclass(slots=True)
class MarkStalled(Effect):
    """Write to the page that the rank is reported in the iteration."""

    iteration: int


@dataclass(slots=True)
class MarkRoundOver(Effect):
    """Write to the page that the round is over."""

    iteration: int


@dataclass(slots=True)
class RenewConnections(Effect):
    """Write to the page that the rank does not hear of the end of the iteration: it opens its connections again."""

    reason: str


@dataclass(slots=True)
class InterruptRank(Effect):
    """Send the interrupt signal."""

    reason: str


@dataclass(slots=True)
class TerminateRank(Effect):
    """Terminate the rank, with a grace period for its signal handler."""

    reason: str


@dataclass(slots=True)
class KillRank(Effect):
    """Kill the rank, which was asked to terminate."""

    reason: str


@dataclass(slots=True)
class KillWithoutStore(Effect):
    """Kill the rank, whose death cannot be reported to the store."""

    reason: str


@dataclass(slots=True)
class DisownPage(Effect):
    """Stop writing to the page: it may be used by the next rank."""


@dataclass(slots=True)
class MarkStoreLost(Effect):
    """Write to the page that the store is lost."""


@dataclass(slots=True)
class NoteStragglers(Effect):
    """Record that the rank waits for members that are behind it."""

    iteration: int
    members: tuple[InitialRank, ...]


@dataclass(slots=True)
class DescribeStall(Effect):
    """Resumed with the fault that this rank blocks the others."""

    reason: str
    iteration: int


@dataclass(slots=True)
class DescribeDeath(Effect):
    """Resumed with the fault record of the rank's death.

    Attributes:
        reason: why this process has ended it; None if it has not.
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
    """Renew this rank's lease."""


@dataclass(slots=True)
class ProbeStore(Effect):
    """Check whether the store answers."""


@dataclass(slots=True)
class FindProgress(Effect):
    """Resumed with the `PeerProgress` of the other members."""


@dataclass(slots=True)
class HasDecision(Effect):
    """Resumed with whether the round has its decision; no wait for it ends."""

    iteration: int


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
    """Resumed with whether the member no longer needs the store: it was marked as left, or the call is over."""

    member: InitialRank


@dataclass(slots=True)
class JoinForDead(Effect):
    """Complete the joining of the dead rank; resumed with whether there is a generation to report its death in."""
