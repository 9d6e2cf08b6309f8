"""When a process is asked whether it runs, and when its silence counts."""

from nvrx_core.liveness.answers import AnswerWatch, Demand


def test_a_process_that_answers_is_asked_again_after_a_while():
    watch = AnswerWatch(5.0, 2.0, now=100.0)
    assert watch.tick(now=104.9) is Demand.NOTHING
    assert watch.tick(now=105.0) is Demand.ASK
    watch.answered(now=105.1)
    assert watch.deadline == 110.1
    assert watch.tick(now=110.1) is Demand.ASK


def test_a_process_that_does_not_answer_in_time_is_to_be_replaced():
    watch = AnswerWatch(5.0, 2.0, now=0.0)
    assert watch.tick(now=5.0) is Demand.ASK
    assert watch.tick(now=6.9) is Demand.NOTHING
    assert watch.tick(now=7.0) is Demand.REPLACE


def test_an_observer_that_was_paused_waits_once_more():
    watch = AnswerWatch(5.0, 2.0, now=0.0)
    assert watch.tick(now=5.0) is Demand.ASK
    assert watch.tick(now=60.0) is Demand.NOTHING
    assert watch.tick(now=62.0) is Demand.REPLACE


def test_a_process_that_starts_has_longer():
    watch = AnswerWatch(5.0, 2.0, starts_within=15.0, now=0.0)
    assert watch.deadline == 15.0
    watch.answered(now=1.0)
    assert watch.deadline == 6.0
