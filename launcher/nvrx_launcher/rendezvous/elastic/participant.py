"""A node's participation in a rendezvous for a torch elastic agent: its requests, and the decisions for it."""

from __future__ import annotations

from queue import SimpleQueue

from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousTimeoutError,
)

from nvrx_launcher.exit_codes import FAILED
from nvrx_launcher.rendezvous.coordination import Coordination, NodeEvents
from nvrx_launcher.rendezvous.messages import Decision, DecisionKind, MessageKind
from nvrx_launcher.rendezvous.progress import NodeProgress

__all__ = ["Participant"]


class Participant(NodeEvents):
    """The participation of one node; used in the thread of its event loop, except for the values that agents read.

    Attributes:
        coordination: the connection to the coordinator, set before any method is called.
        answers: the answer to each `take_part`: a decision that includes this node, or why there is none.
        node: this node's number; -1 before it has joined.
        must_restart: the workers must be stopped.
        end: why the job has ended for this node; None while it has not.
    """

    coordination: Coordination

    def __init__(self) -> None:
        self.answers = SimpleQueue[Decision | Exception]()
        self.node, self.must_restart = -1, False
        self.end: Exception | None = None
        self._cycle, self._is_waiting = -1, False

    def take_part(self) -> None:
        """Request to join the next cycle."""
        if self.end is not None:
            self.answers.put(self.end)
            return
        self._is_waiting, self.must_restart = True, False
        if self.node >= 0:
            self.coordination.tell(MessageKind.READY, self._cycle, "")

    def close(self) -> None:
        """End the job, for all nodes."""
        self.coordination.tell(MessageKind.STOP, self._cycle, "the rendezvous is closed")

    def leave(self) -> None:
        """Leave the job."""
        self.coordination.tell(MessageKind.LEFT, self._cycle, "its agent has left")
        self._over(RendezvousClosedError("this node has left"))

    def progress(self) -> NodeProgress:
        """Return no progress: the agent owns the workers."""
        return self._cycle, ()

    def joined(self, node: int) -> None:
        """Record this node's number."""
        self.node = node
        if self._is_waiting:
            self.coordination.tell(MessageKind.READY, self._cycle, "")

    def evidence_received(self, cycle: int, hang: str) -> None:
        """Do nothing: an agent of torch's has no rank monitors."""

    def decided(self, decision: Decision) -> None:
        """Handle a decision for all nodes."""
        match decision.kind:
            case DecisionKind.RUN if self._is_waiting and self.node in {member.node for member in decision.members}:
                self._is_waiting, self.must_restart, self._cycle = False, False, decision.cycle
                self.answers.put(decision)
            case DecisionKind.STOP if decision.cycle == self._cycle:
                self.must_restart = not self._is_waiting
            case DecisionKind.LOST if decision.node == self.node:
                if self._is_waiting:
                    self.coordination.tell(MessageKind.READY, self._cycle, "")
                self.must_restart = not self._is_waiting
            case DecisionKind.END:
                is_late = self._is_waiting and decision.code == FAILED
                self._over((RendezvousTimeoutError if is_late else RendezvousClosedError)(decision.reason))
            case _:
                pass

    def lease_expired(self, reason: str) -> None:
        """Make the agent stop its workers when it next polls: the other nodes consider this node lost.

        It joins again once: until then it has no number that could be lost.
        """
        if self.node < 0 or self.end is not None:
            return
        self.coordination.tell(MessageKind.LEFT, self._cycle, reason)
        self.node, self.must_restart = -1, not self._is_waiting
        self.coordination.join_again()

    def coordinator_lost(self, code: int, reason: str) -> None:
        """Handle the loss of the store."""
        self._over(RendezvousConnectionError(reason))

    def fail(self, error: Exception) -> None:
        """Handle that the thread of the event loop has ended by an exception; called in that thread, at its end.

        An agent that waits, or is about to, gets it as its answer, and each later one by `end`.
        """
        self.end = RendezvousConnectionError(str(error))
        self.answers.put(self.end)

    def _over(self, error: Exception) -> None:
        self.end = self.end or error
        if self._is_waiting:
            self._is_waiting = False
            self.answers.put(self.end)
