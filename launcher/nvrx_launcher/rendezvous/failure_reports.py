"""What the nodes of a job have told its coordinator of the failures of a cycle, for the verdict. Pure.

The coordinator decides by the first failure. Those that other nodes have noticed before they are told to stop arrive
later, and one of them may be the cause. A node all of whose workers have failed, and without which the job has gone on
in process, says then that it is done: its failure has not ended the cycle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from nvrx_launcher.rendezvous.messages import Message, MessageKind

__all__ = ["CycleFailures", "FailureReports"]

MAX_REPORTS: Final = 1 << 12
_FAILURES: Final = frozenset({
    MessageKind.FAILED, MessageKind.NO_PROGRESS, MessageKind.UNHEALTHY, MessageKind.ALL_FAILED, MessageKind.MISUSED,
})  # fmt: skip


@dataclass(frozen=True)
class CycleFailures:
    """The failures of a cycle, as far as nodes have reported them.

    Attributes:
        hosts: the names of the nodes, by number.
        reports: number and text of each report, in the order in which they have arrived.
        stopped: the nodes that have said since that their workers are gone.
        records: what their kernels have recorded in the cycle, by number.
    """

    hosts: Mapping[int, str]
    reports: tuple[tuple[int, str], ...] = ()
    stopped: frozenset[int] = frozenset()
    records: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


class FailureReports:
    """Keeps the reports of the last cycle of which there are any.

    Args:
        hosts: the names of the nodes that are known, by number.
    """

    def __init__(self, hosts: Mapping[int, str]) -> None:
        self._hosts, self._cycle, self._reports = dict(hosts), -1, list[Message]()
        self._stopped, self._records = dict[int, int](), dict[int, tuple[int, tuple[str, ...]]]()

    def received(self, message: Message) -> None:
        """Take a node's message, of any kind."""
        if message.description is not None:
            self._hosts[message.node] = message.description.host
        if message.kind in (MessageKind.READY, MessageKind.LEFT):
            self._stopped[message.node] = message.cycle
            self._records[message.node] = message.cycle, message.records
        if message.kind is MessageKind.DONE and message.cycle == self._cycle:
            tolerated = message.node, MessageKind.ALL_FAILED
            self._reports = [each for each in self._reports if (each.node, each.kind) != tolerated]
        if message.kind not in _FAILURES or message.cycle < self._cycle:
            return
        if message.cycle > self._cycle:
            self._cycle = message.cycle
            self._reports.clear()
        if len(self._reports) < MAX_REPORTS:
            self._reports.append(message)

    def of(self, cycle: int) -> CycleFailures:
        """Return the failures of a cycle."""
        reports = self._reports if cycle == self._cycle else ()
        stopped = frozenset(node for node, last in self._stopped.items() if last >= cycle)
        records = {node: texts for node, (last, texts) in self._records.items() if last == cycle and texts}
        return CycleFailures(dict(self._hosts), tuple((each.node, each.reason) for each in reports), stopped, records)
