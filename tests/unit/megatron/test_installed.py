"""The line at the start: what is installed, and what a name that has moved means."""

from __future__ import annotations

import logging
import sys
import types

import pytest
from nvrx_megatron import atomic_writes, installed, internals, state, wiring, writers
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


@pytest.mark.parametrize("pieces", [[DONE], [DONE, MOVED]])
def test_it_is_visible_where_logging_is_not_configured(capsys, monkeypatch, pieces):
    """`enable()`, or the names of nvidia-resiliency-ext, in a script that does not call `basicConfig`."""
    for name in ("", "nvrx_megatron"):
        monkeypatch.setattr(logging.getLogger(name), "handlers", [])
    monkeypatch.setattr(logging.getLogger(), "level", logging.WARNING)
    announce(pieces)
    level = "WARNING" if MOVED in pieces else "INFO"
    assert capsys.readouterr().err.startswith(f"{level}:nvrx_megatron:installed in megatron-core 0.19.0: steps are")


@pytest.mark.parametrize(("level", "lines"), [(logging.WARNING, 1), (logging.ERROR, 0)])
def test_it_is_hidden_only_by_a_level_above_that_of_warnings(caplog, monkeypatch, level, lines):
    monkeypatch.setattr(logging.getLogger(), "level", level)
    announce([DONE])
    assert len(caplog.records) == lines


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


@pytest.fixture
def experts(monkeypatch):
    module = types.ModuleType("megatron.stand_in")
    for name in [name for name in sys.modules if name.startswith("megatron.") and name != "megatron.core"]:
        monkeypatch.delitem(sys.modules, name)
    for name in (module.__name__, internals._EXPERTS[0], "megatron.core.utils", *internals.CORE_STATE):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(internals, "DESTROYERS", ((module.__name__, "destroy"), ("megatron.not_there", "destroy")))
    module.__straggler__ = types.SimpleNamespace(configured=False)
    module.destroy = len
    return module


def missing():
    return [piece.missing for piece in state.teardown_pieces() if piece.missing]


def test_what_a_restart_does_not_drop_is_named(experts, monkeypatch):
    experts._MOE_LAYER_WISE_LOGGING_TRACKER = {}
    assert missing() == []
    del experts.destroy, experts._MOE_LAYER_WISE_LOGGING_TRACKER, experts.__straggler__
    monkeypatch.delitem(sys.modules, internals.CORE_STATE[1])
    assert missing() == [
        "megatron.stand_in.destroy",
        "megatron.core.num_microbatches_calculator",
        "megatron.core.transformer.moe: the tracker of losses",
        "megatron.core.utils.__straggler__",
    ]


def test_each_tracker_of_experts_that_nothing_empties_is_named(experts, monkeypatch):
    experts._MOE_LAYER_WISE_LOGGING_TRACKER = {}
    logs = types.ModuleType("megatron.core.transformer.moe.moe_logging")
    monkeypatch.setitem(sys.modules, logs.__name__, logs)
    logs._MOE_METRICS_TRACKER = logs._MOE_OVERLOAD_FACTOR_TRACKER = logs._MOE_FIRST_TRACKER = logs._MOE_TRACKER = None
    logs.destroy_moe_first_tracker = lambda: seen.append("first")
    assert missing() == [f"{logs.__name__}._MOE_TRACKER"]
    seen = []
    logs._MOE_OVERLOAD_FACTOR_TRACKER = object()
    monkeypatch.setattr(internals, "DESTROYERS", ())
    state.drop_state(state.GlobalState({}))
    assert (seen, logs._MOE_OVERLOAD_FACTOR_TRACKER) == (["first"], None)


def test_the_writers_that_a_restart_does_not_end_are_named(monkeypatch):
    module = types.SimpleNamespace(AsyncCallsQueue=type("AsyncCallsQueue", (), {}), FileSystemWriterAsync=object)
    for name in ("saves_module", "results_queue_module"):
        monkeypatch.setattr(internals, name, lambda: module)
    assert [piece.missing for piece in writers.observe_saves()] == [
        "", "FileSystemWriterAsync.write_preloaded_data_multiproc",
    ]  # fmt: skip
    module.FileSystemWriterAsync = type("Writer", (), {"write_preloaded_data_multithread": len})
    assert [piece.missing for piece in writers.observe_saves()] == ["", ""]
    del module.FileSystemWriterAsync, module.AsyncCallsQueue
    assert [piece.missing for piece in writers.observe_saves()] == ["AsyncCallsQueue, FileSystemWriterAsync", ""]


COMMON = "def write_common(state):\n    torch.save(state, COMMON_STATE_FNAME)\n"


@pytest.mark.parametrize(("text", "named"), [(COMMON, True), ("COMMON_STATE_FNAME = 'common.pt'", False)])
def test_a_common_state_that_another_function_writes_is_named(monkeypatch, text, named):
    module = types.ModuleType("megatron.core.dist_checkpointing.serialization")
    exec(text, vars(module))
    for name in ("", ".serialization", ".strategies.common"):
        monkeypatch.setitem(sys.modules, f"megatron.core.dist_checkpointing{name}", module)
    monkeypatch.setitem(sys.modules, "megatron.training.checkpointing", module)
    monkeypatch.setattr(atomic_writes.importlib, "import_module", sys.modules.get)
    monkeypatch.setattr(atomic_writes, "openers", list)
    pieces = atomic_writes.protect_checkpoint_files()
    assert [piece.without.partition(" ")[0] for piece in pieces if piece.missing] == ["common.pt"] * named


def test_metadata_that_is_not_protected_is_named(monkeypatch):
    monkeypatch.setattr("torch.distributed.checkpoint.FileSystemWriter", object)
    assert atomic_writes.protect_metadata().missing == "torch.distributed.checkpoint.FileSystemWriter.finish"


class Writer:
    @staticmethod
    def write(text):
        return f"write {text}"


def named(name):
    """What adds a name to the result of a function."""
    return lambda original: lambda *args: f"{name} {original(*args)}"


@pytest.mark.parametrize("marks", [("__nvrx__", "__nvrx_live__"), ("__nvrx_live__", "__nvrx__")])
def test_each_of_two_modules_replaces_a_function_once(marks):
    home = types.SimpleNamespace(evaluate=lambda: "evaluate")
    for _ in range(3):
        for mark in marks:
            installed.replace_once(home, "evaluate", named(mark), mark=mark)
    assert home.evaluate() == f"{marks[1]} {marks[0]} evaluate"


def test_a_static_method_stays_one():
    kind = type("Own", (Writer,), {})
    for _ in range(2):
        installed.replace_once(kind, "write", named("whole"))
    assert (kind.write("a"), kind().write("b"), Writer().write("c")) == ("whole write a", "whole write b", "write c")


def test_what_is_missing_is_left_so_unless_there_is_a_default():
    home = types.SimpleNamespace()
    installed.replace_once(home, "read", named("whole"))
    installed.replace_once(None, "open", named("whole"), default=len)
    assert vars(home) == {}
    for _ in range(2):
        installed.replace_once(home, "open", named("whole"), default=len)
    assert home.open("abc") == "whole 3"
