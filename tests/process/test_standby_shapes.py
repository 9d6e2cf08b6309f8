"""A script finds the process that an interpreter gives it, whatever its shape: in a new worker, and in a standby."""

from __future__ import annotations

import json
import os
import pty
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from nvrx_launcher.arguments import read_arguments
from nvrx_launcher.guardian import start_guarded
from nvrx_launcher.options import LaunchOptions
from nvrx_launcher.workers.command import program_arguments, worker_command, worker_target
from nvrx_launcher.workers.standbys import Standby
from nvrx_launcher.workers.starting import ProgramStarter
from nvrx_launcher.workers.warm_start import why_not_warm
from nvrx_launcher.workers.worker import Output, Worker

from nvrx_core.process.lifeline import open_pidfd
from nvrx_core.process.waiting import readable
from tests.harness.process.launch import WORKERS

DUMP = WORKERS / "dump.py"
PLACE = {"RANK": "3", "NAME": "\udcff"}
"""What a worker gets when it starts, and a standby only then."""


@dataclass(frozen=True)
class Shape:
    """How a script is named and started.

    Attributes:
        given: the end of the launcher's command line: the script and its arguments.
        at: where the script lies, below the working directory.
        links: symbolic links, and where they lead.
        environment: more variables.
        stream: file, pipe, terminal or null.
        imports: what the standby imports.
    """

    given: Sequence[str]
    at: str = "train.py"
    links: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    stream: str = "file"
    imports: str = "decimal"


SHAPES = {
    "a name": Shape(["train.py"]),
    "this folder": Shape(["./train.py"]),
    "an absolute path": Shape(["{here}/train.py", "--lr", "0.1"]),
    "the folder above": Shape(["../here/./train.py"]),
    "a folder below": Shape(["below/train.py", "", "ä b"], at="below/train.py"),
    "a link to a script": Shape(["link.py"], at="below/train.py", links={"link.py": "below/train.py"}),
    "a link to a folder": Shape(["link/train.py"], at="below/train.py", links={"link": "below"}),
    "no suffix": Shape(["train"], at="train"),
    "a name with a blank": Shape(["my träin.py"], at="my träin.py"),
    "it changes the directory": Shape(["train.py", "--chdir"]),
    "a module": Shape(["-m", "train", "--lr", "0.1"]),
    "a module that changes the directory": Shape(["-m", "train", "--chdir"]),
    "a module in a package": Shape(["-m", "pack.train"], at="pack/train.py"),
    "a package": Shape(["-m", "pack"], at="pack/__main__.py"),
    "a pipe": Shape(["train.py"], stream="pipe"),
    "a terminal": Shape(["train.py"], stream="terminal"),
    "/dev/null": Shape(["train.py"], stream="null"),
    "another encoding": Shape(["train.py"], environment={"PYTHONIOENCODING": "latin-1:replace"}),
    "the locale C": Shape(["train.py"], environment={"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}),
    "warnings": Shape(["train.py"], environment={"PYTHONWARNINGS": "error::UserWarning,ignore"}),
    "options": Shape(["train.py"], environment={
        "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "7", "PYTHONOPTIMIZE": "1", "PYTHONNOUSERSITE": "1"}),
    "a safe path": Shape(["train.py"], environment={"PYTHONSAFEPATH": "1"}),
    "a safe path and a module": Shape(["-m", "train"], environment={"PYTHONSAFEPATH": "1", "PYTHONPATH": "{here}"}),
    "faulthandler and tracemalloc": Shape(
        ["train.py"], environment={"PYTHONFAULTHANDLER": "1", "PYTHONTRACEMALLOC": "3"}),
    "torch": Shape(["train.py", "--import", "torch"], imports="torch"),
}  # fmt: skip


def options_of(given: Sequence[str]) -> LaunchOptions:
    options, _ = read_arguments(["--nproc-per-node", "1", "--max-restarts", "1", *given], {})
    return LaunchOptions.of(options, lambda _: 1, {})


def streams(kind: str, folder: Path) -> tuple[Output, list[int]]:
    """Return the streams of a worker, and the other ends that must stay open."""
    if kind == "file":
        return Output((folder / "out").open("wb"), (folder / "err").open("wb")), []
    if kind == "null":
        return Output(os.open(os.devnull, os.O_WRONLY), os.open(os.devnull, os.O_WRONLY)), []
    pairs = [os.pipe() if kind == "pipe" else pty.openpty() for _ in range(2)]
    return Output(pairs[0][1], pairs[1][1]), [reader for reader, _ in pairs]


def plain(options: LaunchOptions, environment: Mapping[str, str], imports: str, output: Output) -> Worker:
    """Start it as a user does."""
    command = worker_command(options, 0, sys.executable)
    process = start_guarded(command, env=dict(environment), stdout=output.stdout, stderr=output.stderr)
    return Worker(0, 3, process.pid, ended=open_pidfd(process.pid), wait=process.wait)


def cold(options: LaunchOptions, environment: Mapping[str, str], imports: str, output: Output) -> Worker:
    """Start a worker as in the first cycle."""
    return ProgramStarter(options, sys.executable, [None]).start(0, 3, environment, output)


def warm(options: LaunchOptions, environment: Mapping[str, str], imports: str, output: Output) -> Worker:
    """Start one as after a restart."""
    early = {name: value for name, value in environment.items() if name not in PLACE}
    command = [sys.executable, *program_arguments(options, exits=False), imports, *worker_target(options, 0)]
    standby = Standby(command, early | {"GONE": "1"}, None)
    assert readable([standby.control], 60.0)
    assert standby.control.recv(1) == b"r", standby.last_error_line()
    worker = standby.become(0, 3, environment, output)
    assert worker is not None
    return worker


def dumped(shape: Shape, start: Callable[..., Worker], folder: Path) -> dict[str, Any]:
    """Return what a script of this shape finds."""
    here, dump = Path.cwd(), folder / "dump.json"
    dump.unlink(missing_ok=True)
    environment = {
        "PATH": os.environ["PATH"], "NVRX_TEST_DUMP": str(dump), **PLACE,
        **{name: value.format(here=here) for name, value in shape.environment.items()},
    }  # fmt: skip
    output, ends = streams(shape.stream, folder)
    try:
        options = options_of([each.format(here=here) for each in shape.given])
        assert not why_not_warm(options, wanted="on", imports=shape.imports, environ=environment)
        worker = start(options, environment, shape.imports, output)
        output.close()
        assert readable([worker.ended], 60.0)
        code = worker.reap()
    finally:
        for end in ends:
            os.close(end)
    if shape.stream == "file":
        assert (folder / "err").read_text() == "to stderr\n"
        assert (folder / "out").read_text() == "to stdout\n"
    assert code == 0
    found: dict[str, Any] = json.loads(dump.read_text())
    return found


@pytest.mark.parametrize("name", SHAPES)
def test_a_worker_gives_a_script_what_an_interpreter_gives_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, here = SHAPES[name], tmp_path / "here"
    script = here / shape.at
    script.parent.mkdir(parents=True)
    shutil.copy(DUMP, script)
    for link, target in shape.links.items():
        (here / link).symlink_to(here / target)
    monkeypatch.chdir(here)
    expected = dumped(shape, plain, tmp_path)
    for start in (cold, warm):
        found = dumped(shape, start, tmp_path)
        different = {key: (found[key], expected[key]) for key in expected if found[key] != expected[key]}
        assert different == {}, start


@pytest.mark.parametrize("name", ["job.zip", "job.pyc", "folder"])
def test_what_a_standby_cannot_run_is_started_anew(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    shutil.copy(DUMP, tmp_path / "folder" / "__main__.py")
    shutil.make_archive("job", "zip", "folder")
    (tmp_path / "job.pyc").touch()
    assert why_not_warm(options_of([name]), wanted="on", imports="decimal", environ={}).endswith(
        "no Python source file"
    )
