"""What launchers write down of their job: one history of all nodes."""

from __future__ import annotations

import re
from pathlib import Path

from nvrx_core.events import timeline
from tests.harness.process.launch import Nodes, events_of


def story_of(folder: Path) -> list[str]:
    """The lines of the timeline, without times, pids and names of hosts."""
    text = timeline.render(timeline.read(folder / "events"))
    lines = [line.partition(" s  ")[2] or line.strip() for line in text.splitlines()]
    return [re.sub(r"pid \d+", "pid", re.sub(r" on \S+ \(pid \d+\)", "", line)) for line in lines]


def test_the_events_of_all_nodes_are_consistent(nodes: Nodes, tmp_path: Path) -> None:
    """A worker is killed, and a third node waits."""
    jobs = nodes(3, "killed", "--nnodes", "2:3", "--max-restarts", "1", "--rdzv-conf", "last_call_timeout=60")
    ends = [job.finish() for job in jobs]
    assert [code for code, _ in ends] == [0, 0, 0], ends
    told = story_of(tmp_path)
    assert sum(line.startswith("launcher cycle -1 joined") for line in told) == 3
    assert told.count("cycle 0: ranks 0 to 1; ranks 2 to 3") == 1
    assert sum(line.startswith("launcher cycle 0 spare") for line in told) == 1
    assert sum("worker_failed reason=rank 1 (local rank 1, pid) was ended by SIGKILL" in line for line in told) == 1
    assert sum(line.startswith("cycle 0 -> 1: ") for line in told) == 1
    assert any(re.fullmatch(r"the job: [\d.]+ ms until the last of 2 nodes has started its workers", x) for x in told)
    assert sum("launcher_ended code=0" in line for line in told) == 3
    (verdict,) = events_of(tmp_path, "cycle_verdict")
    assert (verdict["verdict"]["class"], verdict["verdict"]["rank"]) == ("operator_kill", 1)
    lines = [line for _, log in ends for line in log.splitlines() if "verdict of cycle" in line]
    assert len(lines) == 1, "one launcher gives it, for all nodes"
    assert re.search(r"verdict of cycle 0: operator_kill, rank 1 on \S+; action restart, confidence 0\.48$", lines[0])


def test_the_timeline_of_the_launchers_has_restarts_in_process(nodes: Nodes, tmp_path: Path) -> None:
    jobs = nodes(2, "0,3", "--nnodes", "2", worker="launcher_wrapped.py")
    for job in jobs:
        job.await_log("in-process restart continues without rank")
    (tmp_path / "gate").touch()
    assert [job.finish()[0] for job in jobs] == [0, 0]
    told = story_of(tmp_path)
    moments = ("cycle 0:", "call_entered", "restart 0 -> 1")
    places = [next(i for i, line in enumerate(told) if text in line) for text in moments]
    assert places == sorted(places)
    assert {line for line in told if "rank_lost" in line} == {
        f"launcher cycle 0 rank_lost rank={rank}" for rank in (0, 3)
    }
