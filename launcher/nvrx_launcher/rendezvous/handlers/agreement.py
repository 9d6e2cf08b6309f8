"""The agreement of the nodes of a cycle under a rendezvous that is not nvrx's. Pure.

Such a rendezvous determines which nodes take part, and nothing else. The number of the cycle and the restarts are those
of the node with the highest cycle, because others may be new in the job. The end of a cycle is written once, by the
first node that has a reason.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from nvrx_core.parsing import integer, parse_object, string
from nvrx_launcher.exit_codes import FAILED, REFUSED, USAGE
from nvrx_launcher.host_list import compress_hosts
from nvrx_launcher.rendezvous.messages import Decision, DecisionKind, Member, MessageKind, NodeDescription
from nvrx_launcher.rendezvous.parameters import NOT_RETRIED, Rules
from nvrx_launcher.rendezvous.restart_budget import BudgetState, RestartBudget
from nvrx_launcher.rendezvous.roll_call import command_difference

__all__ = ["Agreement", "JoiningNode", "agree", "conclusion"]

FAILURES = (MessageKind.FAILED, MessageKind.NO_PROGRESS, MessageKind.UNHEALTHY, MessageKind.ALL_FAILED)


@dataclass(frozen=True)
class JoiningNode:
    """A node that takes part in a cycle.

    Attributes:
        description: the node.
        control: where it would host the store of in-process restart.
        cycle: the last cycle that it knows of, -1 for none.
        budget: the restarts that it knows of.
    """

    description: NodeDescription
    control: str
    cycle: int = -1
    budget: BudgetState = field(default_factory=BudgetState)

    def to_text(self) -> str:
        """Return the wire format."""
        return json.dumps({
            "description": self.description.to_json(), "control": self.control, "cycle": self.cycle,
            "budget": self.budget.to_json(),
        })  # fmt: skip

    @classmethod
    def from_text(cls, text: str | bytes) -> Self:
        """Parse the wire format.

        Raises:
            ValueError: when it is malformed.
        """
        data = parse_object(text)
        return cls(
            NodeDescription.from_json(data.get("description", {})), string(data.get("control")),
            integer(data.get("cycle"), -1), BudgetState.from_json(data.get("budget", {})),
        )  # fmt: skip


@dataclass(frozen=True)
class Agreement:
    """A decision, and the state of the restarts after it."""

    decision: Decision
    budget: BudgetState

    def to_text(self) -> str:
        """Return the wire format."""
        return json.dumps({"decision": self.decision.to_json(), "budget": self.budget.to_json()})

    @classmethod
    def from_text(cls, text: str | bytes) -> Self:
        """Parse the wire format.

        Raises:
            ValueError: when it is malformed.
        """
        data = parse_object(text)
        return cls(Decision.from_json(data.get("decision", {})), BudgetState.from_json(data.get("budget", {})))

    def seen_by(self, rank: int) -> Decision:
        """Return the decision with the node numbers that a node uses: itself is 0, whatever its rank in this cycle."""
        members = tuple(
            replace(member, node=0 if place == rank else 1 + place)
            for place, member in enumerate(self.decision.members)
        )
        return replace(self.decision, members=members)


def agree(
    entrants: Sequence[JoiningNode], *, master_addr: str = "", master_port: int = 0, same_command: bool = False
) -> Agreement:
    """Return the decision to run a cycle, or why it cannot be run.

    Args:
        entrants: the nodes, in the order of their ranks.
        master_addr: where the workers meet, if the handler defines it; else at the first node.
        master_port: the port there, if the handler defines it; else that of the first node.
        same_command: a cycle whose nodes run different commands is not run; else its reason says that they do.
    """
    first, knows_most = entrants[0].description, max(entrants, key=lambda each: each.cycle)
    cycle, members, rank = knows_most.cycle + 1, list[Member](), 0
    reason = f"{len(entrants)} nodes"
    for place, each in enumerate(entrants):
        if "" != each.description.command != first.command:
            theirs, own = command_difference(each.description.command, first.command)
            other = f"{each.description.host} runs another command than {first.host}: {theirs!r} instead of {own!r}"
            if same_command:
                return Agreement(Decision(DecisionKind.END, cycle, other, USAGE), knows_most.budget)
            reason = f"{len(entrants)} nodes; {other}"
        members.append(Member(place, rank, each.description.workers))
        rank += each.description.workers
    decision = Decision(
        DecisionKind.RUN, cycle, reason, members=tuple(members), master_addr=master_addr or first.address,
        master_port=master_port or first.port, store=entrants[0].control,
        active_hosts=compress_hosts(each.description.host for each in entrants),
    )  # fmt: skip
    return Agreement(decision, knows_most.budget)


def conclusion(kind: MessageKind, reason: str, before: Agreement, *, rules: Rules, now: float) -> Agreement:
    """Return the agreement that ends a cycle because of a node's message.

    Args:
        kind: the kind of the message; DONE, ALL_FAILED and MISUSED from the last node, UNHEALTHY from one too many.
        reason: for people, with the node's name.
        before: the agreement at the start of the cycle.
        rules: how many there may be.
        now: the time.
    """
    cycle, budget = before.decision.cycle, before.budget
    if kind in FAILURES or kind is MessageKind.STORE_LOST:
        restarts = RestartBudget(rules.max_restarts, rules.pacing, budget, now=now)
        if kind is MessageKind.STORE_LOST:
            stop = restarts.store_lost(reason, now=now)
        else:
            stop = restarts.failed(reason, no_progress=kind is MessageKind.NO_PROGRESS, now=now)
        if spent := restarts.spent(now=now):
            return Agreement(Decision(DecisionKind.END, cycle, spent, FAILED), restarts.state(now=now))
        restarts.settle(now=now)
        return Agreement(Decision(DecisionKind.STOP, cycle, stop), restarts.state(now=now))
    if kind is MessageKind.MISUSED:
        return Agreement(Decision(DecisionKind.END, cycle, f"{reason}{NOT_RETRIED}", FAILED), budget)
    if kind is MessageKind.DONE:
        return Agreement(Decision(DecisionKind.END, cycle, "all workers are done"), budget)
    if kind is MessageKind.STOP:
        return Agreement(Decision(DecisionKind.END, cycle, reason, REFUSED), budget)
    return Agreement(Decision(DecisionKind.STOP, cycle, reason), budget)
