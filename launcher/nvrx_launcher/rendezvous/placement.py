"""Which of the nodes that are ready take part in a cycle, and in which order their ranks follow. Pure.

A segment is a number of nodes of one NVLink domain that have consecutive ranks; a domain has as many segments as it has
complete ones. Without segments each node is a domain, and a segment, of its own.

- Nodes of the last cycle are preferred, then those of a lower rank by the infrastructure, then those that have joined
  first. By that preference each domain is cut into segments, and the segments with the most nodes of the last cycle
  take part: no other choice keeps more of them. Among equal ones, the domain with the lowest rank gives all that it
  has before the next domain gives any.
- Ranks follow the infrastructure, where it gives one, else hosts and addresses; with segments they do so within each
  domain, and the domains follow their first nodes.

- Where node ranks are fixed, a node takes part under its own, of several with the same one that of the last cycle.

The rule is that of nvidia-resiliency-ext (`--ft-segment`), which does not prefer the nodes of the last cycle.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from nvrx_core.parsing import ranges
from nvrx_launcher.rendezvous.messages import Member, NodeDescription

__all__ = ["change", "choose", "lacking_nodes", "members_of", "named", "usable"]

NAMED = 8
"""Hosts that a line names; of more it says how many."""


def usable(nodes: Mapping[int, NodeDescription], segment: int | None, node_ranks: int = 0) -> int:
    """Return how many of the nodes can take part at once: those of complete segments, or one for each fixed rank."""
    if node_ranks:
        return len(_by_rank(nodes, (), node_ranks))
    if segment is None:
        return len(nodes)
    return sum(len(domain) // segment * segment for domain in _domains(nodes, segment))


def choose(
    nodes: Mapping[int, NodeDescription],
    former: Collection[int],
    *,
    segment: int | None,
    most: int,
    node_ranks: int = 0,
) -> tuple[int, ...]:
    """Return the nodes that take part, by their rank.

    Args:
        nodes: those that are ready, by number.
        former: those that have taken part in the last cycle.
        segment: how many nodes a segment has; None: there are no segments.
        most: how many nodes take part at most.
        node_ranks: how many node ranks there are, where they are fixed; else 0.
    """
    if node_ranks:
        by_rank = _by_rank(nodes, former, node_ranks)
        return tuple(by_rank[rank] for rank in sorted(by_rank))
    size, segments = segment or 1, list[tuple[int, tuple[float, int], int, list[int]]]()

    def joined(node: int) -> tuple[float, int]:
        return _order(nodes[node]), node

    for domain in _domains(nodes, segment):
        lowest = min(map(joined, domain))
        preferred = sorted(domain, key=lambda node: (node not in former, joined(node)))
        for start in range(0, len(domain) - size + 1, size):
            part = preferred[start : start + size]
            segments.append((-sum(node in former for node in part), lowest, start, part))
    chosen = {node: nodes[node] for *_, part in sorted(segments)[: most // size] for node in part}

    def place(node: int) -> tuple[float, str, str, int]:
        each = nodes[node]
        return _order(each), each.host, each.address, node

    ranked = sorted((sorted(each, key=place) for each in _domains(chosen, segment)), key=lambda each: place(each[0]))
    return tuple(node for domain in ranked for node in domain)


def members_of(ranked: Sequence[int], nodes: Mapping[int, NodeDescription]) -> tuple[Member, ...]:
    """Return the members of a cycle, each with the global rank of its first worker.

    Args:
        ranked: the nodes that take part, by their rank.
        nodes: what they are.
    """
    members, rank = list[Member](), 0
    for node in ranked:
        members.append(Member(node, rank, nodes[node].workers))
        rank += nodes[node].workers
    return tuple(members)


def change(
    ranked: Iterable[int],
    nodes: Mapping[int, NodeDescription],
    former: Collection[int],
    left: Iterable[tuple[str, str]],
) -> str:
    """Return who takes part no more, and why, and who does in their place; "" if nothing has changed.

    Args:
        ranked: the nodes that take part.
        nodes: all that are ready.
        former: those of them that have taken part in the last cycle.
        left: hosts of the last cycle that are not in the job any more, and why.
    """
    ranked = set(ranked)
    gone = [f"{host} ({reason})" for host, reason in left]
    gone += [f"{nodes[node].host} (a spare now: its segment lacks a node)" for node in former if node not in ranked]
    came = [nodes[node].host for node in ranked if node not in former]
    return f"; left: {named(gone) or 'none'}; joined: {named(came) or 'none'}" if gone or came else ""


def lacking_nodes(nodes: Mapping[int, NodeDescription], segment: int | None, node_ranks: int) -> str:
    """Return what keeps the nodes that are there from taking part; "" if it is their number alone.

    That is how many of them are in complete segments, and who has no NVLink domain; or which of the fixed node ranks
    nobody has, which several have, and who has none of them, as a launcher that was given another rendezvous backend.
    """
    if node_ranks:
        hosts = dict[int, list[str]]()
        for each in nodes.values():
            hosts.setdefault(each.order, []).append(each.host)
        lines = [f"missing: --node-rank {ranges(rank for rank in range(node_ranks) if rank not in hosts)}"]
        fixed = {rank: hosts.pop(rank) for rank in sorted(hosts) if 0 <= rank < node_ranks}
        lines += [f"{named(each)} have --node-rank {rank}" for rank, each in fixed.items() if len(each) > 1]
        if hosts:
            others = named(host for each in hosts.values() for host in each)
            lines.append(f"without --node-rank {ranges(range(node_ranks))}: {others}")
        return "; ".join(lines)
    if segment is None:
        return ""
    without = named(each.host for each in nodes.values() if not each.domain)
    reason = f"; without a ClusterUUID: {without}" if without else ""
    return f"{usable(nodes, segment)} of them are in complete segments of {segment} nodes of one NVLink domain{reason}"


def named(hosts: Iterable[str]) -> str:
    """Return hosts for a line, in order, and of many how many more there are."""
    found = sorted(hosts)
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return ", ".join(found[:NAMED]) + more


def _by_rank(nodes: Mapping[int, NodeDescription], former: Collection[int], node_ranks: int) -> dict[int, int]:
    """Return who takes part under each of the fixed node ranks that some node has."""
    preferred = sorted(nodes, key=lambda node: (node not in former, node))
    found = dict[int, int]()
    for node in preferred:
        if 0 <= nodes[node].order < node_ranks:
            found.setdefault(nodes[node].order, node)
    return found


def _order(description: NodeDescription) -> float:
    return description.order if description.order >= 0 else math.inf


def _domains(nodes: Mapping[int, NodeDescription], segment: int | None) -> Iterable[list[int]]:
    """Return the nodes of each domain; a node without an NVLink domain is one of its own."""
    found = dict[str | int, list[int]]()
    for node, each in nodes.items():
        found.setdefault(node if segment is None or not each.domain else each.domain, []).append(node)
    return found.values()
