"""`python -m nvrx_core.inprocess.wait_daemon`: waits for the processes that a pid file names."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.harness.process.host import eventually

COMMAND = [sys.executable, "-m", "nvrx_core.inprocess.wait_daemon"]
ROOT = Path(__file__).parents[2]


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen([*COMMAND, *arguments], cwd=ROOT, stderr=subprocess.PIPE, text=True)


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"])


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def await_watching(process: subprocess.Popen[str]) -> None:
    """Until the process holds a descriptor of the one it waits for."""
    assert eventually(lambda: any("pidfd" in target for target in descriptors(process.pid)), 10)


def descriptors(pid: int) -> list[str]:
    folder = Path(f"/proc/{pid}/fd")
    with suppress(FileNotFoundError):  # one of them is closed meanwhile
        return [os.readlink(link) for link in folder.iterdir()]
    return []


def test_it_ends_when_all_processes_have_ended_and_at_once(tmp_path: Path) -> None:
    first, second = sleeper(), sleeper()
    pidfile = tmp_path / "monitor.pid"
    pidfile.write_text(f"{first.pid}\n{second.pid}\n")
    waiting = start(pidfile)
    await_watching(waiting)
    ticks = cpu_ticks(waiting.pid)
    end(second)
    time.sleep(0.3)
    assert waiting.poll() is None
    assert cpu_ticks(waiting.pid) - ticks <= 1, "it does not poll"
    watched = os.pidfd_open(waiting.pid)
    begun = time.monotonic()
    end(first)
    assert select.select([watched], [], [], 5)[0]
    os.close(watched)
    assert time.monotonic() - begun < 1
    assert waiting.communicate() == (None, "")
    assert waiting.returncode == 0


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_it_waits_for_the_process_that_has_taken_over(tmp_path: Path) -> None:
    lost, replacement = sleeper(), sleeper()
    pidfile = tmp_path / "monitor.pid"
    pidfile.write_text(f"{lost.pid}\n")
    waiting = start(pidfile)
    await_watching(waiting)
    pidfile.write_text(f"{replacement.pid}\n")
    end(lost)
    time.sleep(0.3)
    assert waiting.poll() is None
    end(replacement)
    assert waiting.wait(5) == 0
    waiting.communicate()


@pytest.mark.parametrize(
    ("content", "arguments", "code", "said"),
    [
        (None, ["monitor.pid"], 1, "No such file"),
        ("no number", ["monitor.pid"], 1, "invalid literal"),
        ("", ["monitor.pid"], 0, ""),
        ("999999999", ["monitor.pid"], 0, ""),
        (None, [], 2, "usage:"),
        (None, ["--help"], 2, "usage:"),
    ],
    ids=["missing", "garbage", "empty", "gone", "no argument", "an option"],
)
def test_exit_codes(tmp_path: Path, content: str | None, arguments: list[str], code: int, said: str) -> None:
    if content is not None:
        (tmp_path / "monitor.pid").write_text(content)
    waiting = start(*[argument if argument.startswith("-") else tmp_path / argument for argument in arguments])
    _, errors = waiting.communicate(timeout=10)
    assert waiting.returncode == code
    assert said in errors
    assert "Traceback" not in errors
