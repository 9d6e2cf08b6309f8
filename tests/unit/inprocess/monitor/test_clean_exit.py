"""A rank that has completed by exit: its monitor process looks who waits for it, more and more rarely."""

import itertools

import pytest

from nvrx_core.inprocess.monitor.policies import CHECK_EVERY, SHARE, CleanExitPolicy


def looks(clean_exit: CleanExitPolicy, until: float) -> list[float]:
    """When it looks, of a process that wakes at each of its deadlines."""
    found = []
    while clean_exit.deadline <= until:
        now = clean_exit.deadline
        assert clean_exit.due(0, now=now)
        assert clean_exit.waiting(()) is None
        found.append(now)
    return found


def test_a_rank_that_has_not_exited_asks_nothing():
    clean_exit = CleanExitPolicy()
    assert not any(clean_exit.due(None, now=now) for now in range(99))
    assert clean_exit.deadline == float("inf")


def test_an_exited_rank_looks_often_at_first_and_never_late_by_more_than_a_share():
    clean_exit = CleanExitPolicy()
    assert not clean_exit.due(0, now=100.0)
    assert not clean_exit.due(0, now=100.0 + CHECK_EVERY / 2)
    found = looks(clean_exit, 220.0)
    assert found[0] == 100.0 + CHECK_EVERY
    assert len(found) < 50
    for last, following in itertools.pairwise(found):
        assert following - last == pytest.approx(max(CHECK_EVERY, SHARE * (last - 100.0)))


def test_those_who_wait_are_named_once():
    clean_exit = CleanExitPolicy()
    clean_exit.due(0, now=0.0)
    assert clean_exit.due(0, now=CHECK_EVERY)
    reason = clean_exit.waiting((0, 2))
    assert reason == "exited with code 0, and initial ranks [0, 2] wait for it in a rendezvous"
    assert not clean_exit.due(0, now=999.0)


def test_it_looks_no_more_when_the_rank_is_on_its_way_out():
    clean_exit = CleanExitPolicy()
    clean_exit.due(0, now=0.0)
    assert not clean_exit.due(None, now=CHECK_EVERY)
    assert clean_exit.deadline == float("inf")
    assert not clean_exit.due(1, now=CHECK_EVERY)
    assert clean_exit.due(1, now=2 * CHECK_EVERY)
