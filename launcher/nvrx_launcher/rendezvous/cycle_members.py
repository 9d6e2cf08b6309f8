"""The nodes of a cycle: which run, which have lost a worker, and their ranks. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Self

from nvrx_launcher.rendezvous.messages import Member, NodeDescription

__all__ = ["CycleMembers", "placed"]


class CycleMembers:
    """The nodes of the present cycle, by number.

    Args:
        nodes: of a cycle that begins; all are at work and healthy.

    Attributes:
        active: those that take part.
        busy: those of them that are not done; once the cycle is stopped, those that have not stopped yet.
        unhealthy: those of them that have lost a worker.
        failed: those of them all of whose workers have failed.
        misused: those of them all of whose workers refuse their command line.
    """

    def __init__(self, nodes: Iterable[int] = ()) -> None:
        self.active = set(nodes)
        self.busy, self.unhealthy = set(self.active), set[int]()
        self.failed, self.misused = set[int](), set[int]()

    @classmethod
    def of(
        cls, active: frozenset[int], busy: frozenset[int], unhealthy: frozenset[int], *,
        failed: frozenset[int], misused: frozenset[int],
    ) -> Self:  # fmt: skip
        """Restore them from a state."""
        made = cls(active)
        made.busy, made.unhealthy, made.failed, made.misused = map(set, (busy, unhealthy, failed, misused))
        return made

    @property
    def healthy(self) -> int:
        """The number of nodes that have all their workers."""
        return len(self.active) - len(self.unhealthy)

    @property
    def is_nobody_left(self) -> bool:
        """Whether all workers of all nodes have failed."""
        return self.active == self.failed | self.misused

    def stop(self) -> None:
        """Expect all of them to stop."""
        self.busy = set(self.active)

    def lose(self, node: int) -> None:
        """Remove a node."""
        for each in (self.active, self.busy, self.unhealthy, self.failed, self.misused):
            each.discard(node)


def placed(nodes: Mapping[int, NodeDescription]) -> tuple[Member, ...]:
    """Return the nodes of a cycle by their rank: in the order of the infrastructure, else of hosts and addresses."""
    members, rank = list[Member](), 0
    for node in sorted(nodes, key=lambda node: (*_order(nodes[node]), node)):
        members.append(Member(node, rank, nodes[node].workers))
        rank += nodes[node].workers
    return tuple(members)


def _order(description: NodeDescription) -> tuple[float, str, str]:
    order = description.order if description.order >= 0 else math.inf
    return order, description.host, description.address
