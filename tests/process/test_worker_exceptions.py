"""What ended a worker is in the launcher's line, with the user's line, whatever the script does about it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.process.launch import Nodes, Start
from tests.harness.process.monitored import environment_of

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a script in a folder of its own; returns the code, what was printed, and the line of rank 0's failure."""

    def run(source: str, *options: str, **environment: str) -> tuple[int, str, str]:
        script = tmp_path / "job" / "train.py"
        script.parent.mkdir(exist_ok=True)
        script.write_text(source)
        command = [sys.executable, "-m", "nvrx_launcher", *options, str(script)]
        done = subprocess.run(
            command,
            env=environment_of(tmp_path, **environment),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        failed = re.search(r"ERROR \[.*\] (rank 0 .*)", done.stderr)
        line = failed[1].partition(" has failed with ")[2].replace(str(tmp_path), "") if failed else ""
        return done.returncode, done.stderr, line

    return run


def test_the_line_names_exception_and_place_in_the_first_cycle_and_in_a_standby(launcher: Start) -> None:
    """The worker inherits the launcher's streams, and uses nothing of torch."""
    job = launcher("raises_when_told", "--max-restarts", "1", "--ft-warm-workers", "on", "--ft-warm-imports", "decimal",
                   "--ft-log-level", "DEBUG")  # fmt: skip
    job.read(2, "start")
    job.await_log("a standby worker for local rank 1 is ready")
    (job.folder / "raise-0").touch()
    job.read(2, "start", cycle=1)
    (job.folder / "raise-1").touch()
    code, log = job.finish()
    assert code == 1
    lines = re.findall(r"ERROR \[.*\] rank 1 .* has failed with exit code 1: (.*)", log)
    assert len(lines) == 2, log
    assert all(re.fullmatch(r"TypeError: injected in cycle \d, at .*/launcher_worker.py:\d+", line) for line in lines)
    assert log.count("Traceback (most recent call last)") == 2, "each is printed once, by its worker"
    assert "worker_program.py" not in log.partition("Traceback")[2].partition("TypeError")[0]


def test_each_launcher_of_the_job_names_it(nodes: Nodes) -> None:
    for code, log in [job.finish() for job in nodes(2, "raises", "--nnodes", "2")]:
        assert code == 1
        assert re.search(
            r"rank 1 .* has failed with exit code 1: TypeError: injected, at .*/launcher_worker.py:\d+", log
        )


CHAINED = """\
import os
def load():
    os.makedirs("/proc/nothing/here")
try:
    load()
except OSError as error:
    raise RuntimeError("no data\\nsecond line") from error
"""
DIVISION = "exit code 1: ZeroDivisionError: division by zero, at /job/train.py:"
DECODING = "exit code 1: JSONDecodeError: Expecting value: line 1 column 1 (char 0), at /job/train.py:2"
CAUGHT = "try:\n    1 / 0\nexcept ArithmeticError:\n"
CASES = {
    "plain": ("1 / 0", f"{DIVISION}1"),
    "chained": (CHAINED, "exit code 1: RuntimeError: no data, at /job/train.py:7"),
    "in a library": ("import json\njson.loads('')", DECODING),
    "an exit code": ("import sys; sys.exit(3)", "exit code 3"),
    "a caught one": (f"import sys\n{CAUGHT}    sys.exit(3)", f"{DIVISION.replace('code 1', 'code 3')}3"),
    "another one": (f"import sys\n{CAUGHT}    raise SystemExit(3) from None", "exit code 3"),
    "a text": ("import sys\nsys.exit('no data')", "exit code 1: SystemExit: no data, at /job/train.py:2"),
    "a hook": ("import sys\nsys.excepthook = lambda *_: print('mine')\n1 / 0", f"{DIVISION}3"),
    "no text": ("class E(Exception):\n def __str__(self): return 1 / 0\nraise E", "exit code 1"),
    "no environment": ("import os\nos.environ.clear()\n1 / 0", f"{DIVISION}3"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_line_of_a_failure(run: Run, case: str) -> None:
    source, line = CASES[case]
    code, log, found = run(source)
    assert (code, found) == (1, line), log


def test_an_end_without_an_error_is_none(run: Run) -> None:
    code, log, _ = run(f"import sys\n{CAUGHT}    sys.exit()")
    assert code == 0, log


def test_what_torch_has_recorded_is_kept(run: Run) -> None:
    source = """\
from torch.distributed.elastic.multiprocessing.errors import record
import os
@record
def main():
    raise ValueError("recorded")
try:
    main()
except ValueError:
    raise TypeError("later")
"""
    assert run(source)[2].startswith("exit code 1: ValueError: recorded, at /job/train.py:5")


def test_a_forked_process_that_raises_says_nothing_of_its_worker(run: Run) -> None:
    source = """\
import os, sys
child = os.fork()
if child == 0:
    raise ValueError("in the child")
os.waitpid(child, 0)
sys.exit(7)
"""
    assert run(source)[2] == "exit code 7"


def test_modules_of_the_script_that_are_called_like_those_of_the_library_are_its_own(run: Run, tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    for name in ("traceback", "socket", "typing"):
        (tmp_path / "job" / f"{name}.py").write_text(f"print('my {name}')\nMINE = True\n")
    _, log, line = run("import socket, typing\nassert socket.MINE and typing.MINE\n1 / 0")
    assert line == "exit code 1: ZeroDivisionError: division by zero, at /job/train.py:3", log


ENDLESS = """\
import atexit, threading
threading.Thread(target=threading.Event().wait).start()
atexit.register(threading.Event().wait)
print("printed without a flush", end="")
raise ValueError("at once")
"""


def test_with_the_exception_hook_nothing_holds_up_the_end_of_a_worker(run: Run) -> None:
    code, log, line = run(ENDLESS, "--ft-install-exception-hook", "true", "--tee", "3")
    assert (code, line) == (1, "exit code 1: ValueError: at once, at /job/train.py:5")
    assert log.count("ValueError: at once\n") == 1


def test_a_function_is_ended_at_once_as_well(run: Run) -> None:
    source = """\
import threading
from nvrx_launcher import LaunchConfig, elastic_launch
def endless():
    threading.Thread(target=threading.Event().wait).start()
    raise ValueError("at once")
if __name__ == "__main__":
    settings = {"install_exception_hook": True}
    config = LaunchConfig(1, 1, 1, start_method="spawn", fault_tolerance=settings)
    elastic_launch(config, endless)()
"""
    code, log, _ = run(source)
    assert code == 1
    assert "ValueError: at once" in log
