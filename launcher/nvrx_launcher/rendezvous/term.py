"""Terms: which launcher runs the coordinator of a job, and the state that it starts from. Pure.

Decisions are numbered, and each number is written once, by the first writer. A new coordinator starts by writing the
next number, which fences a predecessor that does not know that it was replaced. Each number has the state of its
decision, by term; a successor continues from the last one, and handles the messages that came after it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Self

from nvrx_core.parsing import integer, parse_endpoint, parse_object, string
from nvrx_launcher.rendezvous.coordinator_state import CoordinatorState
from nvrx_launcher.rendezvous.messages import Decision

__all__ = ["Checkpoint", "Entry", "Opening", "Term"]


@dataclass(frozen=True)
class Term:
    """The period in which one launcher runs the coordinator.

    Attributes:
        number: the number of the term, from 1.
        node: the node of the launcher.
        since: the first decision of this job; earlier ones are those of a job of the same name that has ended.
        inbox: the number of messages to that earlier job.
        hosts_store: the launcher hosts the store as well: while the store is there, so is the coordinator.
        is_open: the coordinator has started.
        is_over: the launcher has left in order; the term ends before its lease expires.
        endpoint: where the other launchers connect to this one, an address and a port; empty for nowhere.
    """

    number: int
    node: int
    since: int = 1
    inbox: int = 0
    hosts_store: bool = False
    is_open: bool = False
    is_over: bool = False
    endpoint: str = ""

    def to_text(self) -> str:
        """Return the wire format."""
        return json.dumps(vars(self))

    @classmethod
    def from_text(cls, text: str | bytes) -> Self:
        """Parse the wire format.

        Raises:
            ValueError: when it is malformed.
        """
        data = parse_object(text)
        number, node, since, inbox = (integer(data.get(name), 0) for name in ("number", "node", "since", "inbox"))
        hosts_store, is_open, is_over = (data.get(name) is True for name in ("hosts_store", "is_open", "is_over"))
        endpoint = string(data.get("endpoint", ""))
        if endpoint:
            parse_endpoint(endpoint)
        return cls(number, node, since, inbox, hosts_store, is_open, is_over, endpoint)


@dataclass(frozen=True)
class Entry:
    """The value of a number: the decisions that were made together, and their term."""

    term: int
    decisions: tuple[Decision, ...]

    def to_text(self) -> str:
        """Return the wire format."""
        return json.dumps({"term": self.term, "decisions": [each.to_json() for each in self.decisions]})

    @classmethod
    def from_text(cls, text: str | bytes) -> Self:
        """Parse the wire format.

        Raises:
            ValueError: when it is malformed.
        """
        data = parse_object(text)
        return cls(integer(data.get("term"), 0), tuple(map(Decision.from_json, data.get("decisions", ()))))


@dataclass(frozen=True)
class Checkpoint:
    """The state of a coordinator at a decision; `handled`: how many messages it had handled."""

    state: CoordinatorState
    handled: int

    def to_text(self) -> str:
        """Return the wire format."""
        return json.dumps({"state": self.state.to_json(), "handled": self.handled})

    @classmethod
    def from_text(cls, text: str | bytes) -> Self:
        """Parse the wire format.

        Raises:
            ValueError: when it is malformed.
        """
        data = parse_object(text)
        return cls(CoordinatorState.from_json(data.get("state", {})), integer(data.get("handled"), 0))


@dataclass(frozen=True)
class Opening:
    """The start of a coordinator.

    Attributes:
        term: its term.
        decided: the number of the last decision.
        checkpoint: the last state of its predecessor; None: the job starts.
        predecessor: the node of the predecessor, which is lost; -1 for none.
        reason: why it counts as lost, for people.
    """

    term: Term
    decided: int = 0
    checkpoint: Checkpoint | None = None
    predecessor: int = -1
    reason: str = ""
