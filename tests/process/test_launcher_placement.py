"""Launchers name the NVLink domain of their node, by `nvidia-smi`; the nodes of one domain form a segment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from nvrx_launcher.nvlink_domain import find_nvlink_domain

from tests.harness.process.launch import Nodes

UUID = "50dea9a8-1bb3-4fbd-b76f-7d4c0f0a3e6f"


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH whose `nvidia-smi` is a script of the test."""
    return f"{tmp_path / 'bin'}:{os.environ['PATH']}"


def written(tmp_path: Path, script: str) -> None:
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_the_nodes_of_a_domain_run_and_the_order_of_ranks_is_the_one_asked_for(
    nodes: Nodes, tmp_path: Path, path: str
) -> None:
    """The first two are of different domains: they wait for the third, which has the lowest number in its name."""
    written(tmp_path, 'echo "        ClusterUUID                       : $NVRX_TEST_CLUSTER"')
    patient = ("--rdzv-conf", "last_call_timeout=60")
    options = ("done", "--nnodes", "2:3", "--ft-segment", "2", "--ft-rank-order", "nodename", *patient)
    domains = (UUID, UUID[::-1], UUID)
    given = [
        {"PATH": path, "NVRX_TEST_CLUSTER": domain, "SLURMD_NODENAME": f"gpu{9 - number}", "SLURM_PROCID": str(number)}
        for number, domain in enumerate(domains)
    ]
    (job,) = nodes(1, *options, **given[0])
    endpoint = job.arguments[job.arguments.index("--rdzv-endpoint") + 1]
    jobs = [job, *(nodes(1, *options, "--rdzv-endpoint", endpoint, **each)[0] for each in given[1:])]
    ends = [job.finish() for job in jobs]
    assert [code for code, _ in ends] == [0, 0, 0], ends
    ranks = [sorted(each["rank"] for each in job.events if each["event"] == "start") for job in jobs]
    assert ranks == [[2, 3], [], [0, 1]]
    assert "cycle 0: 2 nodes in segments of 2, 1 spare" in ends[0][1]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (None, "nvidia-smi cannot be started: No such file or directory"),
        ("echo no devices were found; exit 6", "nvidia-smi exits with code 6: no devices were found"),
        ("exec sleep 1000", "nvidia-smi has not answered within 0.2 s"),
        ("echo ClusterUUID : N/A", "its GPUs have no ClusterUUID"),
    ],
)
def test_a_node_whose_domain_is_unknown_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path, path: str, script: str | None,
    reason: str,
) -> None:  # fmt: skip
    if script is not None:
        written(tmp_path, script)
    monkeypatch.setenv("PATH", path if script is not None else str(tmp_path / "bin"))
    assert find_nvlink_domain(0.2 if "answered" in reason else 60.0) == ""
    assert caplog.messages == [f"this node has no NVLink domain, and is a segment of its own: {reason}"]
