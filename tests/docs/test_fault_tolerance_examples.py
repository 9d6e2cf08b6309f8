"""The examples of rank monitors run as their users run them; a rank that hangs is ended, and its job goes on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nvrx_core.fault_tolerance import FaultToleranceConfig, RankMonitorServer
from tests.harness.process.host import free_ports
from tests.harness.process.job import Template
from tests.harness.process.launch import FORKING_TORCHRUN, RUN_SCRIPT, ForkedProcess

EXAMPLES = Path(__file__).parents[2] / "examples" / "fault_tolerance"
LIMIT = 120
RunRanks = Callable[..., list[tuple[int, str]]]
NOT_OURS = ("NVRX_", "FT_", "TORCHELASTIC_")


@pytest.fixture
def runtime(tmp_path: Path) -> dict[str, str]:
    """The environment of a job, without what would place it in another one; its sockets are in a folder of its own."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(NOT_OURS)}
    return inherited | {"NVRX_RUNTIME_DIR": str(tmp_path / "run")}


@pytest.fixture
def run_ranks(template: Template, runtime: dict[str, str]) -> RunRanks:
    """Runs an example as bare processes; returns exit code and output of each rank."""

    def run_ranks(world_size: int, example: str, *arguments: str, **more: str) -> list[tuple[int, str]]:
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports()), "WORLD_SIZE": str(world_size)}
        script = [str(EXAMPLES / example), *arguments]
        job = {**runtime, **more, **address}
        ranks = [
            ForkedProcess(template, RUN_SCRIPT, script, {**job, "RANK": str(rank)}, stderr=subprocess.STDOUT)
            for rank in range(world_size)
        ]
        try:
            return [(rank.wait(LIMIT), rank.communicate(timeout=LIMIT)[0]) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.communicate()

    return run_ranks


def test_the_heartbeat_example_ends_the_rank_that_hangs_and_not_the_one_that_waits(run_ranks: RunRanks) -> None:
    (_, waiting), (code, hung) = run_ranks(2, "basic_ft_example.py", "--hang")
    assert code == -signal.SIGKILL, hung
    verdict = r"rank 1 \(pid \d+\) is hung: no heartbeat for \S+ s \(timeout 5 s\), at .* train .*; it is sent SIGKILL"
    assert re.search(verdict, hung), hung
    assert "is hung" not in waiting


def test_the_heartbeat_example_uses_the_monitor_of_its_launcher(run_ranks: RunRanks, tmp_path: Path) -> None:
    path = tmp_path / "monitor.socket"
    monitor = RankMonitorServer.run_in_subprocess(FaultToleranceConfig(), path)
    try:
        [(code, output)] = run_ranks(1, "basic_ft_example.py", FT_RANK_MONITOR_IPC_SOCKET=str(path))
    finally:
        monitor.terminate()
    assert code == 0, output
    assert "rank 0 is done" in output
    assert not (tmp_path / "run").exists(), "it has started a monitor of its own"


def test_the_section_example_goes_on_with_learned_timeouts(run_ranks: RunRanks, tmp_path: Path) -> None:
    checkpoint = ("--checkpoint", str(tmp_path / "example.pt"))
    first = run_ranks(2, "section_example.py", *checkpoint)
    assert [code for code, _ in first] == [0, 0], first
    assert "from step 0 on, step may take 60.000 s" in first[0][1]
    learned = [re.findall(r"has learned: (\w+) (\S+) s", output) for _, output in first]
    assert learned[0] == learned[1], "the ranks have different timeouts"
    assert [section for section, _ in learned[0]] == ["checkpoint", "setup", "step"]
    [(code, second)] = run_ranks(1, "section_example.py", *checkpoint)
    assert code == 0, second
    assert f"from step 20 on, step may take {dict(learned[0])['step']} s" in second


def test_a_job_under_torchrun_survives_a_hang_by_one_line(
    template: Template, runtime: dict[str, str], tmp_path: Path
) -> None:
    options = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    example = [str(EXAMPLES / "train_under_torchrun.py"), "--checkpoint", str(tmp_path / "example.pt"), "--hang"]
    settings = {"NVRX_FT_RANK_HEARTBEAT_TIMEOUT": "10", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    command, environment = [*options, *example], runtime | settings
    with ForkedProcess(template, FORKING_TORCHRUN, command, environment, stderr=subprocess.STDOUT) as torchrun:
        try:
            output, _ = torchrun.communicate(timeout=LIMIT)
        finally:
            torchrun.kill()
    assert torchrun.returncode == 0, output
    assert re.search(r"is hung: no heartbeat for \S+ s \(timeout 10 s\), at .*; it is sent SIGKILL", output)
    for rank in range(2):
        assert f"rank {rank} starts at step 0" in output
        assert f"rank {rank} starts at step 20" in output
        assert f"rank {rank} is done" in output


def test_the_one_line_is_enough_without_a_launcher(runtime: dict[str, str]) -> None:
    placed = ("RANK", "WORLD_SIZE", "MASTER_", "SLURM_", "OMPI_", "PMI_")
    alone = {name: value for name, value in runtime.items() if not name.startswith(placed)}
    line = "from nvrx_core import fault_tolerance; print(fault_tolerance.start_local_monitor().rank_info.global_rank)"
    command = [sys.executable, "-c", line]
    assert subprocess.run(command, env=alone, capture_output=True, text=True, timeout=LIMIT, check=True).stdout == "0\n"
