"""Per-cycle logs of launchers: by each node, and by a log server that fails meanwhile."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.process.host import free_ports, stop
from tests.harness.process.launch import Launch, Nodes, Start
from tests.harness.process.workers.printing import LINES

WORKER = {"worker": "printing.py"}


def server_options(**more: str) -> tuple[str, ...]:
    return ("--ft-enable-log-server", "true", "--ft-log-server-port", str(free_ports(4)), *more)


def children(job: Launch, text: str) -> list[int]:
    """The processes below a launcher with a text in their command."""
    command = ["pgrep", "-P", str(job.process.pid), "-f", text]
    found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    return list(map(int, found.stdout.split()))


def wait_for(condition: Callable[[], object], within: float = 100.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "train.log"


def of_cycle(prefix: Path, cycle: int) -> list[str]:
    return prefix.with_name(f"train_cycle{cycle}.log").read_text().splitlines()


@pytest.mark.parametrize("server", [(), server_options()], ids=["each node", "server"])
def test_the_culprits_traceback_is_in_the_log_of_its_cycle_and_of_its_launcher(nodes: Nodes, prefix, server) -> None:
    options = ("--nnodes", "2", "--max-restarts", "1", "--ft-per-cycle-applog-prefix", str(prefix), *server)
    ends = [job.finish() for job in nodes(2, "fails", *options, **WORKER)]
    assert [code for code, _ in ends] == [0, 0], ends
    assert sorted(of_cycle(prefix, 1)) == [f"{rank}: step of cycle 1" for rank in range(4)]
    assert "2: ValueError: the batch is empty" in of_cycle(prefix, 0)
    logs = [log for _, log in ends]
    assert all("ValueError: the batch is empty" in log for log in logs), logs
    assert sum(log.count("] Traceback (most recent call last):\n") for log in logs) == 1, logs


@pytest.mark.parametrize(
    "server", [pytest.param((), marks=pytest.mark.nightly), server_options()], ids=["each node", "server"]
)
def test_the_last_words_of_a_worker_that_is_killed_arrive(nodes: Nodes, prefix, server) -> None:
    options = ("--nnodes", "2", "--max-restarts", "1", "--ft-per-cycle-applog-prefix", str(prefix), *server)
    ends = [job.finish() for job in nodes(2, "is_killed", *options, **WORKER)]
    assert [code for code, _ in ends] == [0, 0], ends
    assert of_cycle(prefix, 0) == ["2: the last words"]


@pytest.mark.parametrize("leaves", [pytest.param(0, marks=pytest.mark.nightly), 2])
def test_a_server_that_is_killed_under_load_loses_no_line(nodes: Nodes, prefix, leaves) -> None:
    options = (
        "--nnodes", "2", "--ft-per-cycle-applog-prefix", str(prefix), *server_options(),
        *(("--ft-log-aggregator-count", str(leaves)) if leaves else ()),
        "--ft-nvrx-logfile", str(prefix.with_name("nvrx.log")),
    )  # fmt: skip
    jobs = nodes(2, "prints", *options, **WORKER)
    cycle = prefix.with_name("train_cycle0.log")
    killed = list[int]()
    while len(killed) < 2:
        wait_for(lambda: cycle.exists() and cycle.stat().st_size)
        found = [pid for job in jobs for pid in children(job, "logs.server.*--root") if pid not in killed]
        for pid in found:
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
        time.sleep(0.1)
    ends = [job.finish(120) for job in jobs]
    assert [code for code, _ in ends] == [0, 0], ends
    found = Counter(of_cycle(prefix, 0))
    assert set(found) == {f"{rank}: line {number} {'x' * 40}" for rank in range(4) for number in range(LINES)}
    launchers = prefix.with_name("nvrx.log").read_text()
    assert len(re.findall("was ended by SIGKILL, and is started again", launchers)) == 2, launchers
    assert launchers.count("all workers are done") == 2


@pytest.mark.parametrize("names", [("one", "other"), ("job", "job")], ids=["two names", "one name"])
def test_two_jobs_of_one_machine_with_one_port_keep_their_lines_apart(
    launcher: Start, tmp_path: Path, names: tuple[str, str]
) -> None:
    """The second one cannot listen, and is refused by the server of the first; its lines wait until that is gone."""
    port = ("--ft-log-server-port", str(free_ports(1)), "--ft-enable-log-server", "true")

    def start(number: int, case: str) -> Launch:
        prefix = ("--ft-per-cycle-applog-prefix", str(tmp_path / f"logs{number}" / "train.log"))
        return launcher(case, "--rdzv-id", names[number], *prefix, *port, **WORKER)

    first = start(0, "waits_for_its_gate")
    first.await_log("the log server at")
    second = start(1, "waits_for_its_gate")
    second.await_log("cannot listen at")
    second.await_log("takes nothing (" + ("PERMISSION_DENIED" if names[0] == names[1] else "UNAUTHENTICATED"))
    (tmp_path / "gate").touch()
    for number, job in enumerate((first, second)):
        code, log = job.finish()
        assert code == 0, log
        found = sorted((tmp_path / f"logs{number}" / "train_cycle0.log").read_text().splitlines())
        assert found == [f"{rank}: of {job.process.pid}" for rank in range(2)]


def test_a_server_that_cannot_be_started_before_the_end_of_the_job_is_started_then(launcher: Start, prefix) -> None:
    """As after a kill at the end, or while another job has its port."""
    with socket.create_server(("127.0.0.1", free_ports(1))) as taken:
        port = str(taken.getsockname()[1])
        options = ("--ft-enable-log-server", "true", "--ft-log-server-port", port)
        job = launcher(
            "is_killed", "--nproc-per-node", "3", "--ft-per-cycle-applog-prefix", str(prefix), *options, **WORKER
        )
        job.await_log("the job ends with code 1")
        job.await_log("cannot listen at")
    assert job.finish()[0] == 1
    assert of_cycle(prefix, 0) == ["2: the last words"]


def test_a_worker_does_not_wait_for_a_log_that_takes_nothing(launcher: Start, prefix) -> None:
    options = ("--ft-per-cycle-applog-prefix", str(prefix), *server_options(),
               "--ft-log-server-graceful-shutdown-timeout", "1")  # fmt: skip
    job = launcher("floods", *options, **WORKER)
    wait_for(lambda: children(job, "logs.node"))
    (sender,) = children(job, "logs.node")
    stop(sender)
    code, log = job.finish(90)
    assert code == 0, log
    assert "does not end in time, and is killed" in log
    assert re.search(r"\d+ bytes of output were lost: the log sender", log), log


def test_a_full_disk_ends_no_training_and_is_said_once(launcher: Start, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], check=True, timeout=10)
    try:
        code, log = launcher("floods", "--ft-per-cycle-applog-prefix", str(small / "train.log"), **WORKER).finish()
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True, timeout=10)
    assert code == 0, log
    assert log.count("No space left on device") == 1, log
    assert re.search(r"\d+ bytes of output were lost: .*train_cycle0.log", log), log


def test_what_is_missing_for_the_log_server_is_said_before_anything_is_started(launcher: Start, prefix) -> None:
    options = ("--ft-per-cycle-applog-prefix", str(prefix), *server_options())
    code, log = launcher("prints", *options, "--ft-log-token-file", "/missing/token", **WORKER).finish()
    assert code == 2, log
    assert "--ft-log-token-file" in log
    assert "/missing/token" in log


@pytest.mark.parametrize("option", ["--ft-log-tls-certificate", "--ft-log-tls-authority"])
@pytest.mark.parametrize("text", [None, "no PEM"])
def test_files_of_tls_that_cannot_be_used_are_said_before_anything_is_started(
    launcher: Start, prefix: Path, tmp_path: Path, option: str, text: str | None
) -> None:
    file = tmp_path / "file.pem"
    if text is not None:
        file.write_text(text)
    given = (option, str(file), "--ft-log-tls-key", str(file))[: 4 if option == "--ft-log-tls-certificate" else 2]
    options = ("--ft-per-cycle-applog-prefix", str(prefix), *server_options(), *given)
    code, log = launcher("prints", *options, **WORKER).finish()
    assert code == 2, log
    assert option in log
    assert str(file) in log
    assert "Traceback" not in log


def test_without_the_options_nothing_of_it_is_started_or_imported(launcher: Start, tmp_path: Path) -> None:
    (tmp_path / "grpc.py").write_text("raise SystemExit('grpc is imported')")
    (tmp_path / "google").mkdir()
    (tmp_path / "google" / "__init__.py").write_text("raise SystemExit('protobuf is imported')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    job = launcher("gated", PYTHONPATH=path)
    job.read(2, "start")
    assert not children(job, "nvrx_core.logs")
    (tmp_path / "gate").touch()
    code, log = job.finish()
    assert code == 0, log
    assert "imported" not in log
