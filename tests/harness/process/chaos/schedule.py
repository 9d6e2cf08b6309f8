"""The job and the blows of a seed. Pure: the same seed draws the same on every machine."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

__all__ = ["Blow", "Schedule", "Shape", "draw"]

SHORTEST, LONGEST = 0.1, 90.0
"""Seconds that something is stopped for, at least and at most."""
SPAN = 30.0
"""Seconds in which blows begin."""

PROCESSES = {
    "worker": 8, "launcher": 5, "coordinator": 3, "guardian": 2, "control_store": 4, "monitor": 3, "fork_server": 3,
    "standby": 2, "call_monitor": 2, "rendezvous": 3, "store_query": 2,
}  # fmt: skip
"""What is struck, and how often. `coordinator` is the launcher that runs it, `rendezvous` an etcd or a store that is
none of the launchers', `store_query` the program by which other launchers ask the control store. A kind that a job
does not have is not drawn."""
BLOWS = {"kill": 4, "stop": 4, "freeze": 2}
OF_LAUNCHERS = {"term": 1, "int": 1}
OF_NODES = {
    "cut": 3, "cut_out": 1, "cut_in": 1, "slow": 1, "fill_logs": 1, "fill_events": 1, "fill_run": 1, "stall": 3,
    "kill_node": 1, "freeze_node": 2,
}  # fmt: skip
"""What happens to a node as a whole."""
ENDS_LAUNCHER = ("kill", "term", "int", "kill_node")
"""After such a blow at a launcher another one may be started on its node."""
LOSES_NO_NODE = (
    "worker", "guardian", "control_store", "store_query", "monitor", "fork_server", "standby", "call_monitor",
)  # fmt: skip
"""Kinds of processes that a job never ends for, as long as there are restarts."""
MISSED = 2.5
"""Seconds that launchers, links and the rendezvous may stand still for all in all, and no node is lost."""
OF_ETCD = {"empty": 1}
"""etcd is killed, and started again without its data."""


@dataclass(frozen=True)
class Shape:
    """What runs.

    Attributes:
        launchers: how many.
        nodes: --nnodes.
        backend: c10d, etcd-v2, or outside: c10d over a store that is none of the launchers'.
        worker: plain workers know nothing of each other, coupled ones wait for each other in each step, wrapped ones
            have in-process restart.
        workers: of a node.
        monitored: they use their rank monitors.
        standbys: there are standby workers.
        teed: the launcher passes their output on.
        console: pipe or pty.
        policy: --restart-policy.
        restarts: --max-restarts.
    """

    launchers: int
    nodes: str
    backend: str
    worker: str
    workers: int
    monitored: bool
    standbys: bool
    teed: bool
    console: str
    policy: str
    restarts: int


class Blow(NamedTuple):
    """What happens, when, to what, for how long."""

    at: float
    what: str
    kind: str
    node: int
    index: int
    seconds: float

    def __str__(self) -> str:
        lasts = f" for {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.at:5.1f} s: {self.what} {self.kind} {self.index} of node {self.node}{lasts}"


@dataclass(frozen=True)
class Schedule:
    """A job and its blows, in order.

    Attributes:
        seed: it is drawn from.
        shape: the job.
        is_early: the first blow may meet launchers that are starting; else the time counts from when all workers run.
        blows: what is done to it.
        options: of the command that draws it.
    """

    seed: int
    shape: Shape
    is_early: bool
    blows: tuple[Blow, ...]
    options: str

    @property
    def ends_at(self) -> float:
        """When the last blow is over."""
        return max((blow.at + blow.seconds for blow in self.blows), default=0.0)

    @property
    def must_go_on(self) -> bool:
        """Whether nothing is done to the job that may end it."""
        if self.shape.restarts < 10:
            return False
        rest = [each for each in self.blows if each.kind not in LOSES_NO_NODE and each.what != "stall"]
        rest = [each for each in rest if self.is_early or not each.what.startswith("fill_")]
        lasting = all(each.seconds and each.what != "empty" and not each.what.startswith("fill_") for each in rest)
        is_kept = self.shape.backend != "outside" or not any(each.kind == "rendezvous" for each in rest)
        return lasting and is_kept and sum(each.seconds for each in rest) <= MISSED

    def __str__(self) -> str:
        begins = "from the first second on" if self.is_early else "once all workers run"
        return "\n  ".join([f"seed {self.seed}: {self.shape}, {begins}", *map(str, self.blows)])


def draw(
    seed: int, *, span: float = SPAN, longest: float = LONGEST, only: Sequence[str] = (),
    fixed: Mapping[str, str] = MappingProxyType({}),
) -> Schedule:  # fmt: skip
    """Draw a job and its blows.

    Args:
        seed: of all that is drawn.
        span: seconds in which blows begin.
        longest: seconds that a blow lasts at most.
        only: kinds of blows and of processes; those that are struck, by default all.
        fixed: fields of the shape that are not drawn.
    """
    source = random.Random(seed)
    shape = _fixed(_shape(source), fixed)
    is_early = source.random() < 0.25
    times = sorted(source.uniform(0.0, span) for _ in range(source.randint(2, max(3, round(span / 3)))))
    blows = list[Blow]()
    for at in times:
        blow = _blow(source, shape, at, longest=longest, only=frozenset(only))
        blows.append(blow)
        if blow.kind in ("launcher", "coordinator", "node") and blow.what in ENDS_LAUNCHER and source.random() < 0.6:
            blows.append(Blow(at + source.uniform(0.2, 8.0), "start", "node", blow.node, 0, 0.0))
    options = [f"--span {span:g} --longest {longest:g}", *(f"--fix {name}={value}" for name, value in fixed.items())]
    options += [f"--only {','.join(only)}"] if only else []
    return Schedule(seed, shape, is_early, tuple(sorted(blows)), " ".join(options))


def _shape(source: random.Random) -> Shape:
    launchers, nodes = source.choice([(2, "2"), (2, "1:2"), (3, "2:3"), (3, "2:3"), (3, "3")])
    backend = source.choices(["c10d", "etcd-v2", "outside"], [4, 5, 2])[0]
    worker = source.choices(["plain", "coupled", "wrapped"], [3, 4, 4])[0]
    policies = ["any-failed"] if worker == "coupled" else ["any-failed", "any-failed", "min-healthy"]
    return Shape(
        launchers, nodes, backend, worker, workers=1 if worker == "wrapped" and launchers == 3 else 2,
        monitored=source.random() < 0.7, standbys=source.random() < 0.5, teed=source.random() < 0.7,
        console=source.choice(["pipe", "pty"]), policy=source.choice(policies),
        restarts=source.choice([1000, 1000, 1000, 2]),
    )  # fmt: skip


def _fixed(shape: Shape, fixed: Mapping[str, str]) -> Shape:
    """Return a shape with fields that are given as text."""
    values: dict[str, Any] = {}
    for name, text in fixed.items():
        kind = type(getattr(shape, name))
        values[name] = text == "True" if kind is bool else kind(text)
    return replace(shape, **values)


def _blow(source: random.Random, shape: Shape, at: float, *, longest: float, only: frozenset[str]) -> Blow:
    node, index = source.randrange(shape.launchers), source.randrange(4)
    kinds = {kind: weight for kind, weight in {**PROCESSES, "node": 16}.items() if _has(shape, kind)}
    kinds = {kind: weight for kind, weight in kinds.items() if _blows(shape, kind, only)}
    kind = source.choices([*kinds], [*kinds.values()])[0]
    blows = _blows(shape, kind, only)
    what = source.choices([*blows], [*blows.values()])[0]
    seconds = math.exp(source.uniform(math.log(SHORTEST), math.log(longest)))
    lasts = what not in ("term", "int", "kill_node") and (what != "kill" or kind == "rendezvous")
    return Blow(at, what, kind, node, index, seconds if lasts else 0.0)


def _blows(shape: Shape, kind: str, only: frozenset[str]) -> dict[str, int]:
    """Return what may happen to a kind of process, by how often."""
    blows = dict(OF_NODES) if kind == "node" else dict(BLOWS)
    if kind in ("launcher", "coordinator"):
        blows |= OF_LAUNCHERS
    if kind == "rendezvous" and shape.backend == "etcd-v2":
        blows |= OF_ETCD
    kinds, whats = only & {*PROCESSES, "node"}, only - {*PROCESSES, "node"}
    if kinds and kind not in kinds:
        return {}
    return {what: weight for what, weight in blows.items() if not whats or what in whats}


def _has(shape: Shape, kind: str) -> bool:
    """Return whether a job has processes of a kind."""
    return {
        "control_store": shape.worker == "wrapped",
        "store_query": shape.worker == "wrapped",
        "call_monitor": shape.worker == "wrapped",
        "standby": shape.standbys,
        "rendezvous": shape.backend != "c10d",
    }.get(kind, True)
