"""Workers, and surroundings, that do what nobody should: the launcher goes on, or says in a line why it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.harness.process.host import alive, eventually
from tests.harness.process.launch import WORKERS, Start, events_of, left_in
from tests.harness.process.monitored import RUNTIME, environment_of

SCRIPT = str(WORKERS / "launcher_hostile.py")
CASES = {
    "daemonizes": "has failed with exit code 3",
    "forks": "has failed with exit code 3",
    "closes_all_files": "has failed with exit code 3",
    "prints_without_end": "has failed with exit code 3",
    "real_time_signal": "was ended by SIGRTMIN+8",
    "deletes_logs": "has failed with exit code 3",
    "stops_itself": "has failed with exit code 3",
    "leaves_early": "has failed with exit code 3",
}
"""What rank 1 of each case is reported with."""


def test_a_worker_may_do_what_it_likes(launcher: Start, tmp_path: Path) -> None:
    """Another thing in each cycle, and one cycle for each; all of its output is teed."""
    logs = tmp_path / "logs"
    restarts = ("--max-restarts", str(len(CASES)), "--ft-restart-backoff", "none", "--workers-stop-timeout", "0.5")
    options = (*restarts, "-t", "3", "--log-dir", str(logs))
    job = launcher(",".join(CASES), *options, worker="launcher_hostile.py", NVRX_TEST_LOGS=str(logs))
    code, log = job.finish()
    assert code == 0, log
    failed = events_of(tmp_path, "worker_failed")
    assert [each["rank"] for each in failed] == [1] * len(CASES), log
    for (case, expected), each in zip(CASES.items(), failed, strict=True):
        assert each["reason"].endswith(expected), (case, each["reason"])
    assert "Traceback" not in log
    assert eventually(lambda: not any(map(alive, job.pids())), 10.0)


def run(folder: Path, *command: str, more: Mapping[str, str] = {}, **how: Any) -> subprocess.CompletedProcess[bytes]:
    """Run a launcher without the pipes of a test."""
    whole = [sys.executable, "-m", "nvrx_launcher", "--nproc-per-node", "2", *command]
    environment = environment_of(folder, **more)
    return subprocess.run(whole, env=environment, timeout=60, check=False, **{"stderr": subprocess.PIPE, **how})


def test_arguments_environment_and_input_reach_the_workers_as_they_are(tmp_path: Path) -> None:
    given = ["ünï 日本", "'\"\n$x", os.fsdecode(b"\xff\xfe")]
    variables = {"BIG": "x" * 100_000}
    done = run(tmp_path, SCRIPT, "tells", *given, more=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    expected = ", ".join(f'"{os.fsencode(each).hex()}"' for each in given)
    assert done.stdout.count(f'"arguments": [{expected}], "big": 100000'.encode()) == 2


@pytest.mark.parametrize(
    "command", [["-m", "json.tool", "--help"], ["--no-python", sys.executable, "-u", "-m", "this"]]
)
def test_a_module_and_a_python_with_options_are_workers(tmp_path: Path, command: list[str]) -> None:
    assert run(tmp_path, *command, stdout=subprocess.DEVNULL).returncode == 0


def test_a_folder_whose_name_is_too_long_for_a_socket_is_named(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100)
    done = run(tmp_path, SCRIPT, "tells", more={RUNTIME: str(folder)})
    assert done.returncode == 2
    assert str(folder).encode() in done.stderr
    assert b"sockets below it have at most 107 bytes; set NVRX_RUNTIME_DIR to a folder of at most" in done.stderr
    assert not folder.exists() or list(folder.iterdir()) == []


def test_a_launcher_may_be_the_worker_of_a_launcher(tmp_path: Path) -> None:
    inner = ("-m", "nvrx_launcher", "--nproc-per-node", "2", SCRIPT, "prints_and_is_done")
    done = run(tmp_path, "--no-python", sys.executable, *inner, stdout=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b"line 1999\n") == 4
    assert eventually(lambda: not left_in(tmp_path), 10.0)


def test_two_jobs_of_one_name_side_by_side_on_a_host_do_not_notice_each_other(launcher: Start) -> None:
    jobs = [launcher("restarted", "--rdzv-id", "same", "--max-restarts", "1") for _ in range(2)]
    for job in jobs:
        job.read(2, "start")
    os.kill(jobs[0].events[0]["pid"], 9)
    assert jobs[0].finish()[0] == 0
    assert jobs[1].process.poll() is None
    os.kill(jobs[1].events[0]["pid"], 9)
    assert jobs[1].finish()[0] == 0


def test_a_launcher_without_standard_streams_runs(tmp_path: Path) -> None:
    """Its other descriptors do not take their numbers: workers would inherit them."""
    done = run(
        tmp_path, "-t", "3", "--log-dir", str(tmp_path / "logs"), SCRIPT, "prints_and_is_done",
        preexec_fn=lambda: os.closerange(0, 3), stderr=None,
    )  # fmt: skip
    assert done.returncode == 0
    assert all(path.read_text().count("line") == 2_000 for path in (tmp_path / "logs").glob("*/*/*/stdout.log"))


def test_a_terminal_that_is_gone_costs_its_output_only(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as gone:
        done = run(tmp_path, "-t", "3", "--log-dir", str(tmp_path / "logs"), SCRIPT, "prints_and_is_done", stdout=gone)
    assert done.returncode == 0, done.stderr
    assert b"output of workers is lost: the launcher's stdout: [Errno 32] Broken pipe" in done.stderr
    assert all(path.read_text().count("line") == 2_000 for path in (tmp_path / "logs").glob("*/*/*/stdout.log"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_costs_log_files_only(tmp_path: Path, small_disk: Path) -> None:
    """All that workers print is on the console; the log says which file lacks how many bytes."""
    options = ("-t", "1", "--log-dir", str(small_disk), "--duplicate-stdout-filters", "line")
    done = run(tmp_path, *options, SCRIPT, "prints_and_is_done", "x" * 100_000, stdout=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b"]:line ") == 4_000
    assert b"[Errno 28] No space left on device" in done.stderr
    assert b"bytes of output were lost: " in done.stderr
