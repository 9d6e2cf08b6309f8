"""The aborts that come with the wrapper. NCCL and Transformer Engine are fakes: the tests run without them."""

import importlib
import json
import os
import pickle
import sys
import threading
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from nvrx_core.inprocess import abort as module
from nvrx_core.inprocess.abort import (
    Abort,
    AbortChain,
    AbortTorchDistributed,
    AbortTransformerEngine,
    write_flight_record,
)
from nvrx_core.inprocess.compose import Compose
from nvrx_core.inprocess.groups import torch_groups
from nvrx_core.inprocess.groups.observer import GroupObserver
from nvrx_core.inprocess.groups.torch_groups import flight_recorders, forget_groups
from nvrx_core.progress.page import Page
from nvrx_core.rank_assignment.base import AssignmentState

AMPLE, TINY = timedelta(seconds=60), timedelta(milliseconds=50)
NCCL = "_dump_nccl_trace_json", "_dump_fr_trace_json"


def state(**fields):
    return AssignmentState(**{"rank": 1, "world_size": 4, "initial_rank": 5, "iteration": 3, **fields}).freeze()


def test_an_abort_without_a_call_cannot_be_made():
    with pytest.raises(TypeError, match="abstract"):
        Abort()


# torch.distributed


@pytest.fixture
def group():
    """A gloo group of one rank, which a test may leave to be aborted."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def test_torch_is_not_imported_to_abort_it(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch.distributed")
    before = state()
    assert AbortTorchDistributed()(before) is before


@pytest.mark.parametrize("older", [False, True], ids=["abort", "shutdown"])
def test_groups_are_forgotten_with_each_version_of_torch(group, older, monkeypatch):
    dist.new_group([0])
    if older:
        monkeypatch.delattr(dist.ProcessGroup, "abort")
        monkeypatch.delattr(c10d._World, "comms")
    before = state()
    assert AbortTorchDistributed()(before) is before
    assert not dist.is_initialized()
    assert not torch_groups.has_groups()


class ProcessGroupNCCL:
    """An NCCL backend; with `shutdown` it is that of an older torch."""

    def __init__(self, end, *, older=False, timeout=timedelta(minutes=10)):
        setattr(self, "_shutdown" if older else "abort", end)
        self.options = SimpleNamespace(_timeout=timeout)


class Group:
    def __init__(self, backend, abort=lambda: None):
        self.backend, self.abort = backend, abort

    def size(self):
        return 2

    def _get_backend(self, device):
        return self.backend


@pytest.fixture
def groups():
    """Groups with fake NCCL backends in place of torch's."""

    def install(*backends, clear=lambda: None):
        for number, backend in enumerate(backends):
            c10d._world.pg_names[Group(backend, clear)] = str(number)

    yield install
    c10d._world.pg_names.clear()


@pytest.mark.parametrize("older", [False, True], ids=["abort", "_shutdown"])
def test_all_groups_of_nccl_are_aborted_at_once(groups, older, caplog):
    together = threading.Barrier(3)
    groups(*(ProcessGroupNCCL(together.wait, older=older) for _ in range(3)), object())
    forget_groups(AMPLE)
    assert caplog.messages == [], "they wait for each other"


def test_a_communicator_that_hangs_does_not_keep_the_others(groups, caplog):
    done, seen = threading.Event(), []

    def broken():
        raise ValueError("remote closed")

    backends = [ProcessGroupNCCL(end) for end in (done.wait, broken, lambda: seen.append("aborted"))]
    groups(*backends, object(), clear=lambda: seen.append("aborted, too"))
    forget_groups(TINY)
    done.set()
    assert sorted(seen) == ["aborted", "aborted, too"]
    assert not torch_groups.has_groups()
    (line,) = caplog.messages
    assert "abort group 0: TimeoutError: abort group 0 has not ended" in line
    assert "abort group 1: ValueError: remote closed" in line
    assert "abort group 2" not in line
    assert "abort the other" not in line


def test_the_timeout_of_an_nccl_group_is_reported_once():
    page, told = Page(1), []
    observer = GroupObserver(page, told.append)
    for minutes in (10, 10, 1):
        backend = ProcessGroupNCCL(None, timeout=timedelta(minutes=minutes))
        group = Group(backend)
        c10d._world.pg_backend_config[group] = "cuda:nccl"
        observer._creating(lambda group=group: (group, None))()
    c10d._world.pg_backend_config.clear()
    observer._creating(lambda: (dist.GroupMember.NON_GROUP_MEMBER, None))()
    observer.release()
    observer.free_reserve()
    page.close()
    assert told == [timedelta(minutes=10), timedelta(minutes=1)]


# The flight record


@pytest.fixture
def recorders(monkeypatch):
    def install(**dumps):
        monkeypatch.setattr(torch_groups, "flight_recorders", lambda: dumps)
        monkeypatch.setattr(torch_groups, "flight_record", lambda: {name: dump() for name, dump in dumps.items()})

    return install


def record(group, tmp_path, monkeypatch, by_variable=False, **variables):
    """What is written when a group is aborted."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if by_variable:
        monkeypatch.setenv("NVRX_FR_TRACE_PATH", str(tmp_path))
    dist.barrier()
    AbortTorchDistributed(*[] if by_variable else [tmp_path])(state())
    return sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.parametrize("by_variable", [False, True], ids=["argument", "NVRX_FR_TRACE_PATH"])
@pytest.mark.parametrize("name", ["TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"])
def test_a_flight_record_is_written_when_torch_keeps_one(group, tmp_path, monkeypatch, name, by_variable):
    analysers, file = record(group, tmp_path, monkeypatch, by_variable, **{name: "100"})
    assert (analysers, file) == ("iter_3/cpu_rank_0", "iter_3/rank_5.cpu.json")
    groups = pickle.loads((tmp_path / analysers).read_bytes())["pg_config"]
    assert [each["ranks"] for each in groups.values()] == ["[0]"]
    entries = json.loads((tmp_path / file).read_text())["entries"]
    assert entries[-1]["profiling_name"].startswith("gloo:")
    assert "frames" not in entries[-1]


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"TORCH_FR_BUFFER_SIZE": "0"},
        {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"},
        {"TORCH_FR_BUFFER_SIZE": "0", "TORCH_NCCL_TRACE_BUFFER_SIZE": "100"},
        {"TORCH_FR_BUFFER_SIZE": "many"},
    ],
    ids=str,
)
def test_no_flight_record_is_written_when_torch_was_not_told_to_keep_one(group, tmp_path, monkeypatch, variables):
    assert record(group, tmp_path, monkeypatch, **variables) == []


def test_no_flight_record_is_written_without_a_place_or_a_group(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "100")
    monkeypatch.chdir(tmp_path)
    AbortTorchDistributed()(state())
    AbortTorchDistributed(tmp_path)(state())
    assert list(tmp_path.iterdir()) == []


def test_each_recorder_has_a_file_and_a_second_record_replaces_the_first(recorders, tmp_path):
    recorders(nccl=lambda: b"first", cpu=lambda: b"gloo")
    write_flight_record(tmp_path, state())
    recorders(nccl=lambda: b"second")
    write_flight_record(tmp_path, state())
    folder = tmp_path / "iter_3"
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        "rank_5.nccl.json": "second",
        "nccl_rank_1": "second",
        "rank_5.cpu.json": "gloo",
        "cpu_rank_1": "gloo",
    }


def test_a_link_in_the_place_of_the_draft_is_not_followed(recorders, tmp_path, caplog):
    recorders(cpu=lambda: b"record")
    target = tmp_path / "precious"
    target.write_text("kept")
    (tmp_path / "iter_3").mkdir()
    (tmp_path / "iter_3" / f".rank_5.cpu.json.{os.getpid()}").symlink_to(target)
    write_flight_record(tmp_path, state())
    assert target.read_text() == "kept"
    assert "FileExistsError" in caplog.messages[0]


def test_a_flight_record_that_fails_is_one_warning(recorders, tmp_path, caplog):
    recorders(cpu=lambda: b"record")
    (tmp_path / "iter_3").write_text("in the way")
    write_flight_record(tmp_path, state())
    (line,) = [record for record in caplog.records if record.name == "nvrx_core.inprocess"]
    assert line.levelname == "WARNING"
    assert "no flight record in" in line.getMessage()


def test_a_flight_record_that_hangs_is_abandoned(recorders, tmp_path, caplog, monkeypatch):
    done = threading.Event()
    monkeypatch.setattr(module, "RECORD_WITHIN", TINY)
    recorders(cpu=lambda: done.wait() and b"late")
    write_flight_record(tmp_path, state())
    done.set()
    assert "has not ended within" in caplog.messages[0]


@pytest.mark.parametrize(
    ("there", "found"),
    [(NCCL, ["nccl", "cpu"]), (NCCL[:1], ["nccl"]), (NCCL[1:], ["cpu"]), ((), [])],
    ids=["CUDA", "older CUDA", "CPU", "none"],
)
def test_the_recorders_are_those_that_torch_has(there, found, monkeypatch):
    monkeypatch.setattr(torch_groups, "bindings", SimpleNamespace(**dict.fromkeys(there, lambda: b"")))
    assert list(flight_recorders()) == found


# Transformer Engine

MODULES = {
    "__init__": "",
    "pytorch/__init__": "",
    "pytorch/module/__init__": "",
    "pytorch/module/base": "from transformer_engine import told\ndef destroy_ub():\n    told.append('destroy_ub')\n",
}
FP8 = """
from transformer_engine import told
class FP8GlobalStateManager:
    @classmethod
    def reset(cls):
        told.append(__name__.rpartition('.')[2])
"""


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """Puts a package `transformer_engine` on the path, made of `modules`, and imports all of it; returns its `told`."""

    def install(modules):
        folder = tmp_path / "path" / "transformer_engine"
        for name, code in {**modules, "__init__": "told = []\n"}.items():
            (folder / f"{name}.py").parent.mkdir(parents=True, exist_ok=True)
            (folder / f"{name}.py").write_text(code)
        monkeypatch.syspath_prepend(str(folder.parent))
        for name in modules:
            importlib.import_module(f"transformer_engine.{name}".replace("/", ".").removesuffix(".__init__"))
        return sys.modules["transformer_engine"].told

    yield install
    for name in [name for name in sys.modules if name.partition(".")[0] == "transformer_engine"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({}, ["destroy_ub"]),
        ({"pytorch/fp8": FP8}, ["destroy_ub", "fp8"]),
        ({"pytorch/fp8": FP8, "pytorch/quantization": FP8}, ["destroy_ub", "quantization"]),
        ({"pytorch/quantization": "class FP8GlobalStateManager: pass"}, ["destroy_ub"]),
        ({"pytorch/fp8": FP8, "pytorch/module/base": ""}, ["fp8"]),
    ],
    ids=["buffers only", "to 2.8", "from 2.9", "without reset", "without buffers"],
)
def test_transformer_engine_releases_buffers_and_fp8_state(engine, more, told, caplog):
    said, before = engine({**MODULES, **more}), state()
    assert AbortTransformerEngine()(before) is before
    assert said == told
    assert caplog.messages == []


EXPERTS = "from transformer_engine import told\ndef ep_finalize():\n    told.append('ep_finalize')\n"
USED = "\ndef is_ub_initialized():\n    return True\n"
POOL = """
from transformer_engine import told
_IN_ACTIVATION_RECOMPUTE_REGION = True
def release_symm_mem_pool():
    told.append('pool')
"""


@pytest.mark.parametrize(
    ("more", "phases"),
    [
        ({"pytorch/fp8": FP8}, [[], ["destroy_ub"], ["fp8"]]),
        ({"pytorch/fp8": FP8, "pytorch/quantization": FP8}, [[], ["destroy_ub"], ["quantization"]]),
        (
            {
                "pytorch/quantization": FP8,
                "pytorch/ep": EXPERTS,
                "pytorch/module/base": MODULES["pytorch/module/base"] + USED,
            },
            [["ep_finalize"], [], ["destroy_ub", "quantization"]],
        ),
        (
            {"pytorch/quantization": FP8, "pytorch/ep": EXPERTS, "pytorch/distributed": POOL},
            [["ep_finalize", "pool"], ["destroy_ub"], ["quantization"]],
        ),
    ],
    ids=["1.13 to 2.8", "2.9 to 2.16", "2.17 and 2.18", "2.20"],
)
def test_transformer_engine_ends_each_thing_in_its_phase(engine, more, phases, caplog):
    caplog.set_level("INFO")
    told, before = engine({**MODULES, **more}), state()
    chain = AbortChain(Compose(AbortTransformerEngine(), AbortTorchDistributed()))
    for step in [*chain.beside, *chain.main]:
        told.append(type(step).__name__)
        step(before)
    first, second, third = "_TransformerEngine", "AbortTorchDistributed", "_TransformerEngine"
    assert told == [first, *phases[0], second, third, *phases[1], third, *phases[2]]
    assert len(caplog.messages) == sum(map(len, phases)) + ("pytorch/distributed" in more)
    assert all(line.endswith(": ended") for line in caplog.messages)


def test_flags_that_an_interruption_left_set_are_cleared(engine):
    engine({**MODULES, "pytorch/distributed": POOL})
    AbortTransformerEngine()(state())
    assert not sys.modules["transformer_engine.pytorch.distributed"]._IN_ACTIVATION_RECOMPUTE_REGION


def test_a_module_that_warns_on_access_is_not_asked(engine):
    warns = "import warnings\ndef __getattr__(name):\n    warnings.warn(name)\n    raise AttributeError(name)\n"
    engine({**MODULES, "pytorch/fp8": warns})
    AbortTransformerEngine()(state())


def test_without_transformer_engine_nothing_is_done_and_nothing_imported(tmp_path, monkeypatch):
    (tmp_path / "transformer_engine.py").write_text("raise RuntimeError('an empty package')")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = state()
    assert AbortTransformerEngine()(before) is before
    assert "transformer_engine" not in sys.modules


def test_a_failure_in_transformer_engine_is_a_warning_and_the_rest_is_done(engine, caplog):
    fails = "def destroy_ub():\n    raise RuntimeError('no buffers')\n"
    told = engine({**MODULES, "pytorch/module/base": fails, "pytorch/fp8": FP8})
    AbortTransformerEngine()(state())
    assert told == ["fp8"]
    assert caplog.messages == ["Transformer Engine, after torch: user buffers: not ended: RuntimeError: no buffers"]


def test_transformer_engine_comes_after_torch_in_the_documented_composition(engine, group):
    told = engine(MODULES)
    base = sys.modules["transformer_engine.pytorch.module.base"]
    base.destroy_ub = lambda: told.append(dist.is_initialized())
    composed = Compose(AbortTransformerEngine(), AbortTorchDistributed())
    assert isinstance(composed, Abort)
    composed(state())
    assert told == [False]
