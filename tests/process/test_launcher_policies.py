"""Restart policies with real processes: who goes on, when all are restarted, and with which code the launchers end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.process.host import alive, eventually, free_ports
from tests.harness.process.launch import Launch, left_in

Start = Callable[..., list[Launch]]
MIN_HEALTHY = ("--restart-policy", "min-healthy")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    launched: list[Launch] = []

    def start(count: int, case: str, *options: str) -> list[Launch]:
        """Start launchers of one job; the first of them hosts the rendezvous, and has the first ranks."""
        where = ("--rdzv-endpoint", f"127.0.0.1:{free_ports()}", "--rdzv-id", "job")
        new = []
        for rank in range(count):
            new.append(Launch(tmp_path, case, *where, "--node-rank", str(rank), *options))
            launched.append(new[-1])
            if rank == 0:
                new[0].await_log("host the rendezvous")
        return new

    yield start
    for each in launched:
        each.close()
    assert eventually(lambda: not left_in(tmp_path), 10.0)


def test_the_job_goes_on_while_the_minimum_of_nodes_is_healthy(start: Start, tmp_path: Path) -> None:
    """Of three nodes, two of which are needed, one loses a worker: all else goes on. A lost node is one too many."""
    jobs = start(3, "weakens", "--nnodes", "2:3", *MIN_HEALTHY, "--rdzv-conf", "last_call_timeout=60")
    for job in jobs:
        job.read(2, "start")
    jobs[0].await_log("rank 1 (local rank 1")
    others = [each["pid"] for job in jobs for each in job.events if each["rank"] != 1]
    lost = jobs.pop()
    lost.process.kill()
    for job in jobs:
        assert [each["rank"] // 2 for each in job.read(2, "start", 1)] == [jobs.index(job)] * 2
    assert not any(map(alive, others)), "workers of two cycles at a time"
    (tmp_path / "gate").touch()
    ends = [job.finish() for job in jobs]
    assert [code for code, _ in ends] == [0, 0], ends
    assert all("has not moved its lease" in log for _, log in ends)


def test_a_lost_node_stops_nobody_while_the_minimum_is_there(start: Start, tmp_path: Path) -> None:
    """The job is done when the others are, and the node is taken for lost, 5 s after its end."""
    jobs = start(3, "gated", "--nnodes", "2:3", *MIN_HEALTHY, "--rdzv-conf", "last_call_timeout=60")
    for job in jobs:
        job.read(2, "start")
    lost = jobs.pop()
    lost.process.kill()
    assert eventually(lambda: not any(map(alive, lost.pids())), 10.0)
    (tmp_path / "gate").touch()
    ends = [job.finish() for job in jobs]
    assert [code for code, _ in ends] == [0, 0], ends
    assert {each["cycle"] for job in jobs for each in job.events} == {0}


@pytest.mark.parametrize(
    ("policy", "nodes", "expected"),
    [
        ("any-failed", "2", 1),  # any worker that fails ends the job
        ("min-healthy", "2", 1),  # the minimum is all of them
        ("min-healthy", "1:2", 0),  # the other node is enough
    ],
)
def test_a_policy_ends_all_launchers_with_one_code(
    start: Start, tmp_path: Path, policy: str, nodes: str, expected: int
) -> None:
    """No restart is left when rank 1 fails."""
    jobs = start(2, "weakens", "--nnodes", nodes, "--restart-policy", policy, "--rdzv-conf", "last_call_timeout=60")
    for job in jobs:
        job.read(2, "start")
    jobs[0].await_log("rank 1 (local rank 1")
    if expected == 0:
        (tmp_path / "gate").touch()
    ends = [job.finish() for job in jobs]
    assert [code for code, _ in ends] == [expected] * 2, ends
    assert all(("with --max-restarts 0" in log) == bool(expected) for _, log in ends)
