"""Standby workers: a script cannot tell that it runs in one, and a restart does not wait for its imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from nvrx_launcher.workers.standbys import Standby
from nvrx_launcher.workers.worker import Output

from nvrx_core.process.waiting import readable
from tests.harness.process.host import alive, eventually
from tests.harness.process.launch import WORKERS, Start, left_in

Ran = tuple[int, str, str]
PROBE = str(WORKERS / "probe.py")
ENVIRONMENT = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}


def standby(kind: str, target: list[str], folder: Path, imports: str = "decimal") -> Ran:
    """Run a target in a standby; returns code and output."""
    environment = {**ENVIRONMENT, "RANK": "3", "NAME": "\udcff"}
    waiting = Standby([sys.executable, "returns", kind, imports, *target], {**ENVIRONMENT, "GONE": "1"}, None)
    assert readable([waiting.control], 60.0)
    assert waiting.control.recv(1) == b"r", waiting.last_error_line()
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as errors:
        worker = waiting.become(0, 3, environment, Output(out, errors))
    assert worker is not None
    assert readable([worker.ended], 60.0)
    return worker.reap(), (folder / "out").read_text(), (folder / "err").read_text()


def fresh(kind: str, target: list[str], folder: Path) -> Ran:
    """Run it in a new process."""
    module = ["-m"] if kind == "module" else []
    command = [sys.executable, "-u", *module, *target]
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as errors:
        done = subprocess.run(
            command, env={**ENVIRONMENT, "RANK": "3", "NAME": "\udcff"}, stdout=out, stderr=errors, check=False,
            start_new_session=True,
        )  # fmt: skip
    return done.returncode, (folder / "out").read_text(), (folder / "err").read_text()


ENDS = ["returns", "spawns", "raises", "hooked", "interrupted", "exits", "says"]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("kind", ["script", "module"])
def test_a_script_finds_itself_in_a_new_process(kind: str, end: str, tmp_path: Path) -> None:
    target = [PROBE if kind == "script" else "tests.harness.process.workers.probe", end, "--lr", "0.1"]
    in_standby, in_new = standby(kind, target, tmp_path), fresh(kind, target, tmp_path)
    told, expected = (json.loads(out.splitlines()[0]) for _, out, _ in (in_standby, in_new))
    assert told == expected
    assert in_standby == in_new


@pytest.mark.parametrize(
    ("name", "text"), [("broken.py", "x = (1,\n"), ("latin.py", "# coding: latin-1\nx = '\xe4'\nprint(len(x))\n")]
)
def test_a_source_file_is_read_as_python_reads_it(name: str, text: str, tmp_path: Path) -> None:
    script = tmp_path / name
    script.write_bytes(text.encode("latin-1"))
    assert standby("script", [str(script)], tmp_path) == fresh("script", [str(script)], tmp_path)


def test_a_file_that_has_gone_fails_as_python_does(tmp_path: Path) -> None:
    target = [str(tmp_path / "gone.py")]
    assert standby("script", target, tmp_path) == fresh("script", target, tmp_path)
    missing = ["tests.no_such_module"]
    assert standby("module", missing, tmp_path) == fresh("module", missing, tmp_path)


def test_a_module_beside_the_script_shadows_an_installed_one_and_prints_where_the_worker_prints(tmp_path: Path) -> None:
    (tmp_path / "decimal.py").write_text("import sys\nprint('shadow')\nprint('to stderr', file=sys.stderr)\n")
    (tmp_path / "train.py").write_text("import decimal\nprint(decimal.__file__)\n")
    target = [str(tmp_path / "train.py")]
    assert standby("script", target, tmp_path) == fresh("script", target, tmp_path)


def test_a_standby_whose_imports_fail_says_why(tmp_path: Path) -> None:
    failed = Standby([sys.executable, "returns", "script", "no_such_module", PROBE, "returns"], ENVIRONMENT, None)
    assert readable([failed.control], 60.0)
    assert failed.control.recv(1) == b""
    assert failed.last_error_line() == "ModuleNotFoundError: No module named 'no_such_module'"
    failed.close()


WARM = ("--ft-warm-workers", "on", "--ft-warm-imports", "decimal", "--ft-log-level", "DEBUG")


def test_a_restart_is_made_of_standbys(launcher: Start) -> None:
    """Each new worker has imported what it has not imported itself; killed once more, it is replaced by another one."""
    job = launcher("imported", *WARM, "--max-restarts", "2")
    for cycle in (0, 1):
        targets = {each["rank"]: each["pid"] for each in job.read(2, "imported", cycle)}
        for rank in (0, 1):
            job.await_log(f"a standby worker for local rank {rank} is ready")
        job.log = ""
        os.kill(targets[1], 9)
    code, log = job.finish()
    assert code == 0, log
    found = {(each["cycle"], each["rank"]): each["warm"] for each in job.events if each["event"] == "imported"}
    assert found == {(cycle, rank): cycle > 0 for cycle in (0, 1, 2) for rank in (0, 1)}


def test_standbys_end_with_a_launcher_that_is_killed(launcher: Start, tmp_path: Path) -> None:
    job = launcher("imported", *WARM, "--max-restarts", "2")
    job.await_log("a standby worker for local rank 0 is ready")
    job.process.kill()
    assert eventually(lambda: not left_in(tmp_path), 10.0)
    assert not any(map(alive, job.pids()))


def test_standbys_that_cannot_start_are_given_up(launcher: Start) -> None:
    job = launcher("imported", "--ft-warm-workers", "on", "--ft-warm-imports", "no_such_module")
    job.await_log("no standby workers: 3 standby workers have ended before they were ready: ModuleNotFoundError")
    job.process.terminate()
    assert job.finish()[0] == 143
