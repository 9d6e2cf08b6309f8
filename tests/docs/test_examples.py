"""The examples run as their users run them, under torchrun and as bare processes; a fault in one is survived."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.harness.process.host import free_ports
from tests.harness.process.job import Template
from tests.harness.process.launch import FORKING_LAUNCHER, FORKING_TORCHRUN, RUN_SCRIPT, ForkedProcess

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


def run(template: Template, module: str, *arguments: str) -> str:
    """What a launcher and its workers say, which ends with code 0; they are forked."""
    with ForkedProcess(template, module, arguments, environment(), stderr=subprocess.STDOUT) as launcher:
        try:
            output, _ = launcher.communicate(timeout=LIMIT)
        finally:
            launcher.kill()
    assert launcher.returncode == 0, output
    return str(output)


def test_basic_example_under_torchrun(template: Template, port: int) -> None:
    options = ["--nproc-per-node", str(RANKS), "--master-addr", "127.0.0.1", "--master-port", str(port)]
    output = run(template, FORKING_TORCHRUN, *options, str(EXAMPLE), "--fault")
    assert output.count(f"of {RANKS} has learned 1.000") == RANKS
    assert "RuntimeError: a fault" in output


def test_the_example_of_live_state_goes_on_with_the_interrupted_step(template: Template, tmp_path: Path) -> None:
    """The weights are those of a training without a fault; a job that is started again has its checkpoint."""
    example = EXAMPLE.with_name("live_state.py")
    outputs = []
    for folder, *more in (("faulty", "--fault"), ("whole",), ("faulty",)):
        options = ["--nproc-per-node", str(RANKS), "--max-restarts", "0"]
        output = run(template, FORKING_LAUNCHER, *options, str(example), "--folder", str(tmp_path / folder), *more)
        begun = re.findall(r"rank (\d) goes on with step (\d+)", output)  # lines of two ranks may be one
        ended = re.findall(r"rank (\d) has done 100 steps, with a loss of (\d\.\d{6})", output)
        outputs.append((sorted(begun), sorted(ended)))
    (begun, faulty), (_, whole), (begun_again, again) = outputs
    assert begun == [(str(rank), step) for rank in range(RANKS) for step in ("0", "70")]
    assert begun_again == [(str(rank), "50") for rank in range(RANKS)]
    assert faulty == whole == again
    assert [rank for rank, _ in faulty] == [str(rank) for rank in range(RANKS)]
