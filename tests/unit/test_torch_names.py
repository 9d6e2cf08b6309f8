"""The private names of torch that `nvrx_core.inprocess.torch_groups` touches are still there, in the shape we use."""

import inspect
import json

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from nvrx_core.inprocess import torch_groups
from nvrx_core.inprocess.torch_groups import GroupObserver
from nvrx_core.progress.page import Page, Word

USED = {
    "distributed_c10d._new_process_group_helper": "GroupObserver.install replaces it, to see groups being created",
    "distributed_c10d._world.pg_names": "forget_groups asks it for the groups whose NCCL communicators it aborts",
    "distributed_c10d._world.pg_map": "has_groups and forget_groups ask it for the groups that are alive",
    "distributed_c10d._world.group_count": "reset_group_count sets it to 0 after a failed init_process_group",
    "distributed_c10d._update_default_pg": "forget_groups adopts by it a group that is not the default one yet",
    "distributed_c10d._abort_process_group": "forget_groups aborts every group through it",
    "TCPStore.__init__": "GroupObserver.install replaces it, to see stores being created",
    "ProcessGroup._get_backend": "forget_groups asks it for a group's NCCL backend",
    "_dump_fr_trace_json": "flight_recorders dumps gloo's record by it, and NCCL's by _dump_nccl_trace_json",
    "ProcessGroup._get_sequence_number_for_group": "GroupObserver counts the collectives begun by it",
}


def moved(name):
    what = f"torch {torch.__version__}: torch.distributed.{name} has moved or changed"
    return f"{what}; used in torch_groups.py: {USED[name]}"


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


def test_group_names_come_from_the_count_that_is_reset():
    name = "distributed_c10d._world.group_count"
    assert "group_count" in inspect.getsource(c10d._process_group_name), moved(name)
    before = c10d._world.group_count
    c10d._world.group_count = 7
    torch_groups.reset_group_count()
    assert c10d._world.group_count == 0, moved(name)
    c10d._world.group_count = before


def test_no_group_is_alive_here():
    assert len(c10d._world.pg_map) == 0, moved("distributed_c10d._world.pg_map")
    assert not torch_groups.has_groups()
    torch_groups.forget_groups()


def test_a_group_that_never_became_the_default_one_is_forgotten():
    store = dist.HashStore()
    c10d._new_process_group_helper(1, 0, [], "gloo", store, "half", timeout=c10d.default_pg_timeout)
    assert torch_groups.has_groups()
    assert not dist.is_initialized()
    torch_groups.reset_group_count()
    assert not torch_groups.has_groups(), moved("distributed_c10d._update_default_pg")


def test_all_groups_are_aborted_without_arguments():
    name = "distributed_c10d._abort_process_group"
    parameters = inspect.signature(c10d._abort_process_group).parameters.values()
    assert all(parameter.default is not inspect.Parameter.empty for parameter in parameters), moved(name)


def test_a_store_is_made_by_its_constructor_and_tells_its_port():
    page = Page(1)
    observer = GroupObserver(page)
    observer.install()
    observer.begin()
    try:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True)
        assert store.port in observer.store_ports, moved("TCPStore.__init__")
        assert page[Word.MEETINGS] == 1, moved("TCPStore.__init__")
        assert page[Word.MEETING] == 0
    finally:
        observer.uninstall()
        page.close()


def test_a_group_tells_how_many_collectives_it_has_begun():
    name = "ProcessGroup._get_sequence_number_for_group"
    assert callable(getattr(dist.ProcessGroup, "_get_sequence_number_for_group", None)), moved(name)


def test_a_group_tells_its_backend():
    name = "ProcessGroup._get_backend"
    assert callable(getattr(dist.ProcessGroup, "_get_backend", None)), moved(name)


def test_nccl_where_it_is_there_can_be_aborted_and_tells_its_timeout():
    for nccl in [dist.ProcessGroupNCCL] if dist.is_nccl_available() else []:
        assert callable(getattr(nccl, "abort", None)), "forget_groups falls back to _shutdown()"
        assert hasattr(nccl.Options(), "_timeout"), "GroupObserver reads it"


def test_the_flight_record_comes_as_json_without_stack_traces():
    entries = json.loads(torch_groups.flight_recorders()["cpu"]()).get("entries", [])
    assert not any("frames" in entry for entry in entries), moved("_dump_fr_trace_json")


def test_a_message_names_what_moved_and_where_it_is_used():
    assert "_abort_process_group has moved or changed; used in torch_groups.py: " in moved(
        "distributed_c10d._abort_process_group"
    )
