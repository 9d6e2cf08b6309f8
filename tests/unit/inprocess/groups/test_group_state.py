"""Whatever an iteration leaves in torch's tables of process groups, the next one can make a group."""

import gc
import os
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from nvrx_core.inprocess.groups import observer as module, torch_groups
from nvrx_core.inprocess.groups.gloo_connections import LOOP
from nvrx_core.inprocess.groups.observer import GroupObserver
from nvrx_core.process.system_calls import thread_names
from nvrx_core.progress.page import Page, ProgressField

WORLD = c10d._world


@pytest.fixture
def observer():
    page = Page(1)
    observer = GroupObserver(page)
    observer.install()
    yield observer
    observer.uninstall()
    torch_groups.forget_groups()
    page.close()


def make_group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def default_group_without_tables():
    """The abort came between the creation of a group and its becoming the default one."""
    make_group()
    group = WORLD.default_pg
    torch_groups.forget_groups()
    c10d._update_default_pg(group)
    WORLD.pg_group_ranks[group] = {0: 0}


def group_that_is_not_the_default_one():
    make_group()
    c10d._update_default_pg(None)


def group_without_a_name():
    make_group()
    WORLD.pg_names.clear()


def name_without_a_group():
    make_group()
    name = WORLD.pg_names[WORLD.default_pg]
    names = dict(WORLD.pg_names)
    torch_groups.forget_groups()
    WORLD.pg_names.update(names)
    assert name == "0"


def group_that_is_known_in_cpp_only():
    make_group()
    group = WORLD.default_pg
    torch_groups.forget_groups()
    c10d._register_process_group("0", group)


def tag_without_a_group():
    make_group()
    tags = dict(WORLD.tags_to_pg)
    torch_groups.forget_groups()
    WORLD.tags_to_pg.update(tags)


def configuration_without_a_group():
    make_group()
    configurations = dict(WORLD.pg_backend_config)
    torch_groups.forget_groups()
    WORLD.pg_backend_config.update(configurations)


def collectives_that_were_never_launched():
    make_group()
    group = WORLD.default_pg
    torch_groups.forget_groups()
    WORLD.pg_coalesce_state[group] = []


def counter_of_a_creation_that_failed():
    WORLD.group_count = 3


STATES = (
    default_group_without_tables,
    group_that_is_not_the_default_one,
    group_without_a_name,
    name_without_a_group,
    group_that_is_known_in_cpp_only,
    tag_without_a_group,
    configuration_without_a_group,
    collectives_that_were_never_launched,
    counter_of_a_creation_that_failed,
)


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_the_next_iteration_can_create_groups_whatever_state_is_left(observer, state):
    state()
    observer.clear_groups()
    assert not torch_groups.has_groups()
    make_group()
    assert WORLD.pg_names[WORLD.default_pg] == "0", "as on a rank that starts with nothing"
    dist.new_group([0])
    dist.barrier()


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_an_abort_clears_whatever_there_is(observer, state):
    state()
    observer.abort_groups()
    assert not torch_groups.has_groups()


def test_a_whole_group_that_comes_after_the_abort_is_cleared(observer):
    observer.abort_groups()
    make_group()
    observer.clear_groups()
    assert not torch_groups.has_groups()


def test_a_whole_group_that_no_abort_has_touched_is_the_users(observer):
    make_group()
    dist.new_group([0])
    observer.clear_groups()
    assert dist.is_initialized()
    dist.barrier()


def test_an_abort_is_forgotten_once_its_groups_are_cleared(observer):
    observer.abort_groups()
    observer.clear_groups()
    make_group()
    observer.clear_groups()
    assert dist.is_initialized()


def test_the_creation_of_groups_does_not_list_descriptors(observer, monkeypatch):
    def listdir(path):
        raise AssertionError(f"{path} was listed")

    observer.begin()
    monkeypatch.setattr(os, "listdir", listdir)
    make_group()
    dist.new_group([0])
    monkeypatch.undo()
    observer.abort_groups()


def test_only_a_group_that_is_being_created_is_offered_connections(observer):
    asked = []
    observer._gloo = SimpleNamespace(
        cut=lambda: 0, offer=lambda size, older: asked.append(size) or size, release=lambda: None
    )
    assert (observer.unblock(), asked) == (0, [])
    with observer._rendezvous():
        observer.page[ProgressField.WORLD_SIZE] = 5
        assert (observer.unblock(), asked) == (5, [5])


def test_a_main_thread_that_stays_is_offered_connections_wherever_it_waits(observer, monkeypatch):
    now = 100.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    observer._gloo = SimpleNamespace(cut=lambda: 0, offer=lambda size, older: 1, release=lambda: None)
    assert observer.unblock() == 0
    now += 2 * module.STUCK_AFTER
    assert observer.unblock() == 1
    observer.release()
    assert observer.unblock() == 0


def gloo_threads():
    return list(thread_names().values()).count(LOOP)


def test_no_group_is_destroyed_by_the_collection_of_its_iterations_garbage(observer):
    """That would take 10 ms for each, after the round is decided."""
    before = gloo_threads()
    make_group()
    cycle = [WORLD.default_pg]
    cycle.append(cycle)
    del cycle
    observer.abort_groups()
    observer.release()
    gc.collect()
    assert gloo_threads() == before + 1
    observer.clear_groups()
    observer.held.wait()
    assert gloo_threads() == before
