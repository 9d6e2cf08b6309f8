"""The examples run as their users run them, under torchrun and as bare processes; a fault in one is survived."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.process.host import free_ports
from tests.harness.process.job import Template
from tests.harness.process.launch import RUN_SCRIPT, ForkedProcess

EXAMPLE = Path(__file__).parents[2] / "examples" / "inprocess" / "basic_example.py"
LIMIT = 120
RANKS = 2


@pytest.fixture
def port() -> int:
    """A free port whose successor is free, too: rank 0 hosts the wrapper's store there."""
    return free_ports()


def environment() -> dict[str, str]:
    """This process's, without what would place it in a job."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("NVRX_", "TORCHELASTIC_"))}


def start_bare(template: Template, port: int, *arguments: str) -> list[ForkedProcess]:
    job = {**environment(), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(RANKS)}
    return [
        ForkedProcess(
            template, RUN_SCRIPT, [str(EXAMPLE), *arguments], {**job, "RANK": str(rank)}, stderr=subprocess.STDOUT
        )
        for rank in range(RANKS)
    ]


@pytest.mark.parametrize("arguments", [[], ["--fault"]], ids=["undisturbed", "with a fault"])
def test_basic_example_as_bare_processes(template: Template, port: int, arguments: list[str]) -> None:
    ranks = start_bare(template, port, *arguments)
    try:
        outputs = [rank.communicate(timeout=LIMIT)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    for number, (rank, output) in enumerate(zip(ranks, outputs, strict=True)):
        assert rank.returncode == 0, output
        assert f"rank {number} of {RANKS} has learned 1.000" in output
    assert ("RuntimeError: a fault" in "".join(outputs)) == bool(arguments), outputs


def test_basic_example_under_torchrun(port: int) -> None:
    options = ["--nproc-per-node", str(RANKS), "--master-addr", "127.0.0.1", "--master-port", str(port)]
    command = [sys.executable, "-m", "torch.distributed.run", *options, str(EXAMPLE), "--fault"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f"of {RANKS} has learned 1.000") == RANKS
    assert "RuntimeError: a fault" in done.stdout + done.stderr


def test_the_example_of_live_state_goes_on_with_the_interrupted_step(tmp_path: Path) -> None:
    """The weights are those of a training without a fault; a job that is started again has its checkpoint."""
    example = EXAMPLE.with_name("live_state.py")
    outputs = []
    for folder, *more in (("faulty", "--fault"), ("whole",), ("faulty",)):
        launcher = [sys.executable, "-m", "nvrx_launcher", "--nproc-per-node", str(RANKS), "--max-restarts", "0"]
        command = [*launcher, str(example), "--folder", str(tmp_path / folder), *more]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=LIMIT, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        begun = re.findall(r"rank (\d) goes on with step (\d+)", done.stdout)  # lines of two ranks may be one
        ended = re.findall(r"rank (\d) has done 100 steps, with a loss of (\d\.\d{6})", done.stdout)
        outputs.append((sorted(begun), sorted(ended)))
    (begun, faulty), (_, whole), (begun_again, again) = outputs
    assert begun == [(str(rank), step) for rank in range(RANKS) for step in ("0", "70")]
    assert begun_again == [(str(rank), "50") for rank in range(RANKS)]
    assert faulty == whole == again
    assert [rank for rank, _ in faulty] == [str(rank) for rank in range(RANKS)]
