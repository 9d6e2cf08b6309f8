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

from tests.harness.process import host

COMMAND = [sys.executable, "-m", "nvrx_core.inprocess.wait_daemon"]
ROOT = Path(__file__).parents[2]


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen([*COMMAND, *arguments], cwd=ROOT, stderr=subprocess.PIPE, text=True)


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"])


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def await_watching(process: subprocess.Popen[str], *watched: subprocess.Popen[bytes]) -> None:
    """Until the process holds a descriptor of one of those."""
    signs = [f"\nPid:\t{each.pid}\n" for each in watched]
    assert host.eventually(lambda: any(sign in described(process.pid) for sign in signs), 10)


def described(pid: int) -> str:
    """What the kernel tells of the descriptors of a process."""
    with suppress(FileNotFoundError):  # one of them is closed meanwhile
        return "".join(path.read_text() for path in Path(f"/proc/{pid}/fdinfo").iterdir())
    return ""


def test_it_ends_when_all_processes_have_ended_and_does_not_poll(tmp_path: Path) -> None:
    first, second = sleeper(), sleeper()
    pidfile = tmp_path / "monitor.pid"
    pidfile.write_text(f"{first.pid}\n{second.pid}\n")
    waiting = start(pidfile)
    await_watching(waiting, first, second)
    end(second)
    await_watching(waiting, first)
    time.sleep(0.3)
    woken = host.switches(waiting.pid)
    time.sleep(0.5)
    assert host.switches(waiting.pid) == woken, "it polls"
    assert waiting.poll() is None
    end(first)
    assert waiting.communicate(timeout=10) == (None, "")
    assert waiting.returncode == 0


def test_it_ends_at_once(tmp_path: Path) -> None:
    """The soonest of three, as the machine may stall in one of them."""
    assert min(seconds_to_end(tmp_path) for _ in range(3)) < 0.5


def seconds_to_end(folder: Path) -> float:
    watched = sleeper()
    (folder / "monitor.pid").write_text(f"{watched.pid}\n")
    waiting = start(folder / "monitor.pid")
    await_watching(waiting, watched)
    time.sleep(0.3)
    ended = os.pidfd_open(waiting.pid)
    begun = time.monotonic()
    end(watched)
    assert select.select([ended], [], [], 10)[0]
    seconds = time.monotonic() - begun
    os.close(ended)
    waiting.communicate()
    return seconds


def test_it_waits_for_the_process_that_has_taken_over(tmp_path: Path) -> None:
    lost, replacement = sleeper(), sleeper()
    pidfile = tmp_path / "monitor.pid"
    pidfile.write_text(f"{lost.pid}\n")
    waiting = start(pidfile)
    await_watching(waiting, lost)
    pidfile.write_text(f"{replacement.pid}\n")
    end(lost)
    await_watching(waiting, replacement)
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
        (None, ["--option"], 2, "usage:"),
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
