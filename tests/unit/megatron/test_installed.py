"""The line at the start: what is installed, and what a name that has moved means."""

from __future__ import annotations

import logging
import sys
import types

import pytest
from nvrx_megatron import installed, internals, state, wiring
from nvrx_megatron.installed import Piece, announce, mentions

DONE = Piece("steps are progress", "steps are no progress")
MOVED = Piece("a save is atomic", "the tracker file is not written atomically", "the function that opens it")


@pytest.fixture(autouse=True)
def first(monkeypatch):
    monkeypatch.setattr(installed, "_announced", [])
    monkeypatch.setitem(sys.modules, "megatron.core", types.SimpleNamespace(__version__="0.19.0"))
    monkeypatch.setenv("RANK", "0")


def test_what_is_installed_is_one_line_once(caplog):
    caplog.set_level(logging.INFO)
    for _ in range(2):
        announce([DONE])
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("INFO", "installed in megatron-core 0.19.0: steps are progress")
    ]


def test_what_is_missing_is_a_warning_by_its_consequence(caplog):
    announce([DONE, MOVED])
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert tuple(record.message.split(". ")) == (
        "installed in megatron-core 0.19.0: steps are progress",
        "NOT installed: the tracker file is not written atomically (not found: the function that opens it)",
    )


@pytest.mark.parametrize("rank", ["1", "None"])
def test_other_ranks_are_silent(caplog, monkeypatch, rank):
    monkeypatch.setenv("RANK", rank)
    announce([MOVED])
    assert not caplog.records


MODULE = """
import functools

def keeps(function):
    @functools.wraps(function)
    def kept():
        return function()
    return kept

@keeps
def save():
    def write():
        with shared.open("x"):
            pass
    return write

imported = opened = open
"""


def test_a_name_counts_where_a_function_uses_it():
    module = types.ModuleType("megatron.stand_in")
    exec(MODULE, vars(module))
    assert mentions(module, "shared", "open")
    assert not mentions(module, "imported")
    assert not mentions(module, "shared", "close")


def test_a_loop_that_reports_nothing_is_said(monkeypatch):
    training = types.ModuleType("megatron.training.training")
    exec("def train():\n    evaluate()\ndef evaluate():\n    pass\n", vars(training))
    monkeypatch.setitem(sys.modules, "megatron", types.ModuleType("megatron"))
    monkeypatch.setitem(sys.modules, "megatron.training", types.ModuleType("megatron.training"))
    monkeypatch.setitem(sys.modules, training.__name__, training)
    monkeypatch.delitem(sys.modules, "megatron.training.ft_integration", raising=False)
    for _ in range(2):
        pieces = wiring.wire()
        assert [bool(piece.missing) for piece in pieces] == [True, False, True, True]
        assert training.evaluate.__nvrx__


def test_functions_and_trackers_that_are_gone_are_named(monkeypatch):
    module = types.ModuleType("megatron.stand_in")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, "megatron.core.transformer.moe.moe_utils", module)
    monkeypatch.setattr(internals, "DESTROYERS", ((module.__name__, "destroy"), ("megatron.not_there", "destroy")))
    assert [piece.missing for piece in state.teardown_pieces()] == [
        "megatron.stand_in.destroy", "megatron.core.transformer.moe: the tracker of losses",
    ]  # fmt: skip
    module.destroy, module._MOE_LAYER_WISE_LOGGING_TRACKER = len, {}
    assert [piece.missing for piece in state.teardown_pieces()] == ["", ""]
