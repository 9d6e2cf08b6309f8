"""A close shortens the lease of a node; what lives connects again, or renews its lease."""

from __future__ import annotations

import math

from nvrx_launcher.rendezvous.connection_watch import ConnectionWatch


def watched(*nodes: int) -> ConnectionWatch:
    watch = ConnectionWatch(1.0, 1.5)
    for node in nodes:
        watch.connected(node)
    return watch


def test_a_node_whose_connection_is_closed_and_whose_lease_stays_is_lost() -> None:
    watch = watched(1, 2)
    assert watch.deadline == math.inf
    watch.closed(1)
    assert watch.deadline == -math.inf
    assert watch.tick(now=10.0) == (1,)
    assert watch.deadline == math.inf  # its lease is being read
    assert watch.observed({1: "7"}, now=10.25) == ()
    assert watch.deadline == 11.75
    assert watch.tick(now=11.0) == ()
    assert watch.tick(now=11.75) == (1,)
    assert watch.observed({1: "7"}, now=11.75) == (1,)
    assert watch.deadline == math.inf


def test_a_node_that_renews_its_lease_is_not_lost() -> None:
    watch = watched(1)
    watch.closed(1)
    watch.tick(now=0.0)
    watch.observed({1: "7"}, now=0.0)
    watch.tick(now=1.5)
    assert watch.observed({1: "8"}, now=1.5) == ()
    assert watch.deadline == math.inf


def test_a_node_that_connects_again_is_not_lost() -> None:
    watch = watched(1)
    watch.closed(1)
    watch.tick(now=0.0)
    watch.observed({1: "7"}, now=0.0)
    watch.connected(1)
    assert watch.deadline == math.inf
    assert watch.observed({1: "7"}, now=9.0) == ()


def test_of_a_node_that_has_connected_again_before_its_first_connection_is_closed_nothing_is_closed() -> None:
    watch = watched(1, 1)
    watch.closed(1)
    assert watch.deadline == math.inf
    watch.closed(1)
    assert watch.tick(now=0.0) == (1,)


def test_an_answer_that_belongs_to_an_earlier_close_does_not_shorten_the_time_after_the_next_one() -> None:
    watch = watched(1)
    watch.closed(1)
    watch.tick(now=0.0)  # its answer is late
    watch.connected(1)
    watch.closed(1)
    watch.tick(now=5.0)
    assert watch.observed({1: "7"}, now=5.0) == ()
    assert watch.observed({1: "7"}, now=5.1) == ()
    assert watch.deadline == 6.5


def test_an_observer_that_stood_still_gives_the_node_its_time_again() -> None:
    watch = watched(1)
    watch.closed(1)
    watch.tick(now=0.0)
    watch.observed({1: "7"}, now=0.0)
    assert watch.tick(now=60.0) == (1,)
    assert watch.observed({1: "7"}, now=60.0) == ()
    assert watch.deadline == 61.5
    assert watch.tick(now=61.5) == (1,)
    assert watch.observed({1: "7"}, now=61.6) == (1,)


def test_a_node_that_has_left_is_forgotten() -> None:
    watch = watched(1)
    watch.closed(1)
    watch.forget(1)
    watch.forget(2)
    assert watch.deadline == math.inf
