"""Restart policies with real processes: who goes on, when all are restarted, and with which code the launchers end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.process.host import alive, eventually
from tests.harness.process.launch import Nodes

MIN_HEALTHY = ("--restart-policy", "min-healthy")


def test_the_job_goes_on_while_the_minimum_of_nodes_is_healthy(ordered: Nodes, tmp_path: Path) -> None:
    """Of three nodes, two of which are needed, one loses a worker: all else goes on. A lost node is one too many."""
    jobs = ordered(3, "weakens", "--nnodes", "2:3", *MIN_HEALTHY, "--rdzv-conf", "last_call_timeout=60")
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


def test_a_lost_node_stops_no_other_while_the_minimum_is_healthy(ordered: Nodes, tmp_path: Path) -> None:
    """The job is done when the others are, and the node is taken for lost, 5 s after its end."""
    jobs = ordered(3, "gated", "--nnodes", "2:3", *MIN_HEALTHY, "--rdzv-conf", "last_call_timeout=60")
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
    ordered: Nodes, tmp_path: Path, policy: str, nodes: str, expected: int
) -> None:
    """No restart is left when rank 1 fails."""
    jobs = ordered(2, "weakens", "--nnodes", nodes, "--restart-policy", policy, "--rdzv-conf", "last_call_timeout=60")
    jobs[0].await_log("rank 1 (local rank 1")
    if expected == 0:
        (tmp_path / "gate").touch()
    ends = [job.finish() for job in jobs]
    assert [code for code, _ in ends] == [expected] * 2, ends
    assert all(("with --max-restarts 0" in log) == bool(expected) for _, log in ends)
