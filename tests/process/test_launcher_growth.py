"""A launcher that has imported torch stays small, and restarts leave nothing in it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.harness.process.host import eventually
from tests.harness.process.launch import Start, rendezvous_options

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


def settled_size(pid: int) -> Size:
    """Return the size once it stays for 2 s: the cycle before is still being cleaned up while the next one starts."""
    sizes = [size_of(pid)]

    def stays() -> bool:
        time.sleep(0.5)
        sizes.append(size_of(pid))
        return len({each[:3] for each in sizes[-5:]}) == 1 < len(sizes) - 3

    assert eventually(stays, 60.0), sizes
    return sizes[-1]


@pytest.mark.parametrize(
    ("restarts", "growth"), [(10, 6 * MEBI), pytest.param(100, 12 * MEBI, marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize("nodes", ["1", "1:2"])
def test_restarts_leave_nothing_behind(launcher: Start, tmp_path: Path, nodes: str, restarts: int, growth: int) -> None:
    """The launcher of a job of several nodes has imported torch."""
    options = (
        *rendezvous_options(), "--nnodes", nodes, "--rdzv-conf", "last_call_timeout=0", "--max-restarts", str(restarts),
        "--ft-warm-workers", "off", "--ft-restart-backoff", "none", "-t", "3", "--log-dir", str(tmp_path),
    )  # fmt: skip
    job = launcher("churns", *options, NVRX_TEST_LAST=str(restarts))
    sizes = []
    for cycle in (2, restarts):
        reached = [tmp_path / f"gate-{cycle}.reached-{rank}" for rank in (0, 1)]
        assert eventually(lambda: all(each.exists() for each in reached), 120.0), job.process.poll()  # noqa: B023
        sizes.append(settled_size(job.process.pid))
        (tmp_path / f"gate-{cycle}").touch()
    code, log = job.finish()
    assert code == 0, log
    early, late = sizes
    assert late[:3] == early[:3]
    assert late.memory < early.memory + growth
    assert late.memory < 300 * MEBI
