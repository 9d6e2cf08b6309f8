"""The cycles of a launched job, by the events of its launchers."""

import json

import pytest

from nvrx_core.events.cycles import cycle_at, cycle_lines, cycles
from nvrx_core.events.fields import clock_offsets
from nvrx_core.events.phases import MARKS
from nvrx_core.events.schema import LAUNCHER
from nvrx_core.events.timeline import read, render, restarts

WALL = 1e9


def event(name, at, cycle=0, *, host="a", pid=7, rank=LAUNCHER, **fields):
    clock = {"wall": WALL + at, "monotonic": at, "boot_id": f"boot-{host}", "host": host, "pid": pid}
    return {"schema": 1, "event": name, **clock, "initial_rank": rank, "iteration": cycle, **fields}


def started(at, cycle=0, first_rank=0, **fields):
    return event("cycle_started", at, cycle, first_rank=first_rank, workers=fields.pop("workers", 2), **fields)


def found(*events):
    return cycles(events, clock_offsets(events))


def test_a_job_without_a_launcher_has_no_cycles():
    assert found(event("completed", 1.0, rank=3)) == ()


def test_a_cycle_costs_the_time_from_the_first_sign_of_the_fault_to_the_last_start():
    first, second = found(
        started(1.0, host="b", first_rank=2), started(1.1),
        event("rank_hung", 9.0, reason="section open"), event("worker_failed", 9.1, reason="rank 1 was ended"),
        event("cycle_stopped", 9.2, reason="a: rank 1 was ended"),
        event("cycle_stopped", 9.15, reason="told later", host="b"),
        started(9.5, 1), started(9.75, 1, host="c", first_rank=2, workers=1),
    )  # fmt: skip
    assert (first.cost, first.reason) == (None, "")
    assert [node.host for node in first.nodes] == ["a", "b"]
    assert second.cost == pytest.approx(0.75)
    assert second.reason == "told later"
    assert cycle_lines(first) == ["cycle 0: ranks 0 to 1 on a (pid 7); ranks 2 to 3 on b (pid 7)"]
    head, cost, where = cycle_lines(second)
    assert head == "cycle 0 -> 1: told later"
    assert cost == "the job: 750.0 ms until the last of 2 nodes has started its workers"
    assert where == "ranks 0 to 1 on a (pid 7); rank 2 on c (pid 7)"


def test_a_rank_that_was_about_to_be_ended_and_has_gone_on_did_not_end_its_cycle():
    def told(name, at, number=1):
        return {**event(name, at, reason=f"rank {number}"), "rank": number}

    _, second = found(
        started(1.0), told("rank_hung", 2.0), told("recovered", 2.5), told("rank_hung", 8.0, 0), told("rank_hung", 9.0),
        event("worker_failed", 9.1, reason="rank 0"), started(9.5, 1),
    )  # fmt: skip
    assert second.cost == pytest.approx(1.5)
    _, second = found(
        started(1.0), told("rank_hung", 2.0), told("recovered", 2.5), event("cycle_stopped", 9.0, reason="x"),
        started(9.5, 1),
    )  # fmt: skip
    assert second.cost == pytest.approx(0.5)


def test_a_worker_that_the_job_has_gone_on_without_did_not_end_its_cycle():
    _, second = found(
        started(1.0), event("worker_failed", 2.0, reason="rank 1", in_process=True),
        event("worker_failed", 5.0, reason="rank 0"), started(5.5, 1),
    )  # fmt: skip
    assert second.cost == pytest.approx(0.5)
    assert second.reason == "rank 0"
    assert "its node" in cycle_lines(second)[1]


def test_a_cycle_whose_predecessor_is_not_known_to_have_ended_has_no_cost():
    """As when the files of the other launchers are missing."""
    assert [cycle.cost for cycle in found(started(1.0, 3), event("joined", 1.0, 4), started(2.0, 4))] == [None, None]


def test_the_cycle_of_a_moment_is_the_last_one_that_has_begun():
    known = found(started(1.0), event("cycle_stopped", 2.0, reason="x"), started(3.0, 1))
    assert [cycle_at(known, WALL + at) for at in (0.5, 1.0, 2.9, 3.0)] == [-1, 0, 0, 1]


def test_restarts_in_process_of_two_cycles_are_distinguished(tmp_path):
    """Rank 1 was not in a call when the first cycle ended, so its calls are counted otherwise."""

    def restart(rank, at):
        marks = dict.fromkeys(MARKS, at - 0.1) | {"entered": at}
        return event("restart", at, 1, rank=rank, host="a", pid=20 + rank, ended_iteration=0, marks=marks)

    def called(rank, at):
        return event("call_entered", at, rank=rank, world_size=2)

    files = {
        "launcher-a-7": [started(1.0), event("cycle_stopped", 5.0, reason="x"), started(6.0, 1)],
        "0": [called(0, 2.0), restart(0, 3.0), called(0, 7.0), restart(0, 8.0)],
        "1": [called(1, 7.0), restart(1, 8.1)],
    }
    for name, lines in files.items():
        (tmp_path / f"events-{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    events = read(tmp_path)
    assert [restart.ranks for restart in restarts(events)] == [(0,), (0, 1)]
    told = [line.split(" s  ")[1] for line in render(events).splitlines() if " s  " in line]
    assert [line.partition(":")[0] for line in told if "restart" in line or "->" in line] == [
        "restart 0 -> 1", "cycle 0 -> 1", "restart 0 -> 1",
    ]  # fmt: skip


def test_the_lines_of_a_launcher_name_it(tmp_path):
    line = event("rank_hung", 5.0, 2, rank=LAUNCHER, reason="section 'step' open", stack="File x\nFile y")
    over = event("recovered", 5.5, 2, reason="rank 1 (pid 70) goes on, and is not ended as hung", worker=70)
    (tmp_path / "events-launcher-a-7.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in (line, over)))
    assert [line.partition("launcher ")[2] for line in render(read(tmp_path)).splitlines()] == [
        "on a (pid 7) cycle 2 rank_hung reason=section 'step' open",
        "on a (pid 7) cycle 2 recovered reason=rank 1 (pid 70) goes on, and is not ended as hung",
    ]
