"""What the ranks tell each other in a user's rank assignment, over any torch store."""

from datetime import timedelta

import pytest
import torch.distributed as dist

from nvrx_core.errors import BarrierOverflow, BarrierTimeout
from nvrx_core.inprocess.coordination.connections import RoundPrefixStore
from nvrx_core.inprocess.store import FileStore, StoreMixin, TCPStore, as_client, client_only
from nvrx_core.rank_assignment.base import AssignmentState, Mode

SOON = timedelta(milliseconds=20)


@pytest.fixture
def store():
    return RoundPrefixStore("round", dist.HashStore())


def test_states_travel_without_their_exceptions(store):
    first = AssignmentState(rank=0, world_size=2, active_rank=0, active_world_size=1, iteration=3, mode=Mode.ACTIVE)
    second = AssignmentState(rank=1, world_size=2, initial_rank=5, mode=Mode.INACTIVE, fn_exception=ValueError("x"))
    store.send_state(first)
    store.send_state(second.freeze(), 1)
    second.fn_exception = None
    assert store.get_states([1, 0]) == [second, first]
    assert store.get_states([]) == []


def test_what_travels_is_json(store):
    store.send_key({"host": "a", "at": (1, 2)}, 3)
    assert store.get_keys([3]) == [{"host": "a", "at": [1, 2]}]
    assert bytes(store.get("key_3")).startswith(b"{")
    with pytest.raises(TypeError):
        store.send_key(object(), 3)


def test_a_barrier_opens_when_all_have_come(store):
    store.barrier([0, 1], "both", 2)
    store.add("barrier_late:arrived", 1)
    store.barrier([1], "late", 2, SOON)


def test_a_barrier_names_who_is_missing(store):
    with pytest.raises(BarrierTimeout, match="not all of 2 ranks came to barrier 'g' within") as caught:
        store.barrier([0], "g", 2, SOON)
    assert (caught.value.barrier, caught.value.expected, caught.value.seconds) == ("g", 2, 0.02)
    with pytest.raises(BarrierOverflow, match="4 ranks at barrier 'g', which is for 2"):
        store.barrier(range(3), "g", 2, SOON)


def test_torchs_own_barrier_is_still_there(store):
    class Marked(StoreMixin, dist.HashStore):
        """A store of a user's."""

    for each in (store, Marked()):
        each.barrier("key", 1, timedelta(seconds=1))


def test_the_barriers_of_two_rounds_are_separate():
    shared = dist.HashStore()
    RoundPrefixStore("0", shared).send_key("old", 0)
    assert not RoundPrefixStore("1", shared).check(["key_0"])


def test_a_store_says_who_hosts_it_and_which_side_it_is():
    assert list(StoreMixin().critical_ranks) == []
    assert not StoreMixin().forget("nvrx/")
    assert not StoreMixin().forget_except("nvrx/", ["nvrx/kept"])
    assert issubclass(TCPStore, StoreMixin)
    assert issubclass(FileStore, StoreMixin)
    assert not client_only()
    with as_client():
        assert client_only()
    assert not client_only()
