"""The lines for people about who has joined a job, who is missing, and whose values do not count. Pure.

The coordinator decides by the values of its own launcher. What other launchers were given may differ, on purpose or by
mistake, so each difference is said once in a term: on the node that it concerns, and by the coordinator's launcher.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterable
from typing import Final

from nvrx_launcher.rendezvous.coordinator import Coordinator
from nvrx_launcher.rendezvous.messages import Decision, DecisionKind, Member, NodeDescription
from nvrx_launcher.rendezvous.parameters import Rules
from nvrx_launcher.rendezvous.placement import lacking_nodes, named

__all__ = ["RollCall", "command_difference"]

LINE_EVERY: Final = 10.0
"""Seconds between two lines while nodes are missing."""
MOST_NOTES: Final = 200
"""Notes that are written at a time: the values of a store are bounded, and there may be one of each node."""
COLLECTS_FOR: Final = 1.0
"""Seconds that a line waits for others, or for a decision, with which it is written: many nodes may join at a time."""
SHOWN: Final = 120
"""Characters of a command that a line shows."""


class RollCall:
    """What is said about the nodes of a job, as notes among the decisions.

    Args:
        coordinator: decides who takes part.

    Attributes:
        deadline: when `tick` is due, monotonic seconds.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator, self._rules = coordinator, coordinator.rules
        self._compared = set[int]()
        self._notes, self._spares = list[Decision](), set[int]()
        self._notes_due, self._line_due = math.inf, math.inf
        self._hosts = tuple(self._rules.expected_hosts or self._active_hosts())

    @property
    def deadline(self) -> float:
        """When `tick` is due."""
        return min(self._notes_due, self._line_due)

    def joined(self, node: int, *, now: float) -> None:
        """Handle that a node has described itself, and was not refused."""
        description = self._coordinator.descriptions.get(node)
        if description is None or node in self._compared or self._coordinator.is_over:
            return
        self._compared.add(node)
        for text in _differences(self._rules, description):
            self._note(DecisionKind.WARNING, text, (node,), now)
        host, rank = description.host, description.order
        if 0 <= rank < self._rules.node_ranks:
            for other, each in self._coordinator.descriptions.items():
                if other != node and each.order == rank:
                    text = f"{host} has --node-rank {rank} like {each.host}, and can only take its place"
                    self._note(DecisionKind.WARNING, text, (node, other), now)
        if self._coordinator.active:
            self._add_spares({node}, now)

    def decided(self, decisions: tuple[Decision, ...], *, now: float) -> tuple[Decision, ...]:
        """Return what is to be written with these decisions; () to write nothing yet."""
        for decision in decisions:
            if decision.kind is DecisionKind.RUN:
                self._hosts = tuple(self._rules.expected_hosts or self._active_hosts())
                self._add_spares(self._coordinator.descriptions, now)
        if self._coordinator.short_since == math.inf:
            self._line_due = math.inf
        elif self._line_due == math.inf:
            self._line_due = now + LINE_EVERY
        if not decisions and now < self._notes_due:
            return ()
        if self._spares:
            text = f"joined as a spare: cycle {self._coordinator.cycle} runs on {named(self._active_hosts())}"
            self._note(DecisionKind.NOTE, text, sorted(self._spares), now)
        notes, rest = tuple(self._notes[:MOST_NOTES]), self._notes[MOST_NOTES:]
        self._notes, self._spares = [] if self._coordinator.is_over else rest, set()
        self._notes_due = now + COLLECTS_FOR if self._notes else math.inf
        return (*notes, *decisions)

    def tick(self, *, now: float) -> None:
        """Handle that time has passed: while nodes are missing, say so every 10 s."""
        if now < self._line_due or (since := self._coordinator.short_since) == math.inf:
            return
        self._line_due += LINE_EVERY
        ready, rules = self._coordinator.descriptions, self._rules
        joined = [each.host for each in ready.values()]
        lacking, missing = rules.min_nodes - len(joined), _missing(self._hosts, joined)
        wanted = f"missing: {named(missing)}" if len(missing) == lacking else f"{max(lacking, 0)} more needed"
        if missing and len(missing) != lacking:
            wanted += f", not joined: {named(missing)}"
        wanted = lacking_nodes(ready, rules.segment, rules.node_ranks) or wanted
        text = (
            f"waiting for nodes since {now - since:.0f} s: {len(joined)} of {rules.min_nodes} have joined "
            f"({named(joined)}); {wanted}; the job ends after {rules.join_timeout:g} s"
        )
        self._note(DecisionKind.NOTE, text, ready, now)
        self._notes_due = now

    def _add_spares(self, nodes: Iterable[int], now: float) -> None:
        """Tell those of the nodes that are spares that they are, with the next decision or soon."""
        if spares := set(nodes) - self._coordinator.active:
            self._spares |= spares
            self._notes_due = min(self._notes_due, now + COLLECTS_FOR)

    def _active_hosts(self) -> list[str]:
        nodes = self._coordinator.descriptions
        return [nodes[node].host for node in sorted(self._coordinator.active)]

    def _note(self, kind: DecisionKind, text: str, nodes: Iterable[int], now: float) -> None:
        members = tuple(Member(node, 0, 0) for node in nodes)
        self._notes.append(Decision(kind, self._coordinator.cycle, text, members=members))
        self._notes_due = min(self._notes_due, now + COLLECTS_FOR)


def command_difference(command: str, other: str) -> tuple[str, str]:
    """Return the parts of two commands in which they differ."""
    ours, theirs = _words(command), _words(other)
    first = next((number for number, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None)
    first = min(len(ours), len(theirs)) if first is None else first
    while first and ours[first - 1].startswith("-"):  # with the option whose value differs
        first -= 1
    ours, theirs = ours[first:], theirs[first:]
    while ours and theirs and ours[-1] == theirs[-1]:
        ours, theirs = ours[:-1], theirs[:-1]
    return shlex.join(ours)[:SHOWN], shlex.join(theirs)[:SHOWN]


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # it was cut in a quotation, because it is long
        return command.split()


def _differences(rules: Rules, description: NodeDescription) -> Iterable[str]:
    """Yield what to say about a node that was given other values than the coordinator's launcher."""
    host, ours = description.host, dict(rules.given)
    differ = [name for name, value in description.given if ours.get(name, value) != value]
    if differ:
        dropped = ", ".join(f"{name} {value}" for name, value in description.given if name in differ)
        count = ", ".join(f"{name} {ours[name]}" for name in differ)
        yield f"{host} was given {dropped}; {rules.host} runs the coordinator, and what it was given counts: {count}"
    if description.command and rules.command and description.command != rules.command:
        theirs, own = command_difference(description.command, rules.command)
        yield (
            f"{host} runs another command than {rules.host}: {theirs!r} instead of {own!r}; --rdzv-conf same_command=0 "
            "says that this is meant, same_command=1 refuses it"
        )


def _missing(known: Iterable[str], joined: Iterable[str]) -> list[str]:
    """Return the known hosts that have not joined; their names are compared without the domain."""
    there = Counter(host.partition(".")[0] for host in joined)
    missing = list[str]()
    for host in known:
        short = host.partition(".")[0]
        if there[short]:
            there[short] -= 1
        else:
            missing.append(host)
    return missing
