"""One timeline from the files of all ranks."""

import dataclasses
import json
import math
import re

import pytest

from nvrx_core.events.phases import MARKS, PHASES
from nvrx_core.events.timeline import Events, main, read, render, restarts

CAUSE = {
    "initial_rank": 2, "rank": 2, "interruption": "EXCEPTION", "message": "boom", "origin": "train.py:7",
    "host": "a", "pid": 77,
}  # fmt: skip


def line(event, initial_rank=0, iteration=0, at=100.0, *, host="a", offset=1e9, **fields):
    common = {
        "schema": 1,
        "event": event,
        "wall": at + offset,
        "monotonic": at,
        "host": host,
        "boot_id": f"boot-{host}",
    }
    return {**common, "pid": 1000 + initial_rank, "initial_rank": initial_rank, "iteration": iteration, **fields}


def restart(initial_rank, at, *, occurred=100.0, ended=0, **fields):
    """A rank that went on `at`, its marks evenly spread from `occurred` on."""
    step = (at - occurred) / (len(MARKS) - 1)
    marks = {name: occurred + i * step for i, name in enumerate(MARKS)}
    own = {"ended_iteration": ended, "cause": CAUSE, "culprits": [2], "lost": [2], "rank": 0, "world_size": 3}
    return line("restart", initial_rank, ended + 1, at + 0.001, **{**own, "active": True, "marks": marks, **fields})


@pytest.fixture
def write(tmp_path):
    def write(initial_rank, *lines):
        text = b"".join((x if isinstance(x, bytes) else json.dumps(x).encode()) + b"\n" for x in lines)
        (tmp_path / f"events-{initial_rank}.jsonl").write_bytes(text)
        return tmp_path

    return write


def test_a_restart_lasts_as_long_as_on_its_slowest_rank(write):
    for rank, at in ((0, 100.02), (1, 100.05), (3, 100.03)):
        folder = write(rank, line("call_entered", rank, world_size=4), restart(rank, at))
    (found,) = restarts(read(folder))
    assert (found.ended_iteration, found.iteration, found.ranks) == (0, 1, (0, 1, 3))
    assert (found.slowest_rank, found.culprits, found.lost, found.cause) == (1, (2,), (2,), CAUSE)
    assert tuple(found.phases) == PHASES
    assert math.isclose(found.total, 0.05, abs_tol=1e-9)
    assert math.isclose(sum(found.phases.values()), found.total)
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.total = 0.0


def test_restarts_are_in_the_order_in_which_the_job_resumed(write):
    folder = write(0, restart(0, 200.0, ended=1), restart(0, 100.0, ended=0), restart(0, 300.0, ended=2))
    assert [found.ended_iteration for found in restarts(read(folder))] == [0, 1, 2]


def test_a_second_call_has_restarts_of_its_own(write):
    for rank in (0, 1):
        calls = [[line("call_entered", rank, at=t - 1), restart(rank, t, occurred=t - 0.5)] for t in (100.0, 200.0)]
        folder = write(rank, *calls[0], *calls[1])
    assert [found.ranks for found in restarts(read(folder))] == [(0, 1), (0, 1)]


def test_a_process_with_a_wrong_wall_clock_is_not_the_slowest(write):
    for rank, at in ((0, 100.02), (1, 100.05), (2, 100.03)):
        folder = write(rank, restart(rank, at, offset=1e9 + (3600 if rank == 2 else 0)))
    assert restarts(read(folder))[0].slowest_rank == 1


def test_across_hosts_the_wall_clock_counts(write):
    write(0, restart(0, 100.5))
    folder = write(1, restart(1, 7.6, occurred=7.0, host="b", offset=1e9 + 93.0))
    (found,) = restarts(read(folder))
    assert (found.slowest_rank, round(found.total, 6)) == (1, 0.6)


def test_without_a_boot_id_the_host_names_the_clock(write):
    folder = write(0, restart(0, 100.5, boot_id=""), restart(0, 100.7, boot_id="", ended=1))
    assert [found.iteration for found in restarts(read(folder))] == [1, 2]


MALFORMED = [
    b"",
    b"   ",
    b"{",
    b"[1]",
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"schema": 1}',
    json.dumps(line("completed") | {"schema": 2}).encode(),
    json.dumps(line(7)).encode(),
    json.dumps(line("completed", iteration="0")).encode(),
    json.dumps(line("completed", initial_rank=True)).encode(),
    json.dumps(line("completed") | {"wall": None}).encode(),
    json.dumps(line("completed") | {"monotonic": math.nan}).encode(),
    json.dumps(line("completed", note="x" * (1 << 20))).encode(),
]


def test_malformed_lines_are_skipped_and_counted(write):
    events = read(write(0, line("completed"), *MALFORMED, line("completed", iteration=1)))
    assert [event["iteration"] for event in events] == [0, 1]
    assert events.malformed == len(MALFORMED) - 2 + 1


def test_a_last_line_without_its_end_is_read_when_it_is_whole(tmp_path):
    (tmp_path / "events-0.jsonl").write_text(json.dumps(line("completed")))
    assert len(read(tmp_path)) == 1


def test_unknown_fields_and_events_are_kept(write):
    events = read(write(0, line("completed", colour="blue"), line("eclipse")))
    assert events.records[0]["colour"] == "blue"
    assert "eclipse" in render(events)


def test_what_the_cause_of_a_restart_is_called_follows_it(write):
    verdict = {"class": "user_exception", "error_type": "ValueError", "action": "restart", "confidence": 0.85}
    events = read(write(0, restart(0, 100.02), line("restart_verdict", 0, 1, 100.2, ended_iteration=0, **verdict)))
    told = "restart_verdict class=user_exception error_type=ValueError action=restart confidence=0.85"
    assert render(events).splitlines()[-1].endswith(f"rank 0    iteration 1   {told}")


def test_a_restart_with_malformed_fields_is_rendered_partially(write):
    strange = restart(0, 100.5, cause="x", culprits="all", lost=[2, "y"], marks={"occurred": "then", "entered": 3})
    (found,) = restarts(read(write(0, strange)))
    assert (dict(found.cause), found.culprits, found.lost, found.total) == ({}, (), (2,), 0.0)


def test_the_text_has_each_event_and_each_phase_in_milliseconds(write):
    write(
        0,
        line("call_entered", 0, at=99.0, world_size=4),
        restart(0, 100.05, lost=[], culprits=[]),
        line("completed", 0, 1, 101.0),
    )
    fault = line("fault", 2, 0, 100.0, interruption="EXCEPTION", message="boom\n  loud", origin="")
    folder = write(2, line("call_entered", 2, at=99.5, world_size=4), fault, b"torn")
    events = read(folder)
    assert render(events, events.malformed).splitlines() == [
        "     +0.000 s  rank 0    iteration 0   call_entered world_size=4",
        "     +0.500 s  rank 2    iteration 0   call_entered world_size=4",
        "     +1.000 s  rank 2    iteration 0   fault interruption=EXCEPTION message=boom loud",
        "     +1.050 s  restart 0 -> 1: EXCEPTION on rank 2 (a pid 77): boom at train.py:7",
        "               the job: 50.0 ms until rank 0, the last of 1, runs again; culprits none, lost none",
        f"               ms: {'  '.join(f'{phase} 5.0' for phase in PHASES)}",
        "     +2.000 s  rank 0    iteration 1   completed",
        "1 malformed lines skipped",
    ]


def test_a_restart_without_a_known_cause_is_shown(write):
    assert "restart 0 -> 1: unknown on rank ? (? pid ?): \n" in render(read(write(0, restart(0, 100.05, cause={}))))


def test_no_events_render_as_an_empty_text():
    assert render(Events(())) == ""
    assert restarts(Events(())) == ()


def test_the_command_prints_the_timeline(write, capsys):
    assert main([str(write(0, restart(0, 100.05), b"torn"))]) == 0
    printed = capsys.readouterr().out
    assert "restart 0 -> 1: EXCEPTION on rank 2" in printed
    assert "1 malformed lines skipped" in printed


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", "no such directory: .*nowhere; name the directory"),
        ("events-9.jsonl", "not a directory: .*events-9.jsonl; name"),
        ("", r"no events in .* \(1 malformed lines\); a job writes them when events_dir"),
    ],
)
def test_the_command_reports_why_there_is_no_timeline(write, capsys, name, message):
    folder = write(9, b"torn")
    assert main([str(folder / name)]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_the_command_reports_an_empty_directory(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert f"no events in {tmp_path}; a job" in capsys.readouterr().err
