"""The figures: for each, the jobs that give its samples, how they are read, and the goal.

A column is an implementation with its settings. The goals that name a ratio are against the peer's defaults with a
group timeout of 10 s. Faults that lose no rank share a launch; each of the others has one of its own.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from dataclasses import dataclass

from job import Fault, Job
from samples import Read, Sample, calls, overheads, restarts, scale, tree_calls, with_cpu

__all__ = ["COLUMNS", "DEFAULTS", "FIGURES", "OURS", "Column", "Figure", "Metric"]

SOFT, HARD = 1.5, 3.0
TIMEOUTS = {"soft_timeout": SOFT, "hard_timeout": HARD}
FAST = {
    "monitor_thread_interval": 0.01,
    "monitor_process_interval": 0.01,
    "progress_watchdog_interval": 0.01,
    "heartbeat_interval": 0.1,
    "heartbeat_timeout": 2.0,
    "last_call_wait": 0.0,
    "termination_grace_time": 0.0,
}
EXACT = {"progress_watchdog_interval": 0.01}
IN_A_ROW = 4
MANY_IN_A_ROW = 40
"""Restarts of one launch of ours, whose slowest of a hundred are asked for as well."""
REPEATED = 20


@dataclass(frozen=True)
class Column:
    """An implementation at given settings.

    Attributes:
        ours: the implementation is this repository's.
        wrapper: durations passed to `Wrapper` in every figure, in seconds.
        group_timeout: timeout of the user's process group, in seconds.
    """

    name: str
    ours: bool
    wrapper: dict[str, float]
    group_timeout: float


@dataclass(frozen=True)
class Metric:
    """One row of the table.

    Attributes:
        limit: the median to reach, in seconds.
        ratio: how many times faster than the peer's defaults.
        signed: the value is an excess over a timeout, and may be below zero.
        keeps: the target's rank has to survive.
        worst: the row and its limit are about the slowest of a hundred of ours, not the median.
    """

    name: str
    text: str
    limit: float | None = None
    ratio: float | None = None
    signed: bool = False
    keeps: bool = False
    worst: bool = False


@dataclass(frozen=True)
class Figure:
    """One figure: a round of jobs is run for each column in turn, until there are enough samples.

    Attributes:
        per_round: samples of each metric that one round gives.
        peers: the peer's columns that differ in this figure.
        limit: seconds that one launch may take past its start.
        alone: a program that gives so many samples, in place of the launches.
        many: of ours there are enough samples to tell the slowest of a hundred.
    """

    key: str
    metrics: tuple[Metric, ...]
    jobs: Callable[[Column, random.Random], list[Job]]
    read: Read
    peers: tuple[str, ...]
    per_round: Callable[[Column], int] = lambda column: 1
    ranks: int = 4
    limit: float = 60.0
    alone: Callable[[int], list[Sample]] | None = None
    many: bool = False


OURS = "nvrx"
DEFAULTS = "defaults, 10 s"
COLUMNS = (
    Column(OURS, True, {}, 10.0),
    Column(DEFAULTS, False, {}, 10.0),
    Column("defaults, 2 s", False, {}, 2.0),
    Column("fastest, 10 s", False, FAST, 10.0),
    Column("fastest, 2 s", False, FAST, 2.0),
)
ALL_PEERS = tuple(column.name for column in COLUMNS if not column.ours)
NO_GROUP = (DEFAULTS, "fastest, 10 s")
BUSY = {"loop": "a Python loop", "operations": "small torch operations", "asyncio": "an asyncio loop of 3 ms tasks"}


def job(column: Column, *faults: Fault, collectives: bool = False, more: dict[str, float] | None = None) -> Job:
    """Returns a training job of the column; `more` are further durations for `Wrapper`."""
    return Job(
        impl="nvrx_core.inprocess" if column.ours else "nvidia_resiliency_ext.inprocess",
        wrapper={**column.wrapper, **(more or {})},
        faults=faults,
        collectives=collectives,
        group_timeout=column.group_timeout,
        own_store=not column.ours,
    )


def fault(kind: str, chance: random.Random) -> Fault:
    """Returns a fault at a random moment of a second, so that no polling period is hit at one phase only."""
    return Fault(kind, chance.uniform(0.5, 1.5))


def early_fault(kind: str, chance: random.Random) -> Fault:
    """Returns a fault at a random moment of a tenth of a second, for what has no polling periods."""
    return Fault(kind, chance.uniform(0.1, 0.2))


def in_a_row(column: Column) -> int:
    """How many restarts one launch has."""
    return MANY_IN_A_ROW if column.ours else IN_A_ROW


def exceptions(*, collectives: bool, busy: str = "sleep") -> Callable[[Column, random.Random], list[Job]]:
    """A launch of several restarts in a row by an exception of the target."""

    def jobs(column: Column, chance: random.Random) -> list[Job]:
        choose = early_fault if column.ours else fault
        faults = [choose("exception", chance) for _ in range(in_a_row(column))]
        return [dataclasses.replace(job(column, *faults, collectives=collectives), busy=busy)]

    return jobs


def all_busy(column: Column, chance: random.Random) -> list[Job]:
    """A launch for each way in which main threads hold the interpreter."""
    return [each for busy in BUSY for each in exceptions(collectives=False, busy=busy)(column, chance)]


def model(column: Column, chance: random.Random) -> list[Job]:
    """A launch with one exception, in a training whose model is made inside the function."""
    return [dataclasses.replace(job(column, fault("exception", chance), collectives=True), workload="model")]


def kills(column: Column, chance: random.Random) -> list[Job]:
    """A launch with one SIGKILL, or several jobs with one each."""
    if not column.ours:
        return [job(column, fault("kill", chance), collectives=True)]
    return [dataclasses.replace(job(column, early_fault("kill", chance), collectives=True), repeat=REPEATED)]


def hangs(column: Column, chance: random.Random) -> list[Job]:
    """Blocking calls that signals can end: in one launch where the rank is kept, in three where it is killed."""
    faults = [fault(kind, chance) for kind in ("sleep", "lock", "recv")]
    if column.ours:
        return [job(column, *faults, more={"soft_timeout": SOFT, "hard_timeout": 30.0, **EXACT})]
    return [job(column, each, more=TIMEOUTS) for each in faults]


def hold_gil(column: Column, chance: random.Random) -> list[Job]:
    """A launch with a C call that keeps the GIL and that no signal ends."""
    exact = EXACT if column.ours else {}
    return [job(column, fault("gil", chance), more={**TIMEOUTS, **exact})]


def workload(name: str) -> Callable[[Column, random.Random], list[Job]]:
    """A launch without a fault."""
    return lambda column, chance: [dataclasses.replace(job(column), workload=name)]


FIGURES = (
    Figure(
        "P1",
        (
            Metric("p1", "exception, no collectives: fault to re-entry on all", 0.008, 150),
            Metric("p1", "the same", 0.025, worst=True),
            Metric("p1.cpu", "CPU time of it, mean of the ranks"),
            Metric("p1.cpu.monitor", "the same, of their monitor processes"),
        ),
        exceptions(collectives=False),
        with_cpu(restarts("p1"), "p1"),
        NO_GROUP,
        per_round=in_a_row,
        many=True,
    ),
    Figure(
        "P1b",
        tuple(
            Metric(f"p1b.{busy}", text, limit, worst=worst)
            for busy, words in BUSY.items()
            for text, limit, worst in ((f"the same, main threads in {words}", 0.020, False), ("the same", 0.060, True))
        ),
        all_busy,
        restarts("p1b", by_busy=True),
        NO_GROUP,
        per_round=in_a_row,
        limit=120.0,
        many=True,
    ),
    Figure(
        "P2",
        (
            Metric("p2", "exception, gloo all_reduce running: fault to re-entry on all", 0.011, 800),
            Metric("p2", "the same", 0.040, worst=True),
            Metric("p2.step", "the same, to the first step on all", 0.020),
            Metric("p2.cpu", "CPU time of it to re-entry, mean of the ranks"),
            Metric("p2.cpu.monitor", "the same, of their monitor processes"),
        ),
        exceptions(collectives=True),
        with_cpu(restarts("p2"), "p2"),
        ALL_PEERS,
        per_round=in_a_row,
        limit=120.0,
        many=True,
    ),
    Figure(
        "P2b",
        (Metric("p2b", "first restart of a DDP training, model made in the function: re-entry on all", 0.040),),
        model,
        restarts("p2b"),
        NO_GROUP,
    ),
    Figure(
        "P3",
        (
            Metric("p3", "SIGKILL, gloo all_reduce running: fault to re-entry on all others", 0.015, 600),
            Metric("p3", "the same", 0.050, worst=True),
            Metric("p3.step", "the same, to the first step on all others"),
        ),
        kills,
        restarts("p3"),
        ALL_PEERS,
        per_round=lambda column: REPEATED if column.ours else 1,
        limit=120.0,
        many=True,
    ),
    Figure(
        "P4",
        (
            Metric("p4.sleep", "hang in `time.sleep`: re-entry past the soft timeout", 0.060, signed=True, keeps=True),
            Metric("p4.lock", "hang in a lock: the same", 0.060, signed=True, keeps=True),
            Metric("p4.recv", "hang in a socket's `recv`: the same", 0.060, signed=True, keeps=True),
        ),
        hangs,
        restarts("p4", by_kind=True, timeout=SOFT),
        NO_GROUP,
    ),
    Figure(
        "P5",
        (Metric("p5", "GIL held: re-entry of the others past the hard timeout", 0.150, signed=True),),
        hold_gil,
        restarts("p5", timeout=HARD),
        NO_GROUP,
    ),
    Figure(
        "P6",
        (
            Metric("ping", "`ping()`, one call", 0.25e-6),
            Metric("atomic", "`atomic()`, entered and left", 1e-6),
        ),
        workload("calls"),
        calls,
        (DEFAULTS,),
        ranks=1,
    ),
    Figure(
        "P12",
        (
            Metric("entry", "entry: call to first line of the function, slowest rank", 0.060),
            Metric("exit", "exit: last return of the function to return of the call, slowest rank", 0.010),
        ),
        workload("trivial"),
        overheads,
        NO_GROUP,
    ),
    Figure(
        "P10",
        (
            Metric("p10", "16,384 ranks, a connection each: fault told, barrier, decision, ShiftRanks", 1.0),
            Metric("p10.event", "of it: fault told until all have read it"),
            Metric("p10.decision", "of it: last arrival to decision"),
            Metric("p10.own", "of it: what one rank computes"),
            Metric("p10.store", "CPU time of the store, one thread, for it"),
            Metric("p10.all", "the same if this machine computes for all ranks"),
            Metric("p10.first", "first barrier of 16,384 ranks"),
            Metric("p10.lease", "CPU time of the store for one lease of each, every second"),
            Metric("p10.nodes", "2,048 connections, as of one rank a node", 0.2),
            Metric("p10.tree", "Tree at 16,384 ranks, one call", 1.0),
        ),
        lambda column, chance: [],
        calls,
        (),
        alone=lambda reps: [*scale(reps, 16_384, "p10"), *scale(reps, 2_048, "p10.nodes"), *tree_calls()],
    ),
)
