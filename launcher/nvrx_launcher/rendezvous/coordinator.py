"""Decides for all nodes of a job: who takes part in a cycle, when it is stopped, and when the job ends. Pure.

    GATHERING --enough nodes are ready--> RUNNING --a worker fails, a node is lost--> STOPPING --all have stopped--+
        ^                                    |                                                                     |
        |                                    +--all workers are done, or restarts are spent--> ENDED               |
        +----------------------------------------------------------------------------------------------------------+

A cycle has `min_nodes` nodes; further ones are spares, which wait and take the places of lost ones. As long as fewer
than `max_nodes` are ready, the first cycle waits for more of them until the last call is over. The order of ranks is
that of the infrastructure, where there is one, else that of hosts and addresses.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

from nvrx_launcher.exit_codes import FAILED, REFUSED
from nvrx_launcher.rendezvous.messages import Decision, Member, Message, MessageKind, NodeDescription, Verdict

__all__ = ["Coordinator"]


class _Phase(enum.Enum):
    GATHERING = "gathering"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


class _Status(enum.Enum):
    READY = "ready"
    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"


@dataclass
class _Node:
    status: _Status
    description: NodeDescription


class Coordinator:
    """Decides by what the nodes say.

    Args:
        min_nodes: how many take part in a cycle.
        max_nodes: how many may join before the last call is over.
        max_restarts: how many cycles follow the first one.
        last_call: seconds that a cycle waits for more than `min_nodes` nodes.
        join_timeout: seconds within which `min_nodes` must be ready.

    Attributes:
        cycle: the number of the present cycle, or of the next one.
        deadline: when it wants `tick`, monotonic seconds.
    """

    def __init__(
        self, min_nodes: int, max_nodes: int, max_restarts: int, *, last_call: float = 1.0, join_timeout: float = 600.0
    ) -> None:
        self.min_nodes, self.max_nodes, self.max_restarts = min_nodes, max_nodes, max_restarts
        self._last_call, self._join_timeout = last_call, join_timeout
        self.cycle, self.deadline = 0, math.inf
        self._phase = _Phase.GATHERING
        self._nodes = dict[int, _Node]()
        self._active = frozenset[int]()
        self._gathering_since = self._enough_since = math.inf

    def start(self, *, now: float) -> None:
        """Begin to gather nodes."""
        self._gathering_since = now
        self._schedule()

    def received(self, message: Message, *, now: float) -> tuple[Decision, ...]:
        """Take a node's message."""
        if self._phase is _Phase.ENDED and message.kind is not MessageKind.LEFT:
            return ()
        match message.kind:
            case MessageKind.READY:
                return self._ready(message, now)
            case MessageKind.FAILED:
                return self._failed(message)
            case MessageKind.DONE:
                return self._done(message)
            case MessageKind.STOP:
                return self._end(REFUSED, message.reason)
            case MessageKind.LEFT:
                return self.lost(message.node, message.reason, now=now)
            case never:
                assert_never(never)

    def lost(self, node: int, reason: str, *, now: float) -> tuple[Decision, ...]:
        """Take the loss of a node."""
        if (known := self._nodes.pop(node, None)) is None:
            return ()
        was_active = node in self._active
        self._active -= {node}
        if was_active and self._phase is _Phase.RUNNING:
            return (*self._stop(f"{known.description.host}: {reason}"), *self._next(now))
        return self._next(now)

    def abandon(self, code: int, reason: str) -> tuple[Decision, ...]:
        """Take the end of the launcher that runs this: the job cannot go on, and must not wait."""
        return () if self._phase is _Phase.ENDED else self._end(code, reason)

    def tick(self, *, now: float) -> tuple[Decision, ...]:
        """Take the time."""
        return self._next(now) if now >= self.deadline else ()

    @property
    def nodes(self) -> frozenset[int]:
        """The nodes that are in the job."""
        return frozenset(self._nodes)

    def check(self) -> None:
        """Raise AssertionError when an invariant does not hold."""
        assert 0 <= self.cycle <= self.max_restarts
        assert self._active <= self._nodes.keys()
        running = {node for node, each in self._nodes.items() if each.status is not _Status.READY}
        assert running <= self._active

    def _ready(self, message: Message, now: float) -> tuple[Decision, ...]:
        assert message.description is not None
        known = self._nodes.get(message.node)
        if known is not None and self._phase is _Phase.RUNNING and message.node in self._active:
            return self._stop(f"{message.description.host} has begun anew")
        self._nodes[message.node] = _Node(_Status.READY, message.description)
        return self._next(now)

    def _failed(self, message: Message) -> tuple[Decision, ...]:
        if self._is_of_this_cycle(message):
            return self._stop(f"{self._nodes[message.node].description.host}: {message.reason}")
        return ()

    def _done(self, message: Message) -> tuple[Decision, ...]:
        if not self._is_of_this_cycle(message):
            return ()
        self._nodes[message.node].status = _Status.DONE
        if all(self._nodes[node].status is _Status.DONE for node in self._active):
            return self._end(0, "all workers are done")
        return ()

    def _is_of_this_cycle(self, message: Message) -> bool:
        return self._phase is _Phase.RUNNING and message.node in self._active and message.cycle == self.cycle

    def _stop(self, reason: str) -> tuple[Decision, ...]:
        if self.cycle >= self.max_restarts:
            spent = f"after {self.cycle} restarts" if self.max_restarts else "with --max-restarts 0"
            return self._end(FAILED, f"{reason}, {spent}")
        self._phase = _Phase.STOPPING
        for node in self._active:
            self._nodes[node].status = _Status.STOPPING
        return (Decision(Verdict.STOP, self.cycle, reason),)

    def _end(self, code: int, reason: str) -> tuple[Decision, ...]:
        self._phase, self.deadline = _Phase.ENDED, math.inf
        return (Decision(Verdict.END, self.cycle, reason, code),)

    def _next(self, now: float) -> tuple[Decision, ...]:
        """Begin the next cycle, as soon as all have stopped and enough nodes are there."""
        if self._phase is _Phase.STOPPING and not self._stopping():
            self._phase, self._active = _Phase.GATHERING, frozenset()
            self._gathering_since, self._enough_since = now, math.inf
            self.cycle += 1
        if self._phase is not _Phase.GATHERING:
            return ()
        self._enough_since = min(self._enough_since, now) if len(self._nodes) >= self.min_nodes else math.inf
        self._schedule()
        if self._is_complete(now):
            return self._run()
        if now >= self._gathering_since + self._join_timeout:
            joined = sorted(each.description.host for each in self._nodes.values())
            reason = f"{len(joined)} of {self.min_nodes} nodes have joined in {self._join_timeout:g} s: {joined}"
            return self._end(FAILED, reason)
        return ()

    def _stopping(self) -> bool:
        return any(self._nodes[node].status is not _Status.READY for node in self._active)

    def _is_complete(self, now: float) -> bool:
        if len(self._nodes) < self.min_nodes:
            return False
        return self.cycle > 0 or len(self._nodes) >= self.max_nodes or now >= self._enough_since + self._last_call

    def _schedule(self) -> None:
        join_by = self._gathering_since + self._join_timeout if self._enough_since == math.inf else math.inf
        self.deadline = min(self._enough_since + self._last_call, join_by)

    def _run(self) -> tuple[Decision, ...]:
        joined_first = sorted(self._nodes)[: self.min_nodes]
        members = _placed({node: self._nodes[node].description for node in joined_first})
        self._phase, self._active, self.deadline = _Phase.RUNNING, frozenset(each.node for each in members), math.inf
        for node in self._active:
            self._nodes[node].status = _Status.RUNNING
        first = self._nodes[members[0].node].description
        reason = f"{len(members)} nodes, {len(self._nodes) - len(members)} spare"
        return (
            Decision(
                Verdict.RUN, self.cycle, reason, members=members, master_addr=first.address, master_port=first.port
            ),
        )


def _placed(nodes: Mapping[int, NodeDescription]) -> tuple[Member, ...]:
    """Return the nodes of a cycle by their rank: in the order of the infrastructure, else of hosts and addresses."""
    members, rank = list[Member](), 0
    for node in sorted(nodes, key=lambda node: (*_order(nodes[node]), node)):
        members.append(Member(node, rank, nodes[node].workers))
        rank += nodes[node].workers
    return tuple(members)


def _order(description: NodeDescription) -> tuple[float, str, str]:
    order = description.order if description.order >= 0 else math.inf
    return order, description.host, description.address
