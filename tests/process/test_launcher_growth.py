"""A launcher that has imported torch stays small, and restarts leave nothing in it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.harness.process.host import eventually, free_ports
from tests.harness.process.launch import Launch

MEBI = 1 << 20


class Size(NamedTuple):
    """What a process holds."""

    descriptors: int
    children: int
    threads: int
    memory: int


def size_of(pid: int) -> Size:
    tasks = list(Path(f"/proc/{pid}/task").iterdir())
    children = sum(len((task / "children").read_text().split()) for task in tasks)
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return Size(len(os.listdir(f"/proc/{pid}/fd")), children, len(tasks), int(status["VmRSS"].split()[0]) << 10)


@pytest.mark.parametrize(
    ("restarts", "growth"), [(10, 6 * MEBI), pytest.param(100, 12 * MEBI, marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize("nodes", ["1", "1:2"])
def test_restarts_leave_nothing_behind(tmp_path: Path, nodes: str, restarts: int, growth: int) -> None:
    """The launcher of a job of several nodes has imported torch."""
    options = ("--nnodes", nodes, "--max-restarts", str(restarts), "-t", "3", "--rdzv-conf", "last_call_timeout=0")
    endpoint = (
        "--rdzv-endpoint",
        f"127.0.0.1:{free_ports()}",
        "--ft-warm-workers",
        "off",
        "--ft-restart-backoff",
        "none",
    )
    job = Launch(tmp_path, "churns", *options, *endpoint, "--log-dir", str(tmp_path), NVRX_TEST_LAST=str(restarts))
    sizes = []
    try:
        for cycle in (2, restarts):
            assert eventually((tmp_path / f"gate-{cycle}.reached").exists, 120.0), job.process.poll()
            sizes.append(size_of(job.process.pid))
            (tmp_path / f"gate-{cycle}").touch()
        code, log = job.finish()
    finally:
        job.close()
    assert code == 0, log
    early, late = sizes
    assert late[:3] == early[:3]
    assert late.memory < early.memory + growth
    assert late.memory < 300 * MEBI
