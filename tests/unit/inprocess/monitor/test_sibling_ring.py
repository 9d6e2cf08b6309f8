"""Which siblings are watched, and when one is unresponsive."""

import pytest

from nvrx_core.inprocess.monitor.sibling_ring import WATCHED_PER_SILENT, SiblingRing

TIMEOUT, STARTS = 30.0, 15.0


def others(member: int, size: int) -> list[int]:
    return [rank for rank in range(size) if rank != member]


@pytest.mark.parametrize(("member", "following"), [(0, 1), (4, 5), (9, 0)])
def test_each_watches_the_one_that_follows_in_the_ring(member, following):
    assert SiblingRing(member, TIMEOUT, STARTS).watched(others(member, 10), now=0.0) == [following]


def test_a_lost_sibling_is_passed_over():
    assert SiblingRing(3, TIMEOUT, STARTS).watched([0, 1, 2, 6, 7], now=0.0) == [6]


def test_more_are_watched_while_one_is_silent():
    ring = SiblingRing(0, TIMEOUT, STARTS)
    siblings = others(0, 1000)
    ring.observe(ring.watched(siblings, now=0.0), {1: "1"}, all_have_arrived=True, now=0.0)
    assert len(ring.watched(siblings, now=TIMEOUT / 2 - 1)) == 1
    watched = ring.watched(siblings, now=TIMEOUT / 2)
    assert watched == siblings[:WATCHED_PER_SILENT]
    assert ring.observe(watched, {1: "2"}, all_have_arrived=True, now=TIMEOUT / 2) == ()
    assert len(ring.watched(siblings, now=TIMEOUT / 2 + 1)) == 1


def test_a_lease_that_stands_still_is_unresponsive_until_it_moves():
    ring = SiblingRing(0, TIMEOUT, STARTS)
    assert ring.observe([1], {1: "1"}, all_have_arrived=True, now=0.0) == ()
    assert ring.observe([1], {1: "1"}, all_have_arrived=True, now=TIMEOUT) == (1,)
    assert ring.observe([1], {1: "2"}, all_have_arrived=True, now=TIMEOUT + 1) == ()


def test_a_member_without_a_lease_may_be_late_to_start():
    ring = SiblingRing(0, TIMEOUT, STARTS)
    for now in (0.0, STARTS, STARTS + TIMEOUT - 1.0):
        assert ring.observe([1], {}, all_have_arrived=False, now=now) == ()
    assert ring.observe([1], {}, all_have_arrived=False, now=STARTS + TIMEOUT) == (1,)


def test_a_member_whose_lease_begins_late_is_not_silent():
    ring = SiblingRing(0, TIMEOUT, STARTS)
    for now in (0.0, STARTS):
        ring.observe([1], {}, all_have_arrived=False, now=now)
    assert ring.observe([1], {1: "1"}, all_have_arrived=False, now=STARTS + TIMEOUT) == ()


@pytest.mark.parametrize(
    ("lost", "has_arrived", "seconds"),
    [(1, True, 30), (8, True, 45), (64, True, 45), (65, True, 60), (200, True, 60),
     (1, False, 45), (8, False, 60), (200, False, 75)],
)  # fmt: skip
def test_neighbours_that_are_lost_together_are_reported_in_the_documented_time(lost, has_arrived, seconds):
    """The table of docs/explanation/restart-protocol.md, "Loss of a node", at the default timeouts."""
    ring, siblings, reported = SiblingRing(0, TIMEOUT, STARTS), others(0, 1024), {}
    for now in range(100):
        watched = ring.watched(siblings, now=now)
        leases = {member: "0" if member <= lost else str(now) for member in watched if has_arrived or member > lost}
        found = ring.observe(watched, leases, all_have_arrived=has_arrived, now=now)
        reported |= {member: now for member in found if member not in reported}
    assert set(reported) == set(range(1, lost + 1))
    assert max(reported.values()) == seconds


def test_a_member_that_has_arrived_has_a_lease():
    ring = SiblingRing(0, TIMEOUT, STARTS)
    ring.observe([1], {}, all_have_arrived=True, now=0.0)
    assert ring.observe([1], {}, all_have_arrived=True, now=TIMEOUT) == (1,)


def test_who_is_watched_no_longer_is_forgotten():
    ring = SiblingRing(0, TIMEOUT, STARTS)
    ring.observe([1], {1: "1"}, all_have_arrived=True, now=0.0)
    assert ring.watched([2, 3], now=1.0) == [2]
    assert ring.observe([2], {2: "1"}, all_have_arrived=True, now=TIMEOUT) == ()
