"""Functions as workers: results by rank, exceptions with their tracebacks, and nothing that outlives them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.harness.process.host import alive, eventually, free_ports
from tests.harness.process.launch import WORKERS, left_in
from tests.harness.process.monitored import environment_of

METHODS = ["spawn", "fork", "forkserver"]


def mostly(always: str) -> pytest.MarkDecorator:
    """One method; the others are for the night."""
    marks = {method: [pytest.mark.nightly] * (method != always) for method in METHODS}
    return pytest.mark.parametrize("method", [pytest.param(method, marks=marks[method]) for method in METHODS])


def started(folder: Path, case: str, method: str, **more: str) -> subprocess.Popen[str]:
    files = {"TORCHELASTIC_ERROR_FILE": str(folder / "mine.json"), "LOGS": str(folder / "logs")}
    environment = environment_of(folder, **files, **more)
    command = [sys.executable, str(WORKERS / "launches.py"), case, method]
    return subprocess.Popen(
        command, env={**environment, "TMPDIR": str(folder)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def launched(folder: Path, case: str, method: str) -> tuple[dict[str, Any], str]:
    """Run a case; returns all that it has said."""
    with started(folder, case, method) as process:
        out, errors = process.communicate(timeout=90)
    assert process.returncode == 0, errors
    said = dict[str, Any]()
    for line in out.splitlines():
        for key, value in json.loads(line).items():
            said[key] = [*said[key], value] if isinstance(said.get(key), list) and key == "wrong" else value
            said[key] = [value] if key == "wrong" and not isinstance(said[key], list) else said[key]
    return said, errors


@pytest.mark.parametrize("method", ["spawn", "fork", pytest.param("forkserver", marks=pytest.mark.nightly)])
def test_a_function_returns_its_results_by_rank(tmp_path: Path, method: str) -> None:
    said, _ = launched(tmp_path, "returns", method)
    for rank in ("0", "1"):
        found = said["found"][rank]
        assert (found["first"], found["second"]) == (rank, 2)
        assert found["environ"] == {
            "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "0",
            "OMP_NUM_THREADS": "1", "GIVEN": "1",
        }  # fmt: skip
        assert found["is_leader"]
        assert found["has_tag_from_the_start"] == (method != "fork")
        assert (found["mask"], found["sigterm"]) == ([], "0")
    assert said["environ"] == {"RANK": None, "NVRX_LAUNCH_ID": None}
    assert said["sizes"] == [1 << 22] * 2
    assert said["restarted"] == {"0": "1", "1": "1"}
    assert said["exited"] == {"0": None, "1": None}
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("ft_launcher_")]


@mostly("spawn")
def test_the_exception_of_a_function_is_torchs_child_failed_error(tmp_path: Path, method: str) -> None:
    said, errors = launched(tmp_path, "fails", method)
    assert (said["rank"], said["code"]) == (1, 1)
    assert said["message"]["message"] == "ValueError: on purpose"
    assert 'raise ValueError("on purpose")' in said["message"]["extraInfo"]["py_callstack"]
    assert "raises_on_1 FAILED" in said["text"]
    assert said["passed_on"]["message"] == "ValueError: on purpose"
    assert said["codes"] == [3]
    assert "ValueError: on purpose" in errors


def test_programs_and_torchs_configuration_are_taken_and_wrong_ones_are_named(tmp_path: Path) -> None:
    said, _ = launched(tmp_path, "runs_programs", "spawn")
    assert said["program"] == {"0": None, "1": None}
    assert said["theirs"] == {"0": "text", "1": "text"}
    assert said["logs"] == ["text\n", "text\n"]
    assert ["start-method" in said["wrong"][0], "max-restarts: -1 is negative" in said["wrong"][1]] == [True, True]
    assert "safety" in said["wrong"][2]


def test_the_nodes_of_torchs_static_rendezvous_have_the_ranks_of_its_configuration(tmp_path: Path) -> None:
    """Node 1 is started first."""
    endpoint = f"127.0.0.1:{free_ports()}"
    nodes = [started(tmp_path, "runs_on_two_nodes", "fork", NODE=node, ENDPOINT=endpoint) for node in ("1", "0")]
    for node, process in zip(("1", "0"), nodes, strict=True):
        with process:
            out, errors = process.communicate(timeout=90)
        assert process.returncode == 0, errors
        assert json.loads(out) == {"ranks": {node: node}, "threads": []}


@mostly("fork")
def test_a_signal_ends_it_and_is_raised(tmp_path: Path, method: str) -> None:
    with started(tmp_path, "waits_for_a_signal", method) as process:
        assert process.stdout is not None
        pids = [pid for _ in range(2) for pid in json.loads(process.stdout.readline()).values()]
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=30)
    assert json.loads(out.splitlines()[-1]) == {"signal": "SIGTERM", "restored": True}, errors
    assert eventually(lambda: not any(map(alive, pids)), 10.0)


@mostly("forkserver")
def test_nothing_outlives_a_process_that_is_killed(tmp_path: Path, method: str) -> None:
    with started(tmp_path, "waits_for_a_signal", method) as process:
        assert process.stdout is not None
        pids = [pid for _ in range(2) for pid in json.loads(process.stdout.readline()).values()]
        os.kill(process.pid, signal.SIGKILL)
        assert eventually(lambda: not any(map(alive, pids)), 10.0)
    assert eventually(lambda: not left_in(tmp_path), 10.0)
