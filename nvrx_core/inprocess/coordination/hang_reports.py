"""The reports of a hang in the store: one for each member, in few keys, and the count of those that are written.

The reports of a block of members have one key if the store can append, else one each. Each operation raises
`StoreFailure` when the store fails.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Final, NamedTuple

from nvrx_core.fault.hang_report import HangReport
from nvrx_core.inprocess.coordination.guarded_store import BATCH, GuardedStore
from nvrx_core.rank_assignment.identity import InitialRank, initial_ranks
from nvrx_core.store.keys import StoreKeys

__all__ = ["HangReports", "Written"]

_BY_MONITOR: Final = 1 << 24
"""What a report by a monitor process counts; by a rank: 1."""


class Written(NamedTuple):
    """How many reports are written.

    Attributes:
        by_ranks: by ranks for themselves.
        by_monitors: by monitor processes for ranks whose threads do not run.
    """

    by_ranks: int
    by_monitors: int


class HangReports:
    """The reports of a call's hangs.

    Args:
        store: the connection.
        keys: the keys of the call.
    """

    def __init__(self, store: GuardedStore, keys: StoreKeys) -> None:
        self.store, self.keys = store, keys

    def put(self, iteration: int, report: HangReport, *, by_monitor: bool = False) -> Written:
        """Write a member's report; return how many are written."""
        keys, member, text = self.keys.round(iteration), InitialRank(report.initial_rank), report.encode()
        if self.store.appends:
            self.store.append(keys.hang_reports(member // BATCH), f"\n{text}")
        else:
            self.store.put(keys.hang_report(member), text)
        return self._written(iteration, _BY_MONITOR if by_monitor else 1)

    def written(self, iteration: int) -> Written:
        """Return how many are written."""
        return self._written(iteration, 0)

    def claim(self, iteration: int, member: InitialRank) -> bool:
        """Return whether this member gives the verdict: the first one that asks does."""
        return self.store.put_once(self.keys.round(iteration).hang_judge, str(member)) == str(member).encode()

    def read(self, iteration: int, members: Collection[InitialRank]) -> dict[InitialRank, HangReport]:
        """Return the reports that are written, by initial rank; malformed ones are ignored, the first one counts."""
        found = dict[InitialRank, HangReport]()
        for text in map(self.store.try_get, self._of(iteration, members)):
            for line in filter(None, (text or b"").split(b"\n")):
                with suppress(ValueError):
                    report = HangReport.decode(line)
                    found.setdefault(InitialRank(report.initial_rank), report)
        return {member: report for member, report in found.items() if member in members}

    def keys_of(self, iteration: int, members: int) -> Iterable[str]:
        """Return all keys that a hang leaves in a round."""
        keys = self.keys.round(iteration)
        return (keys.hang_reported, keys.hang_judge, *self._of(iteration, initial_ranks(members)))

    def _of(self, iteration: int, members: Collection[InitialRank]) -> Iterable[str]:
        keys = self.keys.round(iteration)
        if self.store.appends:
            return [keys.hang_reports(block) for block in sorted({member // BATCH for member in members})]
        return [keys.hang_report(member) for member in sorted(members)]

    def _written(self, iteration: int, amount: int) -> Written:
        by_monitors, by_ranks = divmod(self.store.count(self.keys.round(iteration).hang_reported, amount), _BY_MONITOR)
        return Written(by_ranks, by_monitors)
