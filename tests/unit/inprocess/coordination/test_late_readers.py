"""A member that was silent and is lost reads so after the others have deleted what they read themselves."""

import pytest
import torch.distributed as dist

from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.coordination.control_store import ControlStore
from nvrx_core.inprocess.coordination.guarded_store import GuardedStore
from nvrx_core.inprocess.coordination.housekeeping import Housekeeping
from nvrx_core.inprocess.protocol.decision import Arrival, ArrivalStatus, RoundDecision, decide
from nvrx_core.progress.page import Page
from nvrx_core.store.keys import StoreKeys

KEYS = StoreKeys("job", 0, 0)
SILENCE = FaultRecord(initial_rank=1, rank=-1, interruption="UNRESPONSIVE")


class Forgetful(dist.HashStore):
    """A store that can delete all keys of a prefix."""

    def forget(self, prefix):
        for key in [key for key in self.list_keys() if key.startswith(prefix)]:
            self.delete_key(key)
        return True


class Excepting(Forgetful):
    """A store that can spare some of them."""

    def forget_except(self, prefix, keys):
        for key in [key for key in self.list_keys() if key.startswith(prefix) and key not in keys]:
            self.delete_key(key)
        return True


class Interrupted(Excepting):
    """A store that deletes in two portions, in the order of the keys; another client does something between them."""

    def __init__(self, portion):
        super().__init__()
        self.portion, self.between = portion, lambda: None

    def forget_except(self, prefix, keys):
        between, self.between = self.between, lambda: None
        found = sorted(key for key in self.list_keys() if key.startswith(prefix) and key not in keys)
        for key in found[: self.portion]:
            self.delete_key(key)
        between()
        return super().forget_except(prefix, keys)


@pytest.fixture(params=[dist.HashStore, Forgetful, Excepting])
def control_store(request):
    return ControlStore(GuardedStore(request.param()), KEYS)


def decision_of(iteration, *, silent, dead=False):
    status = ArrivalStatus.DEAD if silent or dead else ArrivalStatus.ALIVE
    fault = SILENCE if silent else None
    arrivals = {
        0: Arrival(initial_rank=0, rank=0, status=ArrivalStatus.ALIVE, world_size=2),
        1: Arrival(initial_rank=1, rank=1, status=status, world_size=2, fault=fault),
    }
    return decide(iteration, arrivals, SILENCE)


def end_round(control_store, iteration, *, silent=False, dead=False):
    decision = decision_of(iteration, silent=silent, dead=dead)
    control_store.rounds.announce(iteration, SILENCE)
    control_store.rounds.publish(iteration, decision)
    for key in ("", "/a", "/decision"):
        control_store.store.put(f"{KEYS.round(iteration).user}{key}", "the user's")
    control_store.store.put(KEYS.survey(iteration), "a survey")
    return decision


def keys_of(*rounds):
    return {key for k in rounds for key in KEYS.round(k).read_late[:2]}


def test_the_decision_names_who_was_silent():
    assert decision_of(0, silent=True).silent == (1,)
    assert decision_of(0, silent=False).silent == ()
    assert RoundDecision.decode(decision_of(0, silent=True).encode()) == decision_of(0, silent=True)


def test_the_decision_on_a_silent_member_outlives_its_round_and_the_call(control_store):
    housekeeping = Housekeeping(control_store.deletion, Page(2), 1, lambda work: work())
    for iteration in range(7):
        housekeeping.decided(0, end_round(control_store, iteration, silent=iteration == 1))
    assert control_store.store.has(sorted(keys_of(0, 1)))
    assert not control_store.store.has([KEYS.round(2).event])
    control_store.membership.mark_left(0)
    control_store.membership.mark_left(1, silent=True)
    control_store.deletion.count_out(7, 1, 2)
    assert set(control_store.store.listed("")) == keys_of(0, 1)
    assert control_store.rounds.read_decision(1).lost == (1,)


def test_the_decision_on_a_silent_member_outlives_a_call_that_is_completed_at_once(control_store):
    for iteration in (-1, 0):
        end_round(control_store, iteration, silent=iteration == 0)
    control_store.membership.mark_left(0)
    control_store.membership.mark_left(1, silent=True)
    control_store.deletion.count_out(1, 1, 2)
    assert set(control_store.store.listed("")) == keys_of(-1, 0)


def test_the_verdict_that_a_silent_member_joins_by_outlives_a_call_that_began_without_it(control_store):
    verdict = KEYS.verdict(KEYS.generation)
    control_store.store.put(verdict, "met")
    end_round(control_store, -1, silent=True)
    control_store.membership.mark_left(0)
    control_store.membership.mark_left(1, silent=True)
    control_store.deletion.count_out(0, 1, 2)
    assert set(control_store.store.listed("")) == keys_of(-1) | {verdict}


def test_the_decision_that_a_late_monitor_process_waits_for_outlives_the_call(control_store):
    """It has reported the death of its rank after a sibling did, which then marks the rank as left."""
    for iteration in (-1, 0):
        end_round(control_store, iteration, dead=iteration == 0)
    control_store.membership.mark_left(0)
    control_store.membership.mark_left(1, silent=True)
    control_store.membership.mark_left(1)
    control_store.deletion.count_out(1, 1, 2)
    assert set(control_store.store.listed("")) == keys_of(0)


def test_the_decision_on_a_dead_member_goes_with_the_call_once_its_monitor_process_has_read_it(control_store):
    for iteration in (-1, 0):
        end_round(control_store, iteration, dead=iteration == 0)
    control_store.membership.mark_left(0)
    control_store.membership.mark_left(1)
    control_store.membership.mark_left(1, silent=True)
    control_store.deletion.count_out(1, 1, 2)
    assert not control_store.store.listed("")


def test_where_a_silent_member_is_to_meet_outlives_the_call(control_store):
    """It may wait for that, where the ranks cannot tell who is rank 0, before it learns that it is lost."""
    for iteration in (-1, 0):
        control_store.rounds.set_rendezvous(iteration, "node0:1")
        end_round(control_store, iteration, silent=iteration == 0)
    control_store.membership.mark_left(0)
    control_store.membership.mark_left(1, silent=True)
    control_store.deletion.count_out(1, 1, 2)
    assert control_store.rounds.await_rendezvous(0) == ("node0", 1)


def test_a_member_that_deletes_after_another_spares_what_is_read_late(control_store, monkeypatch):
    """Both find that all have left, and the first has deleted the mark of late readers before the second looks."""
    end_round(control_store, 0, silent=True)
    control_store.membership.mark_left(0)
    control_store.membership.mark_left(1, silent=True)
    look, deletion = control_store.deletion._read_late, control_store.deletion

    def overtaken(iteration):
        monkeypatch.undo()
        deletion.count_out(0, 1, 2)
        return look(iteration)

    monkeypatch.setattr(deletion, "_read_late", overtaken)
    deletion._delete_unread(0, 2)
    assert set(control_store.store.listed("")) == keys_of(0)


@pytest.mark.parametrize("portion", range(8))
def test_a_member_that_deletes_while_another_does_spares_what_is_read_late(portion):
    """As in etcd, which deletes a hundred ranges at a time."""
    store = Interrupted(portion)
    control_store = ControlStore(GuardedStore(store), KEYS)
    end_round(control_store, 0, silent=True)
    control_store.membership.mark_left(0)
    control_store.membership.mark_left(1, silent=True)
    store.between = lambda: control_store.deletion._delete_unread(0, 2)
    control_store.deletion.count_out(0, 1, 2)
    assert set(store.list_keys()) == keys_of(0)


def test_the_decision_on_a_member_that_leaves_goes_with_the_call(control_store):
    """Its round was kept for it alone, and it has read it; the decision on a silent one stays."""
    for iteration in range(7):
        end_round(control_store, iteration, silent=iteration == 4)
    control_store.membership.mark_left(0)
    control_store.membership.mark_left(1, silent=True)
    control_store.deletion.count_out(6, 1, 2)
    assert set(control_store.store.listed("")) == keys_of(3, 4)


def test_the_decision_on_a_member_that_leaves_outlives_its_round(control_store):
    """It reads it when it gets to run, which is later than two further rounds on a busy machine."""
    housekeeping = Housekeeping(control_store.deletion, Page(2), 1, lambda work: work())
    arrivals = {
        rank: Arrival(initial_rank=rank, rank=rank, status=status, world_size=2)
        for rank, status in enumerate((ArrivalStatus.ALIVE, ArrivalStatus.LEAVING))
    }
    left = decide(0, arrivals, SILENCE)
    assert (left.lost, left.silent) == ((1,), ())
    control_store.rounds.publish(0, left)
    housekeeping.decided(0, left)
    for iteration in range(1, 5):
        housekeeping.decided(0, end_round(control_store, iteration))
    assert control_store.rounds.read_decision(0) == left
