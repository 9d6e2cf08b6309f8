"""Who runs the coordinator of a job, and what a new one begins with. Pure.

Decisions are numbered, and each number is written once, whoever is first. A new coordinator begins by writing at the
next number, which fences one that was replaced and does not know it. Beside each number lies the state in which it was
decided, by term; a successor goes on from the last one, and takes the messages that came after it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Self

from nvrx_core.parsing import integer, parse_object
from nvrx_launcher.rendezvous.coordinator_state import CoordinatorState
from nvrx_launcher.rendezvous.messages import Decision

__all__ = ["Checkpoint", "Entry", "Opening", "Term"]


@dataclass(frozen=True)
class Term:
    """The time in which one launcher runs the coordinator.

    Attributes:
        number: counts terms, from 1.
        node: whose launcher it is.
        since: the first decision of this job; earlier ones are those of a job of the same name that has ended.
        inbox: how many messages were for that job.
        hosts_store: the launcher hosts the store as well: while the store is there, so is the coordinator.
        is_open: the coordinator has begun.
        is_over: the launcher has left, and waits for nobody to notice it by its lease.
    """

    number: int
    node: int
    since: int = 1
    inbox: int = 0
    hosts_store: bool = False
    is_open: bool = False
    is_over: bool = False

    def to_text(self) -> str:
        """Return it for the wire."""
        return json.dumps(vars(self))

    @classmethod
    def from_text(cls, text: str | bytes) -> Self:
        """Read it.

        Raises:
            ValueError: when it is malformed.
        """
        data = parse_object(text)
        number, node, since, inbox = (integer(data.get(name), 0) for name in ("number", "node", "since", "inbox"))
        hosts_store, is_open, is_over = (data.get(name) is True for name in ("hosts_store", "is_open", "is_over"))
        return cls(number, node, since, inbox, hosts_store, is_open, is_over)


@dataclass(frozen=True)
class Entry:
    """What is written at a number: what was decided at once, and in which term."""

    term: int
    decisions: tuple[Decision, ...]

    def to_text(self) -> str:
        """Return it for the wire."""
        return json.dumps({"term": self.term, "decisions": [each.to_json() for each in self.decisions]})

    @classmethod
    def from_text(cls, text: str | bytes) -> Self:
        """Read it.

        Raises:
            ValueError: when it is malformed.
        """
        data = parse_object(text)
        return cls(integer(data.get("term"), 0), tuple(map(Decision.from_json, data.get("decisions", ()))))


@dataclass(frozen=True)
class Checkpoint:
    """What a coordinator knew when it decided; `handled`: how many messages it had taken."""

    state: CoordinatorState
    handled: int

    def to_text(self) -> str:
        """Return it for the wire."""
        return json.dumps({"state": self.state.to_json(), "handled": self.handled})

    @classmethod
    def from_text(cls, text: str | bytes) -> Self:
        """Read it.

        Raises:
            ValueError: when it is malformed.
        """
        data = parse_object(text)
        return cls(CoordinatorState.from_json(data.get("state", {})), integer(data.get("handled"), 0))


@dataclass(frozen=True)
class Opening:
    """What a coordinator begins with.

    Attributes:
        term: its term.
        decided: the number of the last decision.
        checkpoint: what its predecessor knew; None: the job begins.
        predecessor: the node of that one, which is lost; -1 for none.
    """

    term: Term
    decided: int = 0
    checkpoint: Checkpoint | None = None
    predecessor: int = -1
