"""The cycles of a launched job, from the events of its launchers. Pure.

Each launcher writes when it starts the workers of a cycle, and when it is told to stop them. A cycle lasts from the
first start to the first stop. What a restart cost is the time from the fault that ended the cycle before, as the first
launcher has known of it, to the last start of a node's workers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from nvrx_core.events.fields import Event, number, text, time_of, whole
from nvrx_core.events.schema import LAUNCHER

__all__ = ["Cycle", "NodeOfCycle", "cycle_at", "cycle_lines", "cycles"]

_FAULTS: Final = ("rank_hung", "worker_failed", "cycle_stopped")


@dataclass(frozen=True)
class NodeOfCycle:
    """A node that takes part in a cycle.

    Attributes:
        host: its name.
        pid: its launcher.
        first_rank: the rank of its first worker.
        workers: how many it has.
    """

    host: str
    pid: int
    first_rank: int
    workers: int


@dataclass(frozen=True)
class Cycle:
    """One run of all workers.

    Attributes:
        number: its number.
        began: when the first node had started its workers, wall seconds.
        started: when the last node had started them.
        nodes: those that take part, by rank.
        reason: why the cycle before was ended; "" for the first one.
        cost: seconds from the fault that ended the cycle before; None for the first one.
    """

    number: int
    began: float
    started: float
    nodes: tuple[NodeOfCycle, ...]
    reason: str = ""
    cost: float | None = None


def cycles(events: Iterable[Event], offsets: Mapping[object, float]) -> tuple[Cycle, ...]:
    """Return the cycles of a job, in order."""
    by_cycle: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event["initial_rank"] == LAUNCHER:
            by_cycle[whole(event, "iteration")].append(event)
    found = list[Cycle]()
    for cycle in sorted(by_cycle):
        starts = [event for event in by_cycle[cycle] if event["event"] == "cycle_started"]
        if starts:
            found.append(_cycle(cycle, starts, by_cycle.get(cycle - 1, ()), offsets))
    return tuple(found)


def cycle_at(launched: Sequence[Cycle], moment: float) -> int:
    """Return the number of the cycle that runs at a moment, wall seconds; -1 before the first one."""
    return max((cycle.number for cycle in launched if cycle.began <= moment), default=-1)


def cycle_lines(cycle: Cycle) -> list[str]:
    """Return what to say about a cycle, a line each."""
    where = "; ".join(f"{_span(node)} on {node.host} (pid {node.pid})" for node in cycle.nodes)
    if cycle.cost is None:
        return [f"cycle {cycle.number}: {where}"]
    last = "its node" if len(cycle.nodes) == 1 else f"the last of {len(cycle.nodes)} nodes"
    cost = f"the job: {1e3 * cycle.cost:.1f} ms until {last} has started its workers"
    return [f"cycle {cycle.number - 1} -> {cycle.number}: {cycle.reason}", cost, where]


def _cycle(cycle: int, starts: Sequence[Event], before: Sequence[Event], offsets: Mapping[object, float]) -> Cycle:
    times = [time_of(event, offsets) for event in starts]
    began, started = min(times), max(times)
    nodes = [NodeOfCycle(text(e, "host"), whole(e, "pid"), whole(e, "first_rank"), whole(e, "workers")) for e in starts]
    nodes.sort(key=lambda node: node.first_rank)
    faults = [
        event
        for event in before
        if event["event"] in _FAULTS and not event.get("in_process") and not _has_recovered(event, before)
    ]
    stops = [event for event in faults if event["event"] == "cycle_stopped"]
    if not faults:
        return Cycle(cycle, began, started, tuple(nodes))
    reason = text(min(stops or faults, key=lambda event: time_of(event, offsets)), "reason")
    since = min(time_of(event, offsets) for event in faults)
    return Cycle(cycle, began, started, tuple(nodes), reason, started - since)


def _has_recovered(fault: Event, events: Iterable[Event]) -> bool:
    """Whether a rank that was about to be ended as hung has gone on, as the same launcher has written later."""
    where = ("host", "pid", "rank")
    return fault["event"] == "rank_hung" and any(
        event["event"] == "recovered"
        and all(event.get(name) == fault.get(name) for name in where)
        and number(event, "monotonic") >= number(fault, "monotonic")
        for event in events
    )


def _span(node: NodeOfCycle) -> str:
    last = node.first_rank + node.workers - 1
    return f"rank {node.first_rank}" if last == node.first_rank else f"ranks {node.first_rank} to {last}"
