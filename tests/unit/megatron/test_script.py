"""What is decided before a script runs."""

from __future__ import annotations

import argparse
import importlib
import sys
import types
from importlib.machinery import ModuleSpec

import pytest
from nvrx_megatron import script, takeover
from nvrx_megatron.script_objects import drop_objects


@pytest.mark.parametrize(
    ("strategy", "installed", "chosen"),
    [("nvrx", False, "mcore"), ("nvrx", True, "nvrx"), ("mcore", False, "mcore"), (None, False, None)],
)
def test_saves_by_a_package_that_is_not_there_are_megatrons_own(monkeypatch, strategy, installed, chosen):
    monkeypatch.setattr(script, "_is_importable", lambda name: installed)
    monkeypatch.setattr(sys, "argv", ["pretrain_gpt.py"])
    args = argparse.Namespace(async_strategy=strategy, async_save=True)
    said = script._choose_async_strategy(args)
    assert [piece.missing for piece in said] == ([script._SAVES_OF_PEER] if strategy != chosen else [])
    assert args.async_strategy == chosen
    assert sys.argv[1:] == (["--async-strategy", "mcore"] if strategy != chosen else [])


def test_a_package_whose_parent_is_not_there_cannot_be_imported():
    assert not script._is_importable("no_such_package.module")
    assert script._is_importable("argparse")


SCRIPT = """
import torch

class Configuration(torch.nn.Module):
    ended = False

    def __del__(self):
        Configuration.ended = True

def train():
    raise END

configuration = Configuration()
vocabulary = {"size": 8}
train()
"""


@pytest.mark.parametrize(("end", "dropped"), [("ValueError", True), ("KeyboardInterrupt", True), ("SystemExit", False)])
def test_the_objects_of_a_script_are_dropped_when_the_fault_has_been_handled(tmp_path, monkeypatch, end, dropped):
    """Not earlier: what they free may take long, and the others must hear of the fault first."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT.replace("END", end))
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        script.run_once(script.Script("train.py"))
    space = caught.traceback[-1].frame.f_globals
    assert not space["Configuration"].ended
    drop_objects()
    assert space["Configuration"].ended is dropped
    assert {"train", "Configuration", "torch", "vocabulary", "__name__"} <= set(space)
    assert ("configuration" in space) is not dropped


def test_a_script_of_a_package_is_run_by_its_name(tmp_path, monkeypatch):
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "settings.py").write_text("ended = []")
    (tmp_path / "jobs" / "train.py").write_text("from .settings import ended\nended.append(__package__)")
    monkeypatch.syspath_prepend(tmp_path)
    main = types.ModuleType("__main__")
    main.__file__, main.__spec__ = str(tmp_path / "jobs" / "train.py"), ModuleSpec("jobs.train", None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    found = script.Script.of_process()
    assert found == script.Script(main.__file__, "jobs.train")
    script.run_once(found)
    assert sys.modules["jobs.settings"].ended == ["jobs"]
    assert not script.is_running()


def test_a_process_without_a_script_has_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    assert script.Script.of_process() is None


WATCH = "from nvrx_megatron.takeover import watch_for_megatron\nwatch_for_megatron()\n"


@pytest.fixture(params=["", WATCH], ids=["the names are imported before it", "it imports the names itself"])
def megatron(request, tmp_path, monkeypatch):
    """A tree with Megatron-LM's module of restarts, that is not imported yet."""
    (tmp_path / "megatron" / "training").mkdir(parents=True)
    text = f"{request.param}def maybe_wrap_for_inprocess_restart(pretrain):\n    return pretrain, 'of Megatron-LM'\n"
    (tmp_path / "megatron" / "training" / "inprocess_restart.py").write_text(text)
    (tmp_path / "model_provider.py").write_text("")
    monkeypatch.delitem(sys.modules, "model_provider", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "megatron"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))

    def imported():
        if not request.param:
            takeover.watch_for_megatron()
        module = importlib.import_module("megatron.training.inprocess_restart")
        importlib.import_module("model_provider")
        return module.maybe_wrap_for_inprocess_restart

    yield imported
    for name in [name for name in sys.modules if name.partition(".")[0] == "megatron"]:
        del sys.modules[name]


def test_megatrons_own_wrapping_is_taken_over_with_its_flag(megatron, monkeypatch, caplog):
    takeover._warn_once.cache_clear()
    monkeypatch.setattr(sys, "argv", ["pretrain_gpt.py", takeover.FLAG])
    monkeypatch.setattr(script, "enable", lambda: script._running.append("pretrain_gpt.py"))
    wrap = megatron()
    try:
        assert wrap("pretrain") == ("pretrain", None)
    finally:
        script._running.clear()
    monkeypatch.setattr(script, "enable", lambda: None)
    assert not caplog.messages
    for _ in range(2):
        assert wrap("pretrain") == ("pretrain", "of Megatron-LM"), "where there is no script that could be run anew"
    (warned,) = caplog.messages
    assert warned.startswith("--inprocess-restart: this is not a script, ")
    assert "-m nvrx_megatron" in warned
    takeover.watch_for_megatron()
    assert sum(isinstance(each, takeover._Finder) for each in sys.meta_path) == 1


def test_without_its_flag_nothing_is_watched(megatron, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["pretrain_gpt.py"])
    before = list(sys.meta_path)
    assert megatron()("pretrain") == ("pretrain", "of Megatron-LM")
    assert sys.meta_path == before
