"""A node's view of its own lease."""

from __future__ import annotations

import math

from nvrx_launcher.rendezvous.lease import Lease


def test_it_is_lost_a_beat_before_the_others_consider_it_lost():
    lease = Lease(1.0, 4.0)
    assert not lease.is_lost(now=1e9), "it has not been held"
    lease.moved(begun=10.0)
    assert (lease.deadline, lease.is_lost(now=13.9), lease.is_lost(now=14.0)) == (14.0, False, True)


def test_a_renewal_that_was_under_way_when_it_was_lost_does_not_hold_it_again():
    """Its answer comes when the store is back; the node would count as cut off a second time."""
    lease = Lease(1.0, 4.0)
    lease.moved(begun=10.0)
    lease.release(now=14.0)
    lease.moved(begun=11.0)
    assert lease.deadline == math.inf
    lease.moved(begun=17.0)
    assert lease.deadline == 21.0
