"""Was anything lost? The checks that every job must pass, whatever struck it.

No process outlives its job; the ids of an iteration are unique and, once it runs, complete; nobody enters an iteration
before all living ranks left the one before; an atomic section runs to its end; the finishing iteration does each step
once; exit codes are as documented; one restart for each set of faults, with its cause and culprit in every survivor's
events; and the phases of a restart add up to the time that the ranks themselves measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from nvrx_core.events import timeline
from nvrx_core.events.phases import MARKS, phases_from_marks

from . import host
from .job import Job
from .workers.record import HELD

__all__ = ["Restart", "assert_latency_agrees", "assert_nothing_lost", "restart"]

Line = dict[str, Any]


class Restart(NamedTuple):
    """A restart that a test expects."""

    causes: frozenset[str]
    culprits: frozenset[int] | None
    lost: frozenset[int]


def restart(causes: str, by: Iterable[int] | None, lost: Iterable[int] = ()) -> Restart:
    """A restart with one of `causes` (words), the initial ranks to blame (None: not asserted), and the ranks lost."""
    return Restart(frozenset(causes.split()), None if by is None else frozenset(by), frozenset(lost))


def assert_nothing_lost(
    job: Job, *restarts: Restart, codes: Mapping[int, int] | None = None, spares: int = 0, call: int = 0
) -> None:
    """Asserts that the finished job went as it should have.

    Args:
        restarts: what each restart must say, in order; there must be no other.
        codes: exit codes by initial rank; a rank that is not named must end with 0.
        spares: how many of the last iteration's living ranks are reserves.
        call: the call of the wrapped function whose iterations are checked.
    """
    assert_no_process_left(job)
    assert job.codes == dict.fromkeys(job.pids, 0) | dict(codes or {})
    assert_restarts(job, restarts, call)
    assert_ids(job, call, job.world - sum(len(restart.lost) for restart in restarts), spares)
    assert_order(job, call)
    assert_sections(job)
    assert_steps(job, call)
    assert_nothing_held(job)


def assert_no_process_left(job: Job) -> None:
    assert host.eventually(lambda: not job.template.leftovers(), 1.0), f"left behind: {job.template.leftovers()}"


def assert_restarts(job: Job, expected: Iterable[Restart], call: int = 0) -> None:
    """Every living rank tells of every restart, and all tell the same; one that dies on entry may not."""
    living = set(range(job.world))
    told, restarts = told_restarts(job, call), list(expected)
    for number, restart in enumerate(restarts, start=1):
        living -= restart.lost
        dying = restarts[number].lost if number < len(restarts) else set()
        lines = told.pop(number, [])
        assert living - dying <= {line["initial_rank"] for line in lines} <= living, f"who told of restart {number}"
        for line in lines:
            assert_told(line, restart)
            assert_phases(line)
    assert not told, f"more restarts than faults: {told}"


def told_restarts(job: Job, call: int) -> dict[int, list[Line]]:
    """The restart events of one call, by the iteration that they begin."""
    told: dict[int, list[Line]] = {}
    for event in timeline.read(job.directory / "events"):
        line: Line = dict(event)
        if line["event"] == "restart" and line["call"] == call:
            told.setdefault(line["iteration"], []).append(line)
    return told


def assert_told(line: Line, expected: Restart) -> None:
    assert line["cause"]["interruption"] in expected.causes, line["cause"]
    assert set(line["lost"]) == expected.lost
    if expected.culprits is not None:
        assert set(line["culprits"]) == expected.culprits
        assert line["cause"]["initial_rank"] in expected.culprits


def assert_phases(line: Line) -> None:
    """The phases of one rank's restart add up to the whole."""
    phases = phases_from_marks(line["marks"])
    whole = line["marks"]["entered"] - line["marks"]["struck"]
    assert abs(sum(phases.values()) - whole) < 1e-6, phases
    assert set(MARKS) - {"interrupted"} <= set(line["marks"]), "a rank that failed by itself is not interrupted"


def assert_latency_agrees(job: Job, within: float = 0.002) -> None:
    """The phases add up to the time from the injector's stamp to the slowest rank's first line in the function.

    Of several restarts the closest counts: on a busy machine a wait for a core, which nobody sees, lies between a death
    and its first witness; what is wrong in the accounting is wrong in each of them.
    """
    strikes = job.lines("strike", call=0)
    told = timeline.restarts(timeline.read(job.directory / "events"))
    measured = [
        max(line["at"] for line in job.lines("enter", iteration=restart.iteration, call=0)) - strike["at"]
        for strike, restart in zip(strikes, told, strict=True)
    ]
    off = [sum(restart.phases.values()) - seconds for restart, seconds in zip(told, measured, strict=True)]
    assert min(map(abs, off)) < within, f"phases less measured, seconds: {off}; measured: {measured}"


def assert_ids(job: Job, call: int, living: int, spares: int) -> None:
    """Unique ids 0..W-1 in each iteration, and all of them in the last."""
    entries: dict[int, list[Line]] = {}
    for line in job.lines("enter", call=call):
        entries.setdefault(line["iteration"], []).append(line)
    for iteration, lines in entries.items():
        ranks, worlds = [line["rank"] for line in lines], {line["world_size"] for line in lines}
        assert len(worlds) == 1, f"iteration {iteration} has world sizes {worlds}"
        assert sorted(ranks) == sorted(set(ranks) & set(range(*worlds))), f"iteration {iteration}: {ranks}"
    last = entries[max(entries)]
    assert sorted(line["rank"] for line in last) == list(range(last[0]["world_size"]))
    assert last[0]["world_size"] == living - spares


def assert_order(job: Job, call: int) -> None:
    """Iterations only go up, and none is entered before every living rank left the one before."""
    left: dict[int, float] = {}
    for line in job.lines("leave", call=call):
        left[line["iteration"]] = max(line["at"], left.get(line["iteration"], 0.0))
    for line in job.lines("enter", call=call):
        assert line["at"] >= left.get(line["iteration"] - 1, 0.0), f"entered before all had left: {line}"
    for rank in range(job.world):
        iterations = [line["iteration"] for line in job.lines("enter", call=call, initial_rank=rank)]
        assert all(earlier < later for earlier, later in pairwise(iterations)), iterations


def assert_sections(job: Job) -> None:
    """An atomic section ends, unless its process did."""
    ended = {(line["initial_rank"], line["iteration"]) for line in job.lines("atomic_end")}
    for line in job.lines("atomic"):
        assert (line["initial_rank"], line["iteration"]) in ended or job.codes[line["initial_rank"]] != 0, line


def assert_steps(job: Job, call: int) -> None:
    """Each rank that came to the end did each step of the last iteration once."""
    last = max(line["iteration"] for line in job.lines("enter", call=call))
    for done in job.lines("done", call=call):
        rank = done["initial_rank"]
        if job.lines("enter", call=call, initial_rank=rank, iteration=last):
            steps = [line["step"] for line in job.lines("step", call=call, initial_rank=rank, iteration=last)]
            assert steps == list(range(job.plan.steps)), f"rank {rank} did {steps}"


def assert_nothing_held(job: Job) -> None:
    """The wrapped call leaves no thread, file or child in the rank."""
    for done in job.lines("done"):
        held = {name: done["after"][name] - done["before"][name] for name in HELD}
        assert not any(count > 0 for count in held.values()), f"rank {done['initial_rank']} still holds {held}"
