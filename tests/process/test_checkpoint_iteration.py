"""The iteration of the last checkpoint, read from a file of the training; a job without progress ends with code 93."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from nvrx_launcher import checkpoint_iteration
from nvrx_launcher.arguments import parse_arguments
from nvrx_launcher.checkpoint_iteration import CheckpointIteration
from nvrx_launcher.host_list import compress_hosts
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.options import LaunchOptions
from nvrx_launcher.readiness import Readiness, Ready

from nvrx_core.fault_tolerance.config import FaultToleranceConfig
from tests.harness.process.launch import Start


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    with closing(EventLoop()) as loop:
        yield loop


def read(loop: EventLoop, reader: CheckpointIteration) -> int:
    assert reader.begin()
    assert reader.begin(), "a reading under way is not begun again"
    while reader.is_reading:
        loop.turn(reader.deadline)
        reader.tick(now=time.monotonic())
    assert reader.deadline == math.inf
    return reader.iteration


@pytest.mark.parametrize(
    ("text", "iteration", "reason"),
    [
        ("1200\n", 1200, None),
        ("release\n", -1, "'release' is no number of iterations"),
        ("", -1, "'' is no number of iterations"),
        ("7" * 10_000, -1, f"'{'7' * 64}' is no number of iterations"),
        (None, -1, "No such file or directory"),
    ],
)
def test_the_file_has_the_iteration_or_the_log_says_why_it_is_unknown(
    loop: EventLoop, tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str | None, iteration: int,
    reason: str | None,
) -> None:  # fmt: skip
    path = tmp_path / "-iteration"
    if text is not None:
        path.write_text(text)
    reader = CheckpointIteration(loop, str(path))
    assert [read(loop, reader), read(loop, reader)] == [iteration, iteration]
    assert [message.endswith(reason or "") for message in caplog.messages] == [True] * (reason is not None)


def test_a_file_system_that_does_not_answer_is_given_up(
    loop: EventLoop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(tmp_path / "fifo")
    reader = CheckpointIteration(loop, str(tmp_path / "fifo"), timeout=0.2)
    assert read(loop, reader) == -1
    assert caplog.messages[0].endswith("it cannot be read within 0.2 s")
    assert reader.begin()
    reader.close()
    reader.close()


def test_a_program_that_has_ended_is_given_up(loop: EventLoop, tmp_path: Path) -> None:
    reader = CheckpointIteration(loop, str(tmp_path / "missing"))
    assert reader.begin()
    assert reader._program is not None
    os.waitid(os.P_PID, reader._program.pid, os.WEXITED | os.WNOWAIT)
    reader.close()


@pytest.mark.parametrize("ends", [True, False])
def test_a_program_that_cannot_be_killed_is_not_waited_for(
    loop: EventLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """It is reaped when the file system answers, if the launcher is there by then."""
    started, waits = list[subprocess.Popen[bytes]](), list[float | None]()
    start, wait = subprocess.Popen.__init__, subprocess.Popen.wait

    def record(program: subprocess.Popen[bytes], *arguments: Any, **options: Any) -> None:
        started.append(program)
        start(program, *arguments, **options)

    def record_wait(program: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        waits.append(timeout)
        return wait(program, timeout)

    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = CheckpointIteration(loop, str(fifo), timeout=0.2)
    monkeypatch.setattr(checkpoint_iteration, "KILL_TIMEOUT", 0.0)
    with monkeypatch.context() as patched:
        patched.setattr(subprocess.Popen, "__init__", record)
        patched.setattr(subprocess.Popen, "wait", record_wait)
        patched.setattr(subprocess.Popen, "kill", lambda _: None)
        assert read(loop, reader) == -1
        assert waits == []
    (program,) = started
    if ends:
        fifo.write_text("")
        while program.returncode is None:
            loop.turn(math.inf)
    reader.close()
    if not ends:
        os.kill(program.pid, signal.SIGKILL)
        os.waitpid(program.pid, 0)


def test_without_a_file_or_a_program_nothing_is_read(
    loop: EventLoop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert not CheckpointIteration(loop, None).begin()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not CheckpointIteration(loop, "/any").begin()
    assert caplog.messages[0].endswith("head cannot be started: No such file or directory")


@pytest.mark.parametrize(("backend", "is_read"), [("c10d", True), ("etcd", False)])
def test_only_a_job_of_our_rendezvous_waits_for_the_file(
    loop: EventLoop, tmp_path: Path, backend: str, is_read: bool
) -> None:
    given, _ = parse_arguments(["--rdzv-backend", backend, "train.py"], {})
    config = FaultToleranceConfig(checkpoint_iteration_file=str(tmp_path / "iteration"), gpu_memory_reclaim_timeout=0)
    readiness = Readiness.of(loop, LaunchOptions.of(given, lambda _: 1, {}), config, {})
    readiness.begin(0, "", is_first=True)
    assert readiness.events() == ([] if is_read else [Ready(0, "")])
    readiness.close()


def test_a_job_whose_checkpoint_does_not_move_ends_with_code_93(launcher: Start, tmp_path: Path) -> None:
    file = tmp_path / "iteration"
    file.write_text("5\n")
    options = ("--max-restarts", "9", "--ft-max-no-progress-cycles", "2", "--ft-warm-workers", "off")
    watched = ("--ft-checkpoint-iteration-file", str(file), "--ft-cycle-info-dir", str(tmp_path / "cycles"))
    job = launcher("fails", *options, *watched, "--ft-restart-backoff", "none", SLURM_JOB_ID="17")
    code, log = job.finish()
    assert code == 93, log
    assert "2 cycles in a row without progress: the last checkpoint is of iteration 5" in log
    for name, cycle in (("17.0.0", 0), ("17.0.1", 1), ("17.current", 1)):
        found = json.loads((tmp_path / "cycles" / f"cycle_info.{name}").read_text())
        assert (found["cycle_number"], found["active_ranks"], found["generation"]) == (cycle, "0-1", "2")
        assert found["active_nodes"] == compress_hosts([socket.gethostname()])
