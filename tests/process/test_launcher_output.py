"""What the launcher shows: nothing that does not take its output holds it up, or costs a job anything but output."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

from tests.harness.process.host import eventually
from tests.harness.process.launch import WORKERS, Nodes, Start
from tests.harness.process.monitored import environment_of

LOST = r"(\d+) bytes of output were lost: the launcher's stdout(?: and stderr)?, which took none for (\d+) s"
UNREAD = 7.0
"""Seconds for which nobody reads; a node that does not renew its lease for 5 s is lost."""


def test_a_launcher_whose_output_nobody_reads_goes_on_and_says_what_was_lost(nodes: Nodes, tmp_path: Path) -> None:
    """Of two nodes; the workers of both print without end."""
    jobs = nodes(2, "chats", "--nnodes", "2", "--tee", "3", "--max-restarts", "1", "--log-dir", str(tmp_path / "logs"))
    drained = subprocess.Popen(["cat"], stdin=jobs[1].process.stdout, stdout=subprocess.DEVNULL)
    for number in range(2):
        assert eventually(lambda number=number: len(list((tmp_path / "logs").glob("*/*/0/stdout.log"))) > number, 60.0)
    time.sleep(UNREAD)
    assert [job.process.poll() for job in jobs] == [None, None]
    (tmp_path / "gate").touch()
    ends = [job.finish() for job in jobs]
    drained.wait()
    assert [code for code, _ in ends] == [0, 0], ends
    log = ends[0][1]
    assert all("cycle 1" not in log and "has not answered" not in log for _, log in ends), ends
    found = re.search(LOST, log)
    assert found is not None, log
    assert int(found[1]) > 1 << 20
    assert float(found[2]) > UNREAD / 2
    assert "stood still" not in log


def test_a_job_ends_although_nobody_ever_reads_its_output(launcher: Start, tmp_path: Path) -> None:
    """Not even its log lines."""
    job = launcher("chats", "--tee", "3", "--log-dir", str(tmp_path / "logs"))
    (log_file,) = eventually_one(tmp_path / "logs", "*/attempt_0/0/stdout.log")
    assert eventually(lambda: log_file.stat().st_size > 4 << 20, 30.0)
    (tmp_path / "gate").touch()
    assert job.process.wait(30.0) == 0
    assert b"chatted" in log_file.read_bytes()[-200:]


def eventually_one(folder: Path, pattern: str) -> list[Path]:
    assert eventually(lambda: any(folder.glob(pattern)), 30.0)
    return list(folder.glob(pattern))


def test_a_terminal_that_is_stopped_by_ctrl_s_holds_nobody_up(tmp_path: Path) -> None:
    main, terminal = pty.openpty()
    command = [
        sys.executable,
        "-m",
        "nvrx_launcher",
        "--nproc-per-node",
        "2",
        "--tee",
        "3",
        "--log-dir",
        tmp_path / "l",
    ]
    environment = environment_of(tmp_path, NVRX_TEST_GATE=str(tmp_path / "gate"))
    streams = {"stdin": terminal, "stdout": terminal, "stderr": terminal}
    with subprocess.Popen([*command, WORKERS / "launcher_worker.py", "chats"], env=environment, **streams) as process:  # type: ignore[call-overload]
        shown = os.read(main, 10)
        os.write(main, b"\x13")
        (log_file,) = eventually_one(tmp_path / "l", "*/attempt_0/0/stdout.log")
        size = log_file.stat().st_size
        assert eventually(lambda: log_file.stat().st_size > size + (8 << 20), 30.0)
        (tmp_path / "gate").touch()
        assert eventually(lambda: b"chatted" in log_file.read_bytes()[-200:], 30.0)
        os.write(main, b"\x11")
        os.close(terminal)
        while text := read_terminal(main):
            shown += text
        assert process.wait(30.0) == 0
    os.close(main)
    assert re.search(LOST, shown.decode(errors="replace")), shown[-2000:]
    assert b"the job ends with code 0" in shown


def read_terminal(main: int) -> bytes:
    """Read what a terminal shows; b"" when nobody has it open any more."""
    try:
        return os.read(main, 1 << 16)
    except OSError:
        return b""


def test_a_worker_that_makes_the_console_non_blocking_costs_no_output(tmp_path: Path) -> None:
    """The flag is that of the open file, which the launcher shares with its workers and with whoever has started it."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    command = [
        sys.executable,
        "-m",
        "nvrx_launcher",
        "--nproc-per-node",
        "2",
        "--tee",
        "3",
        "--log-dir",
        tmp_path / "l",
    ]
    with subprocess.Popen(
        [*command, WORKERS / "launcher_hostile.py", "prints_and_is_done", "x" * 100_000],
        env=environment_of(tmp_path), stdout=writer, stderr=writer,
    ) as process:  # fmt: skip
        os.close(writer)
        with os.fdopen(reader, "rb") as output:
            shown = output.read()
        assert process.wait(30.0) == 0
    assert shown.count(b"]:line ") == 4_000


def test_an_exception_that_a_worker_has_written_to_its_file_is_in_the_launchers_log(
    launcher: Start, tmp_path: Path
) -> None:
    code, log = launcher("raises", "--redirects", "3", "--log-dir", str(tmp_path / "logs")).finish()
    assert code == 1
    line, _, trace = log[log.index("rank 1 (local rank 1, pid") :].partition("\n")
    assert re.search(r"has failed with exit code 1: TypeError: injected, at .*/launcher_worker.py:\d+$", line)
    assert trace.startswith("Traceback (most recent call last):")
    assert 'raise TypeError("injected")' in trace


def test_a_progress_bar_shows_while_it_moves(launcher: Start, tmp_path: Path) -> None:
    job = launcher("shows_progress", "--tee", "2", "--local-ranks-filter", "0", "--log-dir", str(tmp_path / "logs"))
    job.await_log("[default0]: 2/3 steps\n")
    (tmp_path / "gate").touch()
    code, log = job.finish()
    assert code == 0, log
    shown = [line for line in log.splitlines() if line.startswith("[default0]")]
    assert shown == [f"[default0]: {step}/3 steps" for step in range(4)]
    (log_file,) = (tmp_path / "logs").glob("*/attempt_0/0/stderr.log")
    assert log_file.read_bytes() == b"\r 0/3 steps\r 1/3 steps\r 2/3 steps\r 3/3 steps\n"
