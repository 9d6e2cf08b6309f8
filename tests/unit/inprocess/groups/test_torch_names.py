"""The private names of torch that `torch_groups.py` and `torch_calls.py` touch are still there, in the shape we use."""

import gc
import importlib
import inspect
import json
import pickle
import re
import sys
from types import SimpleNamespace

import pytest
import torch
import torch._C._distributed_c10d as bindings
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from nvrx_core.collective import Collective
from nvrx_core.inprocess.groups import torch_groups
from nvrx_core.inprocess.groups.observer import GroupObserver
from nvrx_core.process import torch_calls
from nvrx_core.progress.page import Page, ProgressField

USED = {
    "distributed_c10d._new_process_group_helper": "observe puts a function around it, to see groups being created",
    "distributed_c10d._coalescing_manager": "observe puts a function around it, to see a batch whose end fails",
    "distributed_c10d._world.default_pg": "are_whole and forget_groups ask it for the default group",
    "distributed_c10d._world.pg_map": "has_groups, are_whole and forget_groups ask it for the groups that are alive",
    "distributed_c10d._world.pg_names": "are_whole and forget_groups ask it for the names of groups",
    "distributed_c10d._world.pg_group_ranks": "forget_groups clears it",
    "distributed_c10d._world.pg_backend_config": "forget_groups clears it",
    "distributed_c10d._world.pg_to_tag": "forget_groups clears it",
    "distributed_c10d._world.tags_to_pg": "forget_groups clears it",
    "distributed_c10d._world.pg_coalesce_state": "forget_groups clears it",
    "distributed_c10d._world.group_count": "forget_groups sets it to 0",
    "distributed_c10d._update_default_pg": "forget_groups sets the default group to None by it",
    "distributed_c10d._get_default_group": "ask_before_default_group puts a function around it",
    "is_initialized": "ask_before_default_group puts a function around it, for torch.distributed.checkpoint",
    "_unregister_all_process_groups": "forget_groups clears the names that C++ knows",
    "rendezvous._rendezvous_handlers": "observe puts a function around those of tcp:// and file://",
    "ProcessGroup.recv_anysource": "observe puts a function around it: a signal then ends the wait for its work",
    "TCPStore.__init__": "observe puts a function around it, to see stores being created",
    "ProcessGroup._get_backend": "forget_groups asks it for a group's NCCL backend",
    "_dump_fr_trace_json": "flight_recorders dumps gloo's record by it, and NCCL's by _dump_nccl_trace_json",
    "_dump_fr_trace": "flight_status and flight_record dump gloo's record by it, and NCCL's by _dump_nccl_trace",
    "distributed_c10d.all_reduce": "call_of reads the argument `group` of a collective that a thread waits in",
    "distributed_c10d.recv": "call_of reads the ranks that a send or receive waits for",
    "ProcessGroup._get_sequence_number_for_group": "collectives_begun counts by it",
    "distributed_c10d.init_process_group": "undo_exception_hooks knows the hook that it sets, and the one before it",
}


def moved(name):
    what = f"torch {torch.__version__}: torch.distributed.{name} has moved or changed"
    return f"{what}; used in torch_groups.py or torch_calls.py: {USED[name]}"


@pytest.mark.parametrize("name", [name for name in USED if name.startswith("distributed_c10d.")])
def test_a_private_name_is_there(name):
    found = c10d
    for part in name.split(".")[1:]:
        assert hasattr(found, part), moved(name)
        found = getattr(found, part)


def test_every_group_is_created_by_the_function_that_is_observed():
    name = "distributed_c10d._new_process_group_helper"
    callers = [inspect.getsource(function) for function in (dist.init_process_group, c10d._new_group_with_tag)]
    assert all("_new_process_group_helper(" in source for source in callers), moved(name)


@pytest.mark.parametrize(
    "name", ["all_gather", "all_reduce", "barrier", "broadcast", "broadcast_object_list", "gather_object", "scatter"]
)
def test_a_collective_finds_the_default_group_by_the_function_that_is_replaced(name, single_rank):
    asked = []
    with torch_groups.ask_before_default_group(lambda: asked.append(name), lambda: None):
        assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (0, 1, "gloo")
        assert not asked
        one = torch.ones(1)
        arguments = {
            "all_gather": ([one], one), "all_reduce": (one,), "barrier": (), "broadcast": (one, 0),
            "broadcast_object_list": ([1], 0), "gather_object": (1, [None]), "scatter": (one, [one]),
        }  # fmt: skip
        getattr(dist, name)(*arguments[name])
    assert asked, moved("distributed_c10d._get_default_group")


def test_a_save_of_a_checkpoint_looks_for_a_default_group_by_the_function_that_is_replaced():
    saver = importlib.import_module("torch.distributed.checkpoint.state_dict_saver")
    assert "dist.is_initialized()" in inspect.getsource(saver.save), moved("is_initialized")


def test_group_names_come_from_the_count_that_is_reset():
    name = "distributed_c10d._world.group_count"
    assert "group_count" in inspect.getsource(c10d._process_group_name), moved(name)
    before = c10d._world.group_count
    c10d._world.group_count = 7
    torch_groups.forget_groups()
    assert c10d._world.group_count == 0, moved(name)
    c10d._world.group_count = before


def test_no_group_is_alive_here():
    assert len(c10d._world.pg_map) == 0, moved("distributed_c10d._world.pg_map")
    assert not torch_groups.has_groups()
    torch_groups.forget_groups()


def test_torch_keeps_no_further_tables_of_groups():
    name = "distributed_c10d._world.pg_map"
    tables = re.findall(r"_world\.(\w+)\.clear\(\)", inspect.getsource(c10d.destroy_process_group))
    assert set(tables) <= set(torch_groups.TABLES), moved(name)


def test_all_names_that_are_known_in_cpp_are_cleared():
    assert callable(getattr(bindings, "_unregister_all_process_groups", None)), moved("_unregister_all_process_groups")


def test_a_receive_from_any_rank_is_begun_by_the_function_that_is_observed():
    assert ".recv_anysource(" in inspect.getsource(dist.irecv), moved("ProcessGroup.recv_anysource")


def test_a_rendezvous_of_each_kind_has_a_handler():
    name = "rendezvous._rendezvous_handlers"
    module = importlib.import_module("torch.distributed.rendezvous")
    assert set(torch_groups.RENDEZVOUS) <= module._rendezvous_handlers.keys(), moved(name)
    assert "_rendezvous_handlers[" in inspect.getsource(module._rendezvous_helper), moved(name)


def test_a_store_is_made_by_its_constructor_and_has_its_port():
    page = Page(1)
    observer = GroupObserver(page)
    observer.install()
    observer.begin()
    try:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True)
        assert store.port in observer.store_ports, moved("TCPStore.__init__")
        assert page[ProgressField.RENDEZVOUS_COUNT] == 1, moved("TCPStore.__init__")
        assert page[ProgressField.RENDEZVOUS_DEPTH] == 0
    finally:
        observer.uninstall()
        page.close()


def test_a_group_reports_its_number_of_collectives():
    name = "ProcessGroup._get_sequence_number_for_group"
    assert callable(getattr(dist.ProcessGroup, "_get_sequence_number_for_group", None)), moved(name)


def test_only_the_exception_hooks_of_groups_are_undone(monkeypatch):
    seen = []

    def original(*error):
        seen.append("original")

    def users(*error):
        before(*error)
        seen.append("user's")

    monkeypatch.setattr(sys, "excepthook", original)
    with_group()
    with_group()
    assert sys.excepthook.__qualname__ == torch_groups.EXCEPTION_HOOK, moved("distributed_c10d.init_process_group")
    torch_groups.undo_exception_hooks()
    assert sys.excepthook is original, moved("distributed_c10d.init_process_group")

    with_group()
    before, sys.excepthook = sys.excepthook, users
    with_group()
    torch_groups.undo_exception_hooks()
    assert sys.excepthook is users
    sys.excepthook(None, None, None)
    assert seen == ["original", "user's"]


def with_group():
    """As a function that makes a default group."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.destroy_process_group()


def test_a_group_has_its_backend():
    name = "ProcessGroup._get_backend"
    assert callable(getattr(dist.ProcessGroup, "_get_backend", None)), moved(name)


def test_nccl_can_be_aborted_and_has_its_timeout_where_it_is_available():
    for nccl in [dist.ProcessGroupNCCL] if dist.is_nccl_available() else []:
        assert callable(getattr(nccl, "abort", None)), "forget_groups falls back to _shutdown()"
        assert hasattr(nccl.Options(), "_timeout"), "nvrx_core reads it"


def test_the_flight_record_comes_as_json_without_stack_traces():
    entries = json.loads(torch_groups.flight_recorders()["cpu"]()).get("entries", [])
    assert not any("frames" in entry for entry in entries), moved("_dump_fr_trace_json")


def test_a_message_names_what_moved_and_where_it_is_used():
    assert "_update_default_pg has moved or changed; used in torch_groups.py or torch_calls.py: " in moved(
        "distributed_c10d._update_default_pg"
    )


@pytest.mark.parametrize("name", ["all_reduce", "barrier", "broadcast_object_list", *torch_calls.POINT_TO_POINT])
def test_a_collective_names_its_group_and_a_message_its_peer(name):
    parameters = inspect.signature(getattr(dist, name)).parameters
    peers = torch_calls.POINT_TO_POINT.get(name, ())
    assert {"group", *peers, *(f"group_{peer}" for peer in peers)} <= parameters.keys(), moved("distributed_c10d.recv")


@pytest.fixture
def single_rank():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    torch_groups.forget_groups()
    torch_groups.undo_exception_hooks()
    gc.collect()


def frames_of(code, **given):
    """Frames as `call_of` gets them, innermost first: a function of torch's and the user's code above it."""
    return [SimpleNamespace(f_code=SimpleNamespace(co_filename=c10d.__file__, co_name=code), f_locals=given)]


def test_the_call_that_a_thread_is_in_is_read_off_its_frames(single_rank):
    dist.all_reduce(torch.ones(1))
    begun = dist.group.WORLD._get_sequence_number_for_group()
    name = c10d._world.pg_names[dist.group.WORLD]
    assert torch_calls.rank_and_size() == (0, 1)
    assert torch_calls.counts_of_groups()[name] == begun
    call = torch_calls.call_of(frames_of("all_reduce", group=None))
    assert call == Collective("all_reduce", name, "", begun, frozenset({0}))
    dist.new_group([0], group_desc="dp")
    dist.new_group([0])
    labels = {torch_calls.call_of(frames_of("barrier", group=each)).label for each in c10d._world.pg_map}
    assert labels == {"", "dp", *c10d._world.pg_names.values()} - {name, "1"}
    assert torch_calls.call_of(frames_of("send", dst=0, group=None)).peers == {0}
    assert torch_calls.call_of(frames_of("recv", src=None, group_src=0, group=None)).peers == {0}
    assert torch_calls.call_of(frames_of("recv", src=None, group_src=None, group=None)).peers == frozenset()
    assert torch_calls.call_of(frames_of("barrier", group=object())) == Collective("barrier")
    assert torch_calls.call_of([]) is None


def test_the_flight_recorder_tells_what_is_pending_and_has_the_groups(single_rank):
    dist.all_reduce(torch.ones(1))
    status = torch_calls.flight_status()
    assert status is not None, moved("_dump_fr_trace")
    assert all(recorder in ("cpu", "nccl") for recorder, _ in status)
    record = pickle.loads(torch_groups.flight_record()["cpu"])
    assert record["pg_config"][c10d._world.pg_names[dist.group.WORLD]]["ranks"] == "[0]"


def test_a_torch_without_the_recorder_tells_nothing(monkeypatch):
    monkeypatch.delattr(bindings, "_dump_fr_trace")
    monkeypatch.delattr(bindings, "_dump_nccl_trace", raising=False)
    assert torch_calls.flight_status() is None
    assert torch_groups.flight_record() == {}
    assert torch_calls.rank_and_size() is None
