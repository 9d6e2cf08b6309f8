"""A node's connection to the coordinator of its job."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from nvrx_core.fault_tolerance.peers import Progress
from nvrx_launcher.rendezvous.coordinator import Coordinator
from nvrx_launcher.rendezvous.failure_reports import CycleFailures, FailureReports
from nvrx_launcher.rendezvous.hang_relay import HangRelay
from nvrx_launcher.rendezvous.messages import Decision, Message, MessageKind, NodeDescription
from nvrx_launcher.rendezvous.progress import NodeProgress
from nvrx_launcher.store_host import StoreHost

__all__ = ["Coordination", "LocalCoordination", "NodeEvents", "OwnNodeOnly"]

Value = TypeVar("Value")


class NodeEvents(Protocol):
    """The callbacks of a node; in the thread of its event loop, except for `progress`."""

    def progress(self) -> NodeProgress:
        """Return the present cycle and the progress of this node's ranks; from any thread."""

    def joined(self, node: int) -> None:
        """Handle that the node has joined under a number."""

    def evidence_received(self, cycle: int, hang: str) -> None:
        """Handle that all nodes have written what their ranks show of a hang; where the coordinator runs."""

    def decided(self, decision: Decision) -> None:
        """Handle a decision for all nodes."""

    def lease_expired(self, reason: str) -> None:
        """Handle that its lease cannot be renewed: the others are about to consider it lost."""

    def coordinator_lost(self, code: int, reason: str) -> None:
        """Handle the loss of the coordinator; `code` is the launcher's exit code."""


class Coordination(Protocol):
    """The connection of a node to the coordinator, wherever that runs."""

    @property
    def store(self) -> StoreHost:
        """The store of in-process restart."""

    @property
    def hosts_store(self) -> bool:
        """Whether the other nodes need this launcher, because it hosts the store in which they meet."""

    @property
    def deadline(self) -> float:
        """When `tick` is due, monotonic seconds."""

    def join(self) -> None:
        """Join the job; `NodeEvents.joined` receives the node's number."""

    def join_again(self) -> None:
        """Join the job under another number, which `NodeEvents.joined` receives."""

    def tell(self, kind: MessageKind, cycle: int, reason: str, records: tuple[str, ...] = ()) -> None:
        """Send a message to the coordinator; `records`: what the kernel of this node has recorded in the cycle."""

    def ask_progress(self, answer: Callable[[Sequence[Progress]], object]) -> None:
        """Ask for the progress of the slowest ranks of other nodes."""

    def share_pace(self, text: str, nodes: Sequence[int], answer: Callable[[Sequence[bytes]], object]) -> None:
        """Publish the section times of this node.

        Args:
            text: the times.
            nodes: the nodes that take part.
            answer: called with those of all these nodes if this launcher runs the coordinator, with nothing if it does
                not, or if not all have published theirs.
        """

    @property
    def runs_coordinator(self) -> bool:
        """Whether this launcher runs the coordinator, or each launcher decides for itself."""

    @property
    def coordinator(self) -> int:
        """The node whose launcher runs the coordinator; -1 where there is none, or it is not known."""

    def share_evidence(self, cycle: int, hang: str, text: str, nodes: int) -> None:
        """Write what the ranks of this node show of a hang; the last one of so many nodes tells the coordinator."""

    def gather_evidence(
        self, nodes: Sequence[int], judged: Callable[[Sequence[bytes]], Value], answer: Callable[[Value], object]
    ) -> None:
        """Read what the ranks of nodes show of a hang.

        Args:
            nodes: the nodes.
            judged: returns the verdict by what they have last written, perhaps in another thread.
            answer: called with the verdict, in the event loop.
        """

    def store_used(self) -> None:
        """Announce to the other nodes that a rank has connected to this launcher's store of in-process restart."""

    def failures(self, cycle: int) -> CycleFailures | None:
        """Return what nodes have reported of the failures of a cycle; None: another launcher has the reports."""

    def tick(self, *, now: float) -> None:
        """Handle that time has passed; everything that has arrived until `now` is handled."""

    def paused(self, *, now: float) -> None:
        """Handle that this launcher has stood still until now: its own silence is not the store's."""

    def release(self) -> None:
        """End all threads once the job is left, in a process that continues."""


class OwnNodeOnly:
    """What a launcher does that knows nothing of other nodes: its job has one, or a rendezvous without a coordinator.

    Args:
        node: handles the events.
        deliver: calls what delivers one, at once or later.
    """

    def __init__(self, node: NodeEvents, deliver: Callable[[Callable[[], object]], object]) -> None:
        self._node, self._deliver, self._evidence = node, deliver, b""

    def join_again(self) -> None:
        """Join the job again: without leases, no other node considers this one lost."""
        self._node.joined(0)

    def ask_progress(self, answer: Callable[[Sequence[Progress]], object]) -> None:
        """Answer that nothing is known of other nodes."""
        answer(())

    def share_pace(self, text: str, nodes: Sequence[int], answer: Callable[[Sequence[bytes]], object]) -> None:
        """Answer with the section times of this node."""
        answer([text.encode()])

    def share_evidence(self, cycle: int, hang: str, text: str, nodes: int) -> None:
        """Keep what the ranks of this node show of a hang: it is all that is judged by."""
        self._evidence = text.encode()
        self._deliver(lambda: self._node.evidence_received(cycle, hang))

    def gather_evidence(
        self, nodes: Sequence[int], judged: Callable[[Sequence[bytes]], Value], answer: Callable[[Value], object]
    ) -> None:
        """Answer with the verdict by the ranks of this node, which count as those of each node."""
        verdict = judged([self._evidence] * len(nodes))
        self._deliver(lambda: answer(verdict))

    def paused(self, *, now: float) -> None:
        """Do nothing: there is no lease."""

    def release(self) -> None:
        """Do nothing: no thread waits for a store."""


class LocalCoordination(OwnNodeOnly):
    """The coordinator of a job of one node, in the launcher itself.

    Args:
        coordinator: decides.
        describe: describes this node, anew for each cycle.
        node: handles each decision, after the call that led to it has returned.
        store: the store of in-process restart.
    """

    runs_coordinator, coordinator = True, 0

    def __init__(
        self,
        coordinator: Coordinator,
        describe: Callable[[], NodeDescription],
        node: NodeEvents,
        *,
        store: StoreHost,
    ) -> None:
        super().__init__(node, lambda call: call())
        self._coordinator, self._describe = coordinator, describe
        self.store, self.hosts_store = store, False
        self._decisions, self._reports, self._hangs = deque[Decision](), FailureReports({}), HangRelay()

    @property
    def deadline(self) -> float:
        """When `tick` is due, monotonic seconds."""
        return -math.inf if self._decisions else self._coordinator.deadline

    def join(self) -> None:
        """Join the job."""
        self._coordinator.start(now=time.monotonic())
        self._node.joined(0)

    def tell(self, kind: MessageKind, cycle: int, reason: str, records: tuple[str, ...] = ()) -> None:
        """Send a message to the coordinator."""
        description = self._describe() if kind is MessageKind.READY else None
        message = Message(0, kind, cycle, reason, description, records)
        self._reports.received(message)
        now = time.monotonic()
        self._decisions += self._hangs.received(message, cycle=self._coordinator.cycle, judge=0, now=now)
        self._decisions += self._coordinator.received(message, now=now)

    def store_used(self) -> None:
        """Do nothing: there are no other nodes."""

    def failures(self, cycle: int) -> CycleFailures:
        """Return what this node has reported of the failures of a cycle."""
        return self._reports.of(cycle)

    def tick(self, *, now: float) -> None:
        """Handle that time has passed, and deliver the decisions."""
        self._decisions += self._coordinator.tick(now=now)
        while self._decisions:
            self._node.decided(self._decisions.popleft())
