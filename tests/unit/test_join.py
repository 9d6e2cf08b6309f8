"""The machine by which the ranks that enter a call agree on a generation."""

import pytest

from nvrx_core.inprocess.join import (
    MET,
    MOVED,
    Claim,
    Close,
    Count,
    Join,
    Joined,
    Look,
    ReadClaims,
    Superseded,
    Wait,
)


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


def test_who_goes_on_for_a_dead_rank_begins_with_its_claim():
    assert Join(2, "me", claimed=4).start() == Claim(4)
