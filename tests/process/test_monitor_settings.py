"""The settings of a local monitor: those of the environment where code gives none; wrong ones start nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nvrx_core.errors import ConfigurationError
from nvrx_core.fault_tolerance import FaultToleranceConfig, RankMonitorServer

WATCHED = """
from nvrx_core.fault_tolerance import start_local_monitor

client = start_local_monitor()
print(client.cfg.rank_heartbeat_timeout, client.cfg.safety_factor)
client.shutdown_workload_monitoring()
"""


def run(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the script above under no launcher, with these variables."""
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LD_LIBRARY_PATH")}
    ours = {"PYTHONPATH": os.pathsep.join(sys.path), "RANK": "0", "NVRX_RUNTIME_DIR": str(folder / "run")}
    command = [sys.executable, "-c", WATCHED]
    return subprocess.run(
        command, env={**kept, **ours, **variables}, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_variable_wins_over_the_file_that_another_names(tmp_path: Path) -> None:
    (tmp_path / "ft.yaml").write_text("fault_tolerance: {rank_heartbeat_timeout: 60, safety_factor: 3}")
    done = run(tmp_path, NVRX_FT_CFG_PATH=str(tmp_path / "ft.yaml"), NVRX_FT_RANK_HEARTBEAT_TIMEOUT="90")
    assert (done.returncode, done.stdout) == (0, "90.0 3.0\n"), done.stderr


def test_a_misspelt_variable_starts_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, NVRX_FT_RANK_HEARTBEAT_TIMOUT="90")
    assert done.returncode == 1
    assert "environment: NVRX_FT_RANK_HEARTBEAT_TIMOUT: unknown key" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_timeout_that_was_put_into_the_mapping_is_checked_before_the_monitor_starts(tmp_path: Path) -> None:
    config = FaultToleranceConfig()
    config.rank_section_timeouts["step"] = -1.0
    with pytest.raises(ConfigurationError, match=r"rank_section_timeouts\.step: -1\.0 is not allowed"):
        RankMonitorServer.run_in_subprocess(config, str(tmp_path / "monitor.sock"))
    assert not list(tmp_path.iterdir())
