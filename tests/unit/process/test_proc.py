"""The fields of /proc/<pid>/stat and /proc/<pid>/wchan."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nvrx_core.process.proc import ProcStat, read_stat, read_wchan


def test_this_process() -> None:
    found = read_stat(os.getpid())
    assert found is not None
    assert (found.name, found.state, found.parent) == (Path("/proc/self/comm").read_text().strip(), "R", os.getppid())
    of_thread = read_stat(os.getpid(), os.getpid())
    assert of_thread is not None
    assert of_thread.start == found.start


def test_a_zombie_tells_how_it_has_ended() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as child:
        before = read_stat(child.pid)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        zombie = read_stat(child.pid)
    assert before is not None
    assert zombie is not None
    assert (zombie.state, zombie.exit_status, zombie.start) == ("Z", signal.SIGKILL, before.start)
    assert read_stat(child.pid) is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("7 (a ) b) S 3" + " 0" * 17 + " 99 0", ProcStat("a ) b", "S", 3, 99, -1)),
        ("7 (x) D", ProcStat("x", "D", -1, -1, -1)),
        ("", None),
    ],
)
def test_a_name_with_parentheses_and_fields_that_are_missing(tmp_path: Path, text: str, found: ProcStat | None) -> None:
    (tmp_path / "7" / "task" / "8").mkdir(parents=True)
    for folder in ("7", "7/task/8"):
        (tmp_path / folder / "stat").write_text(text)
    assert read_stat(7, proc=tmp_path) == read_stat(7, 8, proc=tmp_path) == found


def test_what_is_gone() -> None:
    assert read_stat(1 << 22) is None
    assert read_wchan(1 << 22) == ""
