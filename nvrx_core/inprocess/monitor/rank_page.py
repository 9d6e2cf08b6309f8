"""The progress page as the flow of a monitor process reads it."""

from __future__ import annotations

from nvrx_core.progress.page import Page, ProgressField
from nvrx_core.progress.stage import Stage
from nvrx_core.rank_assignment.identity import InitialRank

__all__ = ["PageOfRank"]


class PageOfRank:
    """Reads one rank's page; each property is read anew.

    Args:
        page: the page.
        member: the rank's initial rank.
    """

    def __init__(self, page: Page, member: InitialRank) -> None:
        self.page, self.member = page, member

    @property
    def stage(self) -> Stage:
        """The stage of the main thread."""
        return Stage(self.page[ProgressField.STAGE])

    @property
    def iteration(self) -> int:
        """The iteration that it is in, -1 before the first."""
        return self.page[ProgressField.ITERATION]

    @property
    def store_lost_at(self) -> float:
        """When the store was lost, monotonic seconds; 0 while it is not."""
        return self.page[ProgressField.STORE_LOST] / 1e9

    @property
    def hosts_store(self) -> bool:
        """Whether its process hosts the store."""
        return bool(self.page[ProgressField.HOSTS_STORE])

    @property
    def rendezvous(self) -> int:
        """The number of rendezvous that it has started."""
        return self.page[ProgressField.RENDEZVOUS_COUNT]

    @property
    def inside(self) -> bool:
        """Whether it is inside of one."""
        return bool(self.page[ProgressField.RENDEZVOUS_DEPTH])

    @property
    def collectives(self) -> int:
        """The number of collectives that it has started."""
        return self.page[ProgressField.COLLECTIVES]

    @property
    def exited(self) -> int | None:
        """The iteration that it has completed by exit and that continues; None for none."""
        iteration = self.iteration
        waits = self.stage is Stage.WAITING
        return iteration if waits and self.page[ProgressField.EXITED] == iteration + 1 else None

    def members(self) -> frozenset[InitialRank]:
        """The members that are not lost."""
        return frozenset(self.page.members())

    def siblings(self) -> list[InitialRank]:
        """Those but the rank itself, in order."""
        return sorted(self.page.members() - {self.member})
