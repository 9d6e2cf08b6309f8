"""Mistakes of a script that a restart does not mend."""

from __future__ import annotations

import os
import threading
from datetime import timedelta

import pytest
from nvrx_launcher.arguments import parse_arguments
from nvrx_launcher.options import LaunchOptions
from nvrx_launcher.workers import script_mistake as script_mistakes
from nvrx_launcher.workers.script_mistake import ScriptMistake, script_mistake


def options(*given):
    return LaunchOptions.of(parse_arguments(list(given), {})[0], lambda _: 1, {})


def mistake(*given, environ=None):
    return script_mistake(options(*given), environ or {})


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import os, json.decoder\nfrom importlib import util\n", ""),
        ("'''Trains.'''\nfrom __future__ import annotations\nimport beside\nimport torch.nn\n", ""),
        ("import os\nimport no_such_module.part\n", "imports no_such_module, which is not found"),
        ("from no_such_module import it\n", "imports no_such_module, which is not found"),
        ("from nvrx.inprocess import Wrapper", "imports nvrx, which is not found; nvrx is imported as nvrx_core, "),
        ("import sys\nsys.path.append('x')\nimport no_such_module\n", ""),
        ("try:\n    import no_such_module\nexcept ImportError:\n    pass\n", ""),
        ("from . import it\n", ""),
        ("import __main__\n", ""),
        ("x = (1,\n", "does not compile: '(' was never closed"),
        ("x = '\0'\n", "does not compile: "),
        (f"x = {'(' * 150}{'-' * 5000}1{')' * 150}\n", ""),
    ],
)
def test_a_mistake_is_found(source, found, tmp_path):
    (tmp_path / "beside.py").touch()
    (tmp_path / "train.py").write_text(source)
    told = mistake(str(tmp_path / "train.py"))
    assert found in told
    assert bool(told) == bool(found)


def test_a_module_of_pythonpath_is_found(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "mine.py").touch()
    (tmp_path / "train.py").write_text("import mine\n")
    assert mistake(str(tmp_path / "train.py")) != ""
    assert mistake(str(tmp_path / "train.py"), environ={"PYTHONPATH": f":{tmp_path}/lib"}) == ""


def test_nothing_is_said_of_what_is_no_script(tmp_path):
    (tmp_path / "train.py").write_text("import no_such_module\n")
    script = str(tmp_path / "train.py")
    assert mistake("--no-python", script) == mistake(str(tmp_path / "gone.py")) == ""
    assert mistake(str(tmp_path / "train")) == ""
    assert mistake(script, environ={"PYTHON_EXEC": "python3"}) == ""


def test_a_module_to_run_that_is_nowhere_is_a_mistake(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").touch()
    assert mistake("-m", "mine.train") == "-m mine.train: mine is not found"
    assert mistake("-m", "mine.train", environ={"PYTHONPATH": str(tmp_path)}) == mistake("-m", "torch.utils") == ""
    monkeypatch.chdir(tmp_path)
    assert mistake("-m", "mine.train") == ""


def test_it_is_sought_once_a_cycle(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import no_such_module")
    found = ScriptMistake(options(str(script)))
    assert "no_such_module" in found.find({})
    script.write_text("")
    assert "no_such_module" in found.find({})
    found.begin_cycle()
    assert found.find({}) == ""


def test_a_file_system_that_does_not_answer_holds_the_launcher_up_for_a_moment_and_once(monkeypatch, tmp_path, caplog):
    """A FIFO, like a file on NFS, is not opened as long as nobody is at the other end."""
    os.mkfifo(script := tmp_path / "train.py")
    monkeypatch.setattr(script_mistakes, "TIMEOUT", timedelta(seconds=0.05))
    found = ScriptMistake(options(str(script)))
    for _ in range(2):
        assert found.find({}) == ""
        found.begin_cycle()
    assert [each.getMessage() for each in caplog.records] == [
        f"{script} cannot be read: its file system does not answer"
    ]
    (thread,) = (each for each in threading.enumerate() if each.name == "nvrx-script-mistake")
    with script.open("w"):
        pass
    thread.join(10)
