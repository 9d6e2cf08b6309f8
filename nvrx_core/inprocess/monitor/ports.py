"""The ports of a monitor process's flow, and the progress page that it reads. Pure.

An operation of the store may raise `StoreFailure`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Mapping
from typing import Protocol

from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.protocol.ports import CallStorePort
from nvrx_core.liveness.peer_progress import PeerProgress
from nvrx_core.progress.limits import ProgressSample
from nvrx_core.progress.stage import Stage
from nvrx_core.rank_assignment.identity import InitialRank

__all__ = ["FaultReports", "MonitorStore", "RankPage", "RankPort", "WatchPorts"]


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


class RankPort(Protocol):
    """The rank: its process, and what is written to its page."""

    def sleep(self, until: float) -> Awaitable[bool]:
        """Wait until the rank's process ends, or its page changes, or for the time; return whether it has ended."""

    def report_pause(self, seconds: float) -> Awaitable[None]:
        """This process was paused for so many seconds, which do not count against any rank."""

    def sample(self, out_by: float) -> Awaitable[ProgressSample]:
        """Return the sample of the rank; it has to be out of the function by `out_by`, awake seconds."""

    def mark_stalled(self, iteration: int) -> Awaitable[None]:
        """Write to the page that the rank is reported in the iteration."""

    def mark_round_over(self, iteration: int) -> Awaitable[None]:
        """Write to the page that the round is over."""

    def mark_store_lost(self) -> Awaitable[None]:
        """Write to the page that the store is lost."""

    def renew_connections(self, reason: str) -> Awaitable[None]:
        """Write to the page that the rank does not hear of the end of its iteration: it opens its connections again."""

    def disown_page(self) -> Awaitable[None]:
        """Stop writing to the page: it may be used by the next rank."""

    def interrupt(self, reason: str) -> Awaitable[None]:
        """Send the interrupt signal."""

    def terminate(self, reason: str) -> Awaitable[None]:
        """Terminate the rank, with a grace period for its signal handler."""

    def kill(self, reason: str) -> Awaitable[None]:
        """Kill the rank, which was asked to terminate."""

    def kill_without_store(self, reason: str) -> Awaitable[None]:
        """Kill the rank, whose death cannot be reported to the store."""


class FaultReports(Protocol):
    """The faults that a monitor process detects."""

    def describe_stall(self, reason: str, iteration: int) -> Awaitable[FaultRecord]:
        """Return the fault that this rank blocks the others."""

    def describe_death(self, reason: str | None, since: float | None) -> Awaitable[FaultRecord]:
        """Return the fault record of the rank's death.

        Args:
            reason: why this process has ended it; None if it has not.
            since: since when it had made no progress then, monotonic seconds; None: since its last sign of life.
        """

    def describe_silence(self, member: InitialRank) -> Awaitable[FaultRecord]:
        """Return the fault that a sibling's monitor process is silent."""

    def note_stragglers(self, iteration: int, members: tuple[InitialRank, ...]) -> Awaitable[None]:
        """Record that the rank waits for members that are behind it."""


class MonitorStore(CallStorePort, Protocol):
    """The control store, as a monitor process uses it."""

    def move_lease(self) -> Awaitable[None]:
        """Renew this rank's lease."""

    def probe(self) -> Awaitable[None]:
        """Check whether the store answers."""

    def report_hang(self, iteration: int) -> Awaitable[None]:
        """Write a report of the rank, whose threads do not run, if its round was ended by a soft timeout."""

    def find_progress(self) -> Awaitable[PeerProgress]:
        """Return the progress of the other members."""

    def has_decision(self, iteration: int) -> Awaitable[bool]:
        """Return whether the round has its decision; no wait for it ends."""

    def has_event(self, iteration: int) -> Awaitable[bool]:
        """Return whether the round has its event."""

    def read_leases(self, members: Collection[InitialRank]) -> Awaitable[Mapping[InitialRank, str]]:
        """Return the leases of those of these members that have one."""

    def has_left(self, member: InitialRank) -> Awaitable[bool]:
        """Return whether the member no longer needs the store: it was marked as left, or the call is over."""

    def join_for_dead(self) -> Awaitable[bool]:
        """Complete the joining of the dead rank; return whether there is a generation to report its death in."""


class WatchPorts(Protocol):
    """The ports of a watch."""

    @property
    def page(self) -> RankPage:
        """The progress page of the rank."""

    @property
    def rank(self) -> RankPort:
        """The rank."""

    @property
    def reports(self) -> FaultReports:
        """Describe its faults."""

    @property
    def store(self) -> MonitorStore:
        """The control store."""
