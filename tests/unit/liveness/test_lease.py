"""Liveness of others by lease: only changes count, and only the observer's own clock."""

import math

from nvrx_core.liveness.lease import LeaseTable


def table(*leases):
    made = LeaseTable(timeout=30.0)
    for member, lease, now in leases:
        made.observe(member, lease, now=now)
    return made


def test_a_changing_lease_is_alive():
    assert table((1, "1", 0.0), (1, "2", 29.0)).stale(now=58.9) == ()


def test_an_unchanged_lease_becomes_stale():
    made = table((1, "1", 0.0), (1, "1", 20.0), (2, "1", 25.0))
    assert made.stale(now=29.9) == ()
    assert made.stale(now=30.0) == (1,)
    assert made.stale(now=99.0) == (1, 2)


def test_a_share_of_the_timeout_is_checked():
    assert table((1, "1", 0.0)).stale(now=15.0, share=0.5) == (1,)


def test_the_deadline_is_that_of_the_oldest_change():
    assert table((1, "1", 5.0), (2, "1", 3.0)).deadline == 33.0
    assert table().deadline == math.inf


def test_only_observed_members_are_kept():
    made = table((1, "1", 0.0), (2, "1", 0.0))
    made.keep([2, 7])
    assert made.stale(now=99.0) == (2,)


def test_a_table_rebuilt_from_its_state_answers_the_same():
    made = table((2, "1", 25.0), (1, "1", 0.0))
    rebuilt = LeaseTable.from_state(30.0, made.state(now=26.0), now=26.0)
    assert rebuilt.state(now=26.0) == made.state(now=26.0) == ((1, "1", 26.0), (2, "1", 1.0))
    assert (rebuilt.deadline, rebuilt.stale(now=31.0)) == (made.deadline, (1,))
