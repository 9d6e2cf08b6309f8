"""A rank whose threads do not run when a round ends."""

import math

import pytest

from nvrx_core.inprocess.monitor.unheard import AskEvent, RoundOver, SendSignal, Unheard

BUSY = {"busy": True, "noticed": False, "breathing_at": 0.0}


@pytest.fixture
def unheard():
    made = Unheard(silent=1.0, confirm=30.0)
    yield made
    made.check()


def test_a_rank_that_breathes_costs_the_store_nothing(unheard):
    assert unheard.look(0, **BUSY, now=0.9) == ()
    assert unheard.deadline == 1.0
    assert unheard.look(0, busy=True, noticed=True, breathing_at=math.inf, now=0.9) == ()
    assert unheard.deadline == math.inf


def test_while_it_is_silent_the_store_is_asked_now_and_then(unheard):
    asked = [now / 100 for now in range(300) if unheard.look(0, **BUSY, now=now / 100) == (AskEvent(),)]
    assert len(asked) in {8, 9}
    assert asked[0] == 1.0
    assert unheard.out_by == math.inf
    assert unheard.answered(False, now=3.0) == ()


def test_when_the_round_is_over_it_is_signalled_until_it_notices(unheard):
    assert unheard.look(0, **BUSY, now=1.0) == (AskEvent(),)
    assert unheard.answered(True, now=1.0) == (RoundOver(), SendSignal())
    assert unheard.look(0, **BUSY, now=1.05) == ()
    assert unheard.deadline == pytest.approx(1.1)
    assert unheard.look(0, **BUSY, now=1.1) == (SendSignal(),)
    assert unheard.out_by == 31.0
    assert unheard.look(0, busy=False, noticed=True, breathing_at=0.0, now=1.2) == ()
    assert unheard.out_by == unheard.deadline == math.inf


def test_the_next_round_begins_anew(unheard):
    unheard.look(0, **BUSY, now=1.0)
    unheard.answered(True, now=1.0)
    before = unheard.state(now=2.0)
    assert unheard.look(1, **BUSY, now=2.0) == (AskEvent(),)
    assert unheard.state(now=2.0) != before
    assert unheard.out_by == math.inf


def test_there_is_time_to_come_out_whatever_the_timeouts_are():
    unheard = Unheard(silent=1.0, confirm=0.1)
    unheard.look(0, **BUSY, now=1.0)
    unheard.answered(True, now=1.0)
    assert unheard.out_by == 11.0


def test_threads_that_are_held_up_after_they_have_noticed_are_helped_without_a_question(unheard):
    assert unheard.look(0, busy=True, noticed=True, breathing_at=0.0, now=1.0) == (RoundOver(), SendSignal())


def test_a_rank_that_breathes_again_is_left_to_its_own_threads(unheard):
    unheard.look(0, busy=True, noticed=True, breathing_at=0.0, now=1.0)
    assert unheard.look(0, busy=True, noticed=True, breathing_at=1.5, now=1.6) == ()
    assert unheard.out_by == math.inf
