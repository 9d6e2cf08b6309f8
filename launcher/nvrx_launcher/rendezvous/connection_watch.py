"""Which nodes are lost because the connection of their launcher to the coordinator's was closed. Pure.

The kernel closes the connections of a process that ends, so the end of a launcher shows at once, and not only when its
lease has expired. But a proxy or a firewall closes connections as well, and those of a launcher that lives. So a close
only shortens the lease: a node that has neither connected again nor renewed its lease for 1.5 beats after the close is
lost. In a partition the kernels give the connection up after 10 s, and a launcher that never connected has
none to lose: until then, and for such a launcher, the lease alone counts.

An observer that is late by more than a beat was stopped itself, perhaps with all others: the time begins anew.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["ConnectionWatch"]


@dataclass
class _Closed:
    """A node without a connection.

    Attributes:
        lease: its lease, as it was read first after the close; None: not yet.
        judged_at: when it is lost if its lease is still the same, monotonic seconds.
        read_at: when its lease is to be read, monotonic seconds; `inf` while it is being read.
    """

    lease: str | None = None
    judged_at: float = math.inf
    read_at: float = -math.inf


class ConnectionWatch:
    """The connections of the nodes to the coordinator.

    Args:
        beat: seconds between two renewals of a lease.
        timeout: seconds that a node has, after a close, to connect again or to renew its lease.

    Attributes:
        timeout: the same.
    """

    def __init__(self, beat: float, timeout: float) -> None:
        self._beat, self.timeout = beat, timeout
        self._connections, self._closed = Counter[int](), dict[int, _Closed]()

    def connected(self, node: int) -> None:
        """Record a connection of a node; it may have several for a moment, while it connects again."""
        self._connections[node] += 1
        self._closed.pop(node, None)

    def closed(self, node: int) -> None:
        """Record that a connection of a node was closed."""
        self._connections[node] -= 1
        if not self._connections[node]:
            del self._connections[node]
            self._closed[node] = _Closed()

    def forget(self, node: int) -> None:
        """Forget the close of a node that is no longer in the job."""
        self._closed.pop(node, None)

    @property
    def deadline(self) -> float:
        """When `tick` is due, monotonic seconds."""
        return min((each.read_at for each in self._closed.values()), default=math.inf)

    def tick(self, *, now: float) -> tuple[int, ...]:
        """Handle that time has passed; return the nodes whose leases are to be read now, for `observed`."""
        due = tuple(node for node, each in self._closed.items() if now >= each.read_at)
        for node in due:
            self._closed[node].read_at = math.inf
        return due

    def observed(self, leases: Mapping[int, str], *, now: float) -> tuple[int, ...]:
        """Record the leases of nodes, as they were read at this time; return the nodes that are lost."""
        lost = list[int]()
        for node, lease in leases.items():
            if (closed := self._closed.get(node)) is None:
                continue
            if closed.lease is None:
                closed.lease, closed.judged_at = lease, now + self.timeout
            elif closed.lease != lease:
                del self._closed[node]
                continue
            elif now >= closed.judged_at + self._beat:
                closed.judged_at = now + self.timeout
            elif now >= closed.judged_at:
                del self._closed[node]
                lost.append(node)
                continue
            closed.read_at = closed.judged_at
        return tuple(lost)
