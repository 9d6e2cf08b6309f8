"""The checks that every job must pass, whatever faults were injected.

No process outlives its job, no file is left in its temporary directory, no process listens on its ports. The ranks of
an iteration are unique and, once it runs, complete. No rank enters an iteration before all living ranks left the
previous one. An atomic section runs to its end. The final iteration does each step once. The checkpoint is complete.
Exit codes are as documented. There is one restart for each set of faults, with its cause and culprit in every
survivor's events and in a log line. The wrapper's events satisfy its guarantees. The phases of a restart add up to the
time that the ranks measured.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from nvrx_core.events import timeline
from nvrx_core.events.phases import MARKS, phases_from_marks

from . import host
from .job import Job
from .workers.disk import DAMAGES, load
from .workers.record import HELD

__all__ = [
    "Restart", "assert_checkpoint", "assert_latency_agrees", "assert_nothing_lost", "assert_promises", "restart",
]  # fmt: skip

ENDED_WITHIN = 2.0
"""Seconds; monitor processes end a moment after their ranks."""
TOLD_WITHIN = 40
"""The lines at the end of a log that must contain the last restart."""

Line = dict[str, Any]


class Restart(NamedTuple):
    """A restart that a test expects."""

    causes: frozenset[str]
    culprits: frozenset[int] | None
    lost: frozenset[int]
    discarded: frozenset[int]


def restart(causes: str, by: Iterable[int] | None, lost: Iterable[int] = (), discarded: Iterable[int] = ()) -> Restart:
    """A restart with one of `causes` (words), the initial ranks to blame (None: not asserted), and the ranks lost.

    Ranks that the rank assignment discards leave with this restart; the next restart names them among the lost.
    """
    culprits = None if by is None else frozenset(by)
    return Restart(frozenset(causes.split()), culprits, frozenset(lost), frozenset(discarded))


def assert_nothing_lost(
    job: Job,
    *restarts: Restart,
    codes: Mapping[int, int] | None = None,
    absent: Collection[int] = (),
    spares: int = 0,
    call: int = 0,
) -> None:
    """Assert that the finished job behaved as specified.

    Args:
        restarts: the expected restarts, in order; there must be no other.
        codes: exit codes by initial rank; a rank that is not named must end with 0.
        absent: the initial ranks that were lost before the first iteration.
        spares: how many of the last iteration's living ranks are spares.
        call: the call of the wrapped function whose iterations are checked.
    """
    assert_nothing_left(job)
    assert job.codes == dict.fromkeys(job.pids, 0) | dict(codes or {})
    assert_restarts(job, restarts, call, absent)
    assert_promises(job, call)
    assert_said(job, call)
    gone = sum(len(restart.lost | restart.discarded) for restart in restarts)
    assert_ids(job, call, job.world - len(absent) - gone, spares)
    assert_order(job, call, {rank for restart in restarts if "UNRESPONSIVE" in restart.causes for rank in restart.lost})
    assert_sections(job)
    assert_steps(job, call)
    assert_nothing_held(job)


def assert_nothing_left(job: Job) -> None:
    """Nothing of the job is left on the machine except its own directories."""
    assert_no_process_left(job)
    assert not list(job.temporary.iterdir()), "files are left in the temporary directory"
    assert not host.listening() & {job.port, job.port + 1}, "somebody still listens"


def assert_no_process_left(job: Job) -> None:
    def left() -> dict[int, str]:
        return {pid: command for pid, command in job.template.leftovers().items() if pid not in job.others}

    assert host.eventually(lambda: not left(), ENDED_WITHIN), f"left behind: {left()}"


def assert_restarts(job: Job, expected: Iterable[Restart], call: int = 0, absent: Collection[int] = ()) -> None:
    """Every living rank reports every restart, and all reports agree; a rank that dies on entry may not report."""
    living = set(range(job.world)) - set(absent)
    told, restarts = told_restarts(job, call), list(expected)
    discarded = frozenset[int]()
    for number, restart in enumerate(restarts, start=1):
        living -= restart.lost | restart.discarded
        lost_next = restarts[number].lost if number < len(restarts) else set()
        dying = {rank for rank in lost_next if not job.lines("step", call=call, initial_rank=rank, iteration=number)}
        lines = told.pop(number, [])
        assert living - dying <= {line["initial_rank"] for line in lines} <= living, f"who told of restart {number}"
        for line in lines:
            assert_told(line, restart._replace(lost=restart.lost | discarded))
            assert_phases(line)
        discarded = restart.discarded
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
    whole = line["marks"]["entered"] - line["marks"]["occurred"]
    assert abs(sum(phases.values()) - whole) < 1e-6, phases
    assert set(MARKS) - {"interrupted"} <= set(line["marks"]), "a rank that failed by itself is not interrupted"


def assert_latency_agrees(job: Job, *, witnessed: bool = False, within: float = 0.002) -> None:
    """The phases add up to the time from the injection to the slowest rank's entry into the function.

    Of several restarts the closest counts: on a busy machine a process may wait for a CPU between two timestamps,
        whereas an accounting error appears in each restart. A death is `witnessed` by another process, which may wait
        for a CPU every time: then the phases begin after the injection, end before the entry, and have no gaps.
    """
    injections = job.lines("fault_injected", call=0)
    told = timeline.restarts(timeline.read(job.directory / "events"))
    entered = [max(line["at"] for line in job.lines("enter", iteration=each.iteration, call=0)) for each in told]
    seconds = [end - injection["at"] for end, injection in zip(entered, injections, strict=True)]
    missed = [measured - sum(restart.phases.values()) for restart, measured in zip(told, seconds, strict=True)]
    if witnessed:
        occurred = [min(line["marks"]["occurred"] for line in lines) for lines in told_restarts(job, 0).values()]
        missed = [gap - (at - injection["at"]) for gap, at, injection in zip(missed, occurred, injections, strict=True)]
        assert all(each["at"] <= at for each, at in zip(injections, occurred, strict=True)), "counted before the death"
    assert min(map(abs, missed)) < within, f"the phases leave out, seconds: {missed}; measured: {seconds}"


def assert_ids(job: Job, call: int, living: int, spares: int) -> None:
    """Ranks 0..W-1 are unique in each iteration, and complete in the last."""
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


def assert_order(job: Job, call: int, cut_off: Collection[int] = ()) -> None:
    """Iterations only increase, and none is entered before every living rank left the previous one.

    A rank that is cut off cannot be told to leave; it must not come back.
    """
    left: dict[int, float] = {}
    for line in (line for line in job.lines("leave", call=call) if line["initial_rank"] not in cut_off):
        left[line["iteration"]] = max(line["at"], left.get(line["iteration"], 0.0))
    for line in job.lines("enter", call=call):
        assert line["at"] >= left.get(line["iteration"] - 1, 0.0), f"entered before all had left: {line}"
    for rank in range(job.world):
        iterations = [line["iteration"] for line in job.lines("enter", call=call, initial_rank=rank)]
        assert all(earlier < later for earlier, later in pairwise(iterations)), iterations


def assert_sections(job: Job) -> None:
    """An atomic section ends, unless its process died, whatever its exit code."""
    died = {line["faulty_initial_rank"] for line in job.events("fault") if line["interruption"] == "TERMINATED"}
    ended = {(line["initial_rank"], line["iteration"]) for line in job.lines("atomic_end")}
    for line in job.lines("atomic"):
        rank = line["initial_rank"]
        assert (rank, line["iteration"]) in ended or rank in died or job.codes[rank] < 0, line


def assert_steps(job: Job, call: int) -> None:
    """Each rank that completed did each step of the last iteration once, from its last checkpoint on."""
    last = max(line["iteration"] for line in job.lines("enter", call=call))
    first = max((line["step"] for line in job.lines("resume", call=call, iteration=last)), default=0)
    for done in job.lines("done", call=call):
        rank = done["initial_rank"]
        if job.lines("enter", call=call, initial_rank=rank, iteration=last):
            steps = [line["step"] for line in job.lines("step", call=call, initial_rank=rank, iteration=last)]
            assert steps == list(range(first, job.plan.steps)), f"rank {rank} did {steps}"
            assert_redone(job, call, rank, last, first)


def assert_redone(job: Job, call: int, rank: int, iteration: int, first: int) -> None:
    """No more steps are repeated than since the last checkpoint; since the one before, if that was damaged."""
    before = [line["step"] + 1 for line in job.lines("step", call=call, initial_rank=rank, iteration=iteration - 1)]
    if job.plan.save_every:
        intervals = 2 if job.plan.disk in DAMAGES else 1
        assert max(before, default=0) - first <= intervals * job.plan.save_every, f"{before}, resumed from {first}"


def assert_checkpoint(folder: Path, steps: int) -> None:
    """The last checkpoint is complete, has counted each step once, and there are no partial files beside it."""
    assert load(folder) == steps
    assert not list(folder.glob("*.unfinished"))


def assert_promises(job: Job, call: int = 0) -> None:
    """The events satisfy S1, S2, S4 and S5 (docs/explanation/restart-protocol.md); S3 is `assert_sections`."""
    left: dict[int, int] = {}
    for iteration, lines in sorted(told_restarts(job, call).items()):
        ranks = [line["rank"] for line in lines]
        assert len(set(ranks)) == len(ranks), f"S1: iteration {iteration} has {ranks}"
        marks = [line["marks"] for line in lines]
        assert max(m["finalized"] for m in marks) <= min(m["entered"] for m in marks), f"S2: iteration {iteration}"
        told = {(str(line["cause"]), *map(tuple, (line["lost"], line["culprits"]))) for line in lines}
        assert len(told) == 1, f"S5: iteration {iteration} has several decisions: {told}"
        assert not {line["initial_rank"] for line in lines} & set(left), f"S4: {left} came back"
        left |= dict.fromkeys(lines[0]["lost"], iteration)
    for line in job.lines("enter", call=call):
        assert line["iteration"] < left.get(line["initial_rank"], 1 << 30), f"S4: a lost rank came back: {line}"


def assert_said(job: Job, call: int) -> None:
    """The end of the log reports the last restart: kind, rank, host, process and iteration."""
    told = told_restarts(job, call)
    for line in told.get(max(told, default=0), []):
        if line["rank"] == 0 and call == job.plan.calls - 1:
            cause = line["cause"]
            said = job.errors(line["initial_rank"]).splitlines()
            words = [f"restart {line['iteration']} in", cause["interruption"], f"rank {cause['rank']} "]
            words += [f"initial rank {cause['initial_rank']}, {cause['host']} pid {cause['pid']}"]
            tail = said[-TOLD_WITHIN:]
            assert any(all(word in text for word in words) for text in tail), f"{words} not in {tail}"


def assert_nothing_held(job: Job) -> None:
    """The wrapped call leaves no thread, file or child in the rank."""
    for done in job.lines("done"):
        held = {name: done["after"][name] - done["before"][name] for name in HELD}
        assert not any(count > 0 for count in held.values()), f"rank {done['initial_rank']} still holds {held}"
