"""When a rank counts as hung, and when it is ended."""

import math

import pytest

from nvrx_core.liveness.hang_detector import (
    POKE_AFTER,
    HangDetector,
    Kill,
    Poke,
    ProgressSample,
    QueryPeers,
    SoftTimeout,
    Terminate,
)
from nvrx_core.progress.stage import Stage

SOFT, HARD, GRACE = 10.0, 30.0, 2.0


@pytest.fixture
def watch():
    return HangDetector(SOFT, HARD, GRACE)


def reading(alive_at=0.0, stage=Stage.RUNNING, iteration=0, **more):
    return ProgressSample(iteration=iteration, stage=stage, alive_at=alive_at, **more)


def blamed(watch, now=SOFT, **more):
    """A watch that has announced the soft timeout."""
    assert watch.look(reading(**more), now=now) == (QueryPeers(),)
    watch.peers_progressing(False, now=now)
    return watch.look(reading(**more), now=now)


def test_it_wakes_when_the_soft_timeout_is_due(watch):
    assert watch.look(reading(alive_at=5.0), now=6.0) == ()
    assert watch.deadline == 15.0
    assert watch.look(reading(alive_at=14.0), now=15.0) == ()
    assert watch.deadline == 24.0


@pytest.mark.parametrize("stage", [Stage.OUTSIDE, Stage.WAITING, Stage.ARRIVED, Stage.LEFT])
def test_a_rank_that_waits_for_others_does_not_hang(watch, stage):
    assert watch.look(reading(stage=stage), now=1e6) == ()
    assert watch.deadline == math.inf


@pytest.mark.parametrize("stage", [Stage.OUTSIDE, Stage.WAITING, Stage.ARRIVED])
def test_a_rank_that_is_stopped_while_it_waits_is_ended(watch, stage):
    assert watch.look(reading(stage=stage, stopped=True), now=5.0) == ()
    assert watch.deadline == 5.0 + HARD
    assert watch.look(reading(stage=stage, stopped=False), now=6.0) == ()
    assert watch.look(reading(stage=stage, stopped=True), now=7.0) == ()
    assert isinstance(watch.look(reading(stage=stage, stopped=True), now=7.0 + HARD)[0], Terminate)
    assert watch.stood_still_since == 7.0


@pytest.mark.parametrize("stage", [Stage.WAITING, Stage.ARRIVED])
def test_a_rank_that_waits_and_whose_threads_stand_still_is_ended(watch, stage):
    assert watch.look(reading(stage=stage, breathing_at=5.0), now=HARD) == ()
    assert watch.deadline == 5.0 + HARD
    assert isinstance(watch.look(reading(stage=stage, breathing_at=5.0), now=5.0 + HARD)[0], Terminate)


def test_without_hang_protection_nothing_is_judged(watch):
    assert watch.look(reading(protected=False), now=1e6) == ()


@pytest.mark.parametrize("stage", [Stage.STARTING, Stage.UNWINDING])
def test_outside_the_function_only_the_hard_timeout_counts(watch, stage):
    assert watch.look(reading(stage=stage), now=SOFT + 1) == ()
    assert watch.deadline == HARD
    assert isinstance(watch.look(reading(stage=stage), now=HARD)[0], Terminate)


def test_a_hung_rank_is_announced_once(watch):
    (timeout,) = blamed(watch)
    assert timeout == SoftTimeout("no progress for 10 s (soft_timeout 10 s)")
    assert watch.deadline == SOFT + POKE_AFTER
    assert watch.look(reading(), now=SOFT) == ()


def test_a_rank_that_waits_for_one_that_is_on_the_way_is_not_to_blame(watch):
    assert watch.look(reading(), now=SOFT) == (QueryPeers(),)
    watch.peers_progressing(True, now=SOFT)
    assert watch.look(reading(), now=SOFT) == ()
    assert watch.deadline == 2 * SOFT


def test_when_its_threads_do_not_run_it_is_poked_from_outside(watch):
    blamed(watch)
    assert watch.look(reading(), now=SOFT + POKE_AFTER) == (Poke(),)
    assert watch.look(reading(), now=SOFT + 2 * POKE_AFTER) == ()
    assert watch.look(reading(), now=SOFT + 3 * POKE_AFTER) == (Poke(),)
    assert watch.look(reading(noticed=True), now=SOFT + 9 * POKE_AFTER) == ()


def test_a_new_iteration_starts_anew(watch):
    blamed(watch)
    assert watch.look(reading(alive_at=12.0, iteration=1), now=13.0) == ()
    assert watch.deadline == 22.0
    assert isinstance(blamed(watch, now=22.0, alive_at=12.0, iteration=1)[0], SoftTimeout)


def test_the_hard_timeout_ends_the_rank_and_after_the_grace_kills_it(watch):
    (terminate,) = watch.look(reading(), now=HARD)
    assert terminate == Terminate("no progress for 30 s (hard_timeout 30 s)")
    assert watch.deadline == HARD + GRACE
    assert watch.look(reading(alive_at=HARD), now=HARD + 1) == ()
    assert watch.look(reading(), now=HARD + GRACE) == (Kill("still there 2 s after SIGTERM"),)
    assert watch.deadline == HARD + GRACE + 1
    assert watch.look(reading(), now=HARD + GRACE + 1) != ()


def test_one_that_is_told_to_end_and_does_not_is_ended(watch):
    moving = {"interrupting": True, "noticed": True}
    assert watch.look(reading(alive_at=5.0, **moving), now=5.0) == ()
    assert watch.look(reading(alive_at=6.0, **moving), now=6.0) == ()
    assert watch.deadline <= 5.0 + HARD
    (terminate,) = watch.look(reading(alive_at=5.0 + HARD, **moving), now=5.0 + HARD)
    assert isinstance(terminate, Terminate)


def test_a_main_thread_that_no_signal_gets_out_of_a_round_that_is_over_is_ended(watch):
    assert watch.look(reading(alive_at=5.0, out_by=7.0), now=6.0) == ()
    assert watch.deadline == 7.0
    ended = watch.look(reading(alive_at=5.0, out_by=7.0), now=7.0)
    assert isinstance(ended[0], Terminate)
    assert "the round is over" in ended[0].reason


def test_the_bound_is_void_once_it_is_out(watch):
    assert watch.look(reading(alive_at=5.0, out_by=7.0, stage=Stage.UNWINDING), now=7.0) == ()
