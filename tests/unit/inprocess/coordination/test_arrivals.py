"""Where a round's arrivals lie in the store, whether it can append to a key or not."""

import json

import pytest
import torch.distributed as dist

from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.coordination.arrivals import Arrivals
from nvrx_core.inprocess.coordination.guarded_store import BATCH, GuardedStore
from nvrx_core.inprocess.protocol.decision import Arrival, ArrivalStatus
from nvrx_core.store.keys import StoreKeys

KEYS = StoreKeys("job", 0, 0)
PAIR = frozenset({0, 1})


class Plain(dist.HashStore):
    """A store that cannot append."""

    def has_extended_api(self):
        return False

    def append(self, key, value):
        raise NotImplementedError


@pytest.fixture(params=[dist.HashStore, Plain], ids=["appends", "does not"])
def store(request):
    return request.param()


def arrivals_in(store):
    return Arrivals(GuardedStore(store), KEYS)


def arrival(member, status=ArrivalStatus.ALIVE, **more):
    return Arrival(initial_rank=member, rank=member, status=status, world_size=2, **more)


def test_all_are_there_or_none(store):
    arrivals = arrivals_in(store)
    assert arrivals.read(0, PAIR) == {}
    arrivals.put(0, arrival(1))
    assert arrivals.read(0, PAIR) == {}
    arrivals.put(0, arrival(0))
    assert arrivals.read(0, PAIR) == {0: arrival(0), 1: arrival(1)}
    assert arrivals.read(1, PAIR) == {}


@pytest.mark.parametrize("iteration", [-1, 0])
def test_the_missing_are_found(store, iteration):
    arrivals, members = arrivals_in(store), frozenset({0, 1, 2 * BATCH})
    assert arrivals.missing(iteration, members) == [0, 1, 2 * BATCH]
    arrivals.put(iteration, arrival(1))
    assert arrivals.missing(iteration, members) == [0, 2 * BATCH]
    for member in members:
        arrivals.put(iteration, arrival(member))
    assert arrivals.missing(iteration, members) == []


def test_the_last_arrival_of_a_member_counts(store):
    arrivals = arrivals_in(store)
    for each in (arrival(0), arrival(1), arrival(0, ArrivalStatus.DEAD), arrival(1, ArrivalStatus.LEAVING), arrival(1)):
        arrivals.put(3, each)
    assert arrivals.read(3, PAIR) == {0: arrival(0, ArrivalStatus.DEAD), 1: arrival(1)}
    assert arrivals.read(3, frozenset({1})) == {1: arrival(1)}


def test_more_members_than_a_block_has(store):
    members = frozenset(range(5, 2 * BATCH + 5))
    arrivals = arrivals_in(store)
    for member in members:
        arrivals.put(0, arrival(member))
    assert arrivals.read(0, members) == {member: arrival(member) for member in members}


def test_each_of_many_ranks_may_have_failed_with_a_long_message(store):
    members = frozenset(range(10 * BATCH))
    arrivals = arrivals_in(store)
    for member in members:
        failed = FaultRecord(initial_rank=member, rank=member, interruption="EXCEPTION", message="\u2026\n" * 1000)
        arrivals.put(0, arrival(member, fault=failed))
    assert len(arrivals.read(0, members)) == len(members)


def test_a_round_of_thousands_has_few_keys():
    assert len(list(arrivals_in(dist.HashStore()).keys_of(0, 16_384))) == 64
    assert len(list(arrivals_in(Plain()).keys_of(0, 16_384))) == 16_384


@pytest.mark.parametrize("iteration", [-1, 0])
def test_all_keys_are_known(store, iteration):
    arrivals = arrivals_in(store)
    for member in range(3):
        arrivals.put(iteration, arrival(member))
    for key in arrivals.keys_of(iteration, 3):
        assert store.delete_key(key)
    assert store.num_keys() == 0


@pytest.mark.parametrize("text", ["garbage", "1", "{}", '{"initial_rank": null}', '{}, {"a": 1}'])
def test_what_is_no_arrival_is_passed_over_while_all_members_are_there(text):
    store = dist.HashStore()
    store.set(KEYS.round(0).arrivals(0), text)
    arrivals = arrivals_in(store)
    arrivals.put(0, arrival(0))
    with pytest.raises(ValueError, match="no arrival"):
        arrivals.read(0, PAIR)
    arrivals.put(0, arrival(1))
    assert arrivals.read(0, PAIR) == {0: arrival(0), 1: arrival(1)}


@pytest.mark.parametrize("text", ["garbage", "1", "{}", '{"initial_rank": null}', '{}, {"a": 1}'])
def test_what_is_no_arrival_in_a_key_of_its_own_is_refused(text):
    store = Plain()
    arrivals = arrivals_in(store)
    arrivals.put(0, arrival(1))
    store.set(KEYS.round(0).arrival(0), text)
    with pytest.raises(ValueError, match=r"not |missing"):
        arrivals.read(0, PAIR)


def test_an_arrival_of_somebody_else_is_refused():
    store = Plain()
    arrivals = arrivals_in(store)
    arrivals.put(0, arrival(1))
    store.set(KEYS.round(0).arrival(0), json.dumps(json.loads(arrival(1).encode())))
    with pytest.raises(ValueError, match="those of others"):
        arrivals.read(0, PAIR)


def test_a_store_that_says_nothing_of_append_is_not_asked_to():
    class Old:
        def __init__(self):
            self.values = {}

        def set(self, key, value):
            self.values[key] = value

    store = Old()
    arrivals_in(store).put(0, arrival(0))
    assert list(store.values) == [KEYS.round(0).arrival(0)]
