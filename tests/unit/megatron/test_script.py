"""What is decided before a script runs."""

from __future__ import annotations

import argparse
import sys

import pytest
from nvrx_megatron import script
from nvrx_megatron.script_objects import drop_objects


@pytest.mark.parametrize(
    ("strategy", "installed", "chosen"),
    [("nvrx", False, "mcore"), ("nvrx", True, "nvrx"), ("mcore", False, "mcore"), (None, False, None)],
)
def test_saves_by_a_package_that_is_not_there_are_megatrons_own(monkeypatch, strategy, installed, chosen):
    monkeypatch.setattr(script, "_is_importable", lambda name: installed)
    monkeypatch.setattr(sys, "argv", ["pretrain_gpt.py"])
    args = argparse.Namespace(async_strategy=strategy)
    script._choose_async_strategy(args)
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
        script.run_once("train.py")
    space = caught.traceback[-1].frame.f_globals
    assert not space["Configuration"].ended
    drop_objects()
    assert space["Configuration"].ended is dropped
    assert {"train", "Configuration", "torch", "vocabulary", "__name__"} <= set(space)
    assert ("configuration" in space) is not dropped
