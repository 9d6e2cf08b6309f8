"""The machine by which the ranks that enter a call agree on a generation."""

import json

import pytest
import torch.distributed as dist

from nvrx_core.inprocess.coordination.control_store import ControlStore
from nvrx_core.inprocess.coordination.guarded_store import GuardedStore
from nvrx_core.inprocess.coordination.joining import _carry_out
from nvrx_core.inprocess.protocol.join import (
    BY,
    CONFLICT,
    EXPIRED,
    MET,
    MOVED,
    Agree,
    Claim,
    Close,
    Conflicting,
    Count,
    Expired,
    Join,
    Joined,
    Look,
    ReadClaims,
    Superseded,
    Wait,
)
from nvrx_core.store.keys import StoreKeys


def terms(by, **values):
    return json.dumps({BY: by, **values})


@pytest.mark.parametrize("ended", range(40))
def test_the_first_open_generation_is_found_in_few_looks(ended):
    join, looks = Join(2, "me"), 0
    step = join.start()
    while isinstance(step, Look):
        looks += 1
        step = join.looked(step.generation, MET if step.generation < ended else None)
    assert step == Claim(ended)
    assert looks <= 1 + 2 * ended.bit_length()


def test_who_completes_the_number_closes_the_generation_and_has_joined_it():
    join = Join(3, "me")
    assert join.start() == Look(0)
    assert join.looked(0, None) == Claim(0)
    assert join.claim_read(0, "me") == Count(0)
    assert join.counted(0, 3) == ReadClaims(0)
    assert join.claims_read(0, complete=True) == Close(0, MET)
    assert join.decided(0, MET) == Joined(0)


def test_who_is_not_the_last_waits_for_the_verdict_and_follows_it():
    join = Join(3, "me")
    join.claim_read(0, "me")
    assert join.counted(0, 2) == Wait(0)
    assert join.decided(0, MOVED) == Look(1)


def test_a_claim_counted_twice_closes_nothing():
    join = Join(2, "me")
    join.claim_read(0, "me")
    assert join.counted(0, 2) == ReadClaims(0)
    assert join.claims_read(0, complete=False) == Wait(0)


@pytest.mark.parametrize("verdict", [MOVED, MET])
def test_a_place_that_is_taken_is_of_an_earlier_start(verdict):
    join = Join(2, "me")
    assert join.claim_read(0, "another") == Close(0, MOVED)
    assert join.decided(0, verdict) == Look(1)


def test_who_finds_its_place_taken_after_it_had_one_is_superseded():
    join = Join(2, "me")
    join.claim_read(0, "me")
    join.decided(0, MOVED)
    assert join.claim_read(1, "another") == Superseded(1, "another")


def contested():
    join = Join(2, "node1/11/me", terms=terms("rank 1 (node1 pid 11)"), unique=True)
    join.claim_read(0, join.incarnation)
    join.decided(0, MOVED)
    told = "rank 1 (node1 pid 11) and another process (node2 pid 22) were started with the same RANK"
    assert join.claim_read(1, "node2/22/you") == Close(1, CONFLICT + told)
    return join, told


def test_two_living_processes_of_one_rank_are_a_conflict_that_names_both():
    join, told = contested()
    assert join.decided(1, CONFLICT + told) == Conflicting(1, told)


def test_the_other_process_may_have_met_the_others_by_then():
    join, _ = contested()
    assert join.decided(1, MET) == Superseded(1, "node2/22/you")


def test_a_generation_that_has_moved_meanwhile_is_not_contested():
    join, _ = contested()
    assert join.decided(1, MOVED) == Look(2)
    assert join.claim_read(2, join.incarnation) == Agree(2)


@pytest.mark.parametrize(("verdict", "end"), [(CONFLICT, Conflicting), (EXPIRED, Expired)])
def test_an_end_that_a_rank_on_its_way_finds_is_its_own(verdict, end):
    early, late = Join(2, "me"), Join(2, "me")
    early.claim_read(0, "me")
    assert early.decided(0, MOVED) == Look(1)
    assert early.looked(1, f"{verdict}why") == end(1, "why")
    assert late.looked(0, f"{verdict}why") == Look(1), "it may be of an earlier start"
    assert late.claim_read(1, "me") == Count(1)
    assert late.decided(1, f"{verdict}why") == end(1, "why")


def test_who_goes_on_for_a_dead_rank_begins_with_its_claim():
    assert Join(2, "me", claimed=4).start() == Claim(4)


def test_the_terms_of_the_first_rank_are_those_of_all():
    join = Join(2, "me", terms=terms("rank 1", size=2))
    assert join.claim_read(0, "me") == Agree(0)
    assert join.terms_read(0, terms("rank 0", size=2)) == Count(0)


def test_other_terms_are_of_an_earlier_start_until_they_come_again_and_again():
    join = Join(2, "me", terms=terms("rank 1", size=2))
    for generation in (0, 1):
        join.claim_read(generation, "me")
        assert join.terms_read(generation, terms("rank 0", size=3)) == Close(generation, MOVED)
        assert join.decided(generation, MOVED) == Look(generation + 1)
    join.claim_read(2, "me")
    told = "rank 1 has size=2; rank 0 has size=3"
    assert join.terms_read(2, terms("rank 0", size=3)) == Close(2, CONFLICT + told)
    assert join.decided(2, CONFLICT + told) == Conflicting(2, told)


def test_a_conflict_of_others_is_passed_by():
    assert Join(2, "me", terms=terms("rank 1")).decided(0, CONFLICT + "another start's") == Look(1)


class Rank:
    """One incarnation of a rank on a store of torch's, as far on its way as it comes alone."""

    def __init__(self, store, member, start):
        self.store, self.keys = GuardedStore(store), StoreKeys("job", 0, 0)
        self.member, self.join = member, Join(2, f"{member}, start {start}")
        self.step = self.join.start()

    def go(self):
        while not isinstance(self.step, Joined):
            if not isinstance(self.step, Wait):
                self.step = _carry_out(self.store, self.keys, self.join, self.step, member=self.member)
            elif (verdict := self.store.try_get(self.keys.verdict(self.step.generation))) is not None:
                self.step = self.join.decided(self.step.generation, verdict.decode())
            else:
                break
        return self.step

    def complete(self):
        control_store = ControlStore(self.store, self.keys.of(self.step.generation))
        control_store.membership.mark_left(self.member)
        control_store.deletion.count_out(0, 2, 2)


@pytest.mark.parametrize("first", [0, 1])
def test_a_rank_killed_while_it_joined_does_not_join_a_later_start(first):
    store = dist.HashStore()
    assert Rank(store, 0, 1).go() == Wait(0), "and is killed"
    ranks = [Rank(store, member, 2) for member in (0, 1)]
    assert [rank.go() for rank in (*ranks, ranks[0])] == [Wait(1), Joined(1), Joined(1)]
    for rank in ranks:
        rank.complete()
    ranks = [Rank(store, member, 3) for member in (first, 1 - first)]
    assert [rank.go() for rank in (*ranks, ranks[0])] == [Wait(1), Joined(1), Joined(1)]
