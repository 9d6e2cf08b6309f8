"""When a rank of a wrapped call counts as hung, and when it is ended."""

import math

import pytest

from nvrx_core.liveness.hang_detector import (
    NOT_NOTICED,
    SIGNAL_AFTER,
    CallRules,
    Excuse,
    HangDetector,
    KillRank,
    QueryPeers,
    SendSignal,
    SoftTimeout,
    TerminateRank,
)
from nvrx_core.progress.limits import Limit, LimitKind, ProgressSample
from nvrx_core.progress.stage import Stage

SOFT, HARD, GRACE = 10.0, 30.0, 2.0
RULES = CallRules(SOFT, HARD, GRACE)


@pytest.fixture
def detector():
    return HangDetector(RULES)


def sample(alive_at=0.0, stage=Stage.RUNNING, iteration=0, **more):
    return ProgressSample(iteration=iteration, stage=stage, alive_at=alive_at, **more)


def blamed(detector, now=SOFT, **more):
    """A detector that has announced the soft timeout."""
    assert detector.evaluate(sample(**more), now=now) == (QueryPeers(),)
    assert not detector.answered(None, now=now)
    return detector.evaluate(sample(**more), now=now)


def test_the_deadline_is_the_soft_timeout(detector):
    assert detector.evaluate(sample(alive_at=5.0), now=6.0) == ()
    assert detector.deadline == 15.0
    assert detector.evaluate(sample(alive_at=14.0), now=15.0) == ()
    assert detector.deadline == 24.0


@pytest.mark.parametrize("stage", [Stage.OUTSIDE, Stage.WAITING, Stage.ARRIVED, Stage.LEFT])
def test_a_waiting_rank_is_not_hung(detector, stage):
    assert detector.evaluate(sample(stage=stage), now=1e6) == ()
    assert detector.deadline == math.inf


@pytest.mark.parametrize("stage", [Stage.OUTSIDE, Stage.WAITING, Stage.ARRIVED])
def test_a_rank_stopped_while_it_waits_is_terminated(detector, stage):
    assert detector.evaluate(sample(stage=stage, stopped=True), now=5.0) == ()
    assert detector.deadline == 5.0 + HARD
    assert detector.evaluate(sample(stage=stage, stopped=False), now=6.0) == ()
    assert detector.evaluate(sample(stage=stage, stopped=True), now=7.0) == ()
    assert isinstance(detector.evaluate(sample(stage=stage, stopped=True), now=7.0 + HARD)[0], TerminateRank)
    assert detector.no_progress_since == 7.0


@pytest.mark.parametrize("stage", [Stage.WAITING, Stage.ARRIVED])
def test_a_waiting_rank_whose_threads_do_not_run_is_terminated(detector, stage):
    assert detector.evaluate(sample(stage=stage, watchdog_alive_at=5.0), now=HARD) == ()
    assert detector.deadline == 5.0 + HARD
    assert isinstance(detector.evaluate(sample(stage=stage, watchdog_alive_at=5.0), now=5.0 + HARD)[0], TerminateRank)


def test_without_hang_protection_no_timeout_applies(detector):
    assert detector.evaluate(sample(protected=False), now=1e6) == ()


@pytest.mark.parametrize("stage", [Stage.STARTING, Stage.UNWINDING])
def test_outside_the_function_only_the_hard_timeout_counts(detector, stage):
    assert detector.evaluate(sample(stage=stage), now=SOFT + 1) == ()
    assert detector.deadline == HARD
    assert isinstance(detector.evaluate(sample(stage=stage), now=HARD)[0], TerminateRank)


def test_a_hung_rank_is_announced_once(detector):
    (timeout,) = blamed(detector)
    assert timeout == SoftTimeout("no progress for 10 s (soft_timeout 10 s)")
    assert detector.deadline == SOFT + SIGNAL_AFTER
    assert detector.evaluate(sample(), now=SOFT) == ()


def test_a_rank_that_waits_for_a_progressing_peer_is_excused(detector):
    assert detector.evaluate(sample(), now=SOFT) == (QueryPeers(),)
    assert detector.answered(Excuse.PEER_BEHIND, now=SOFT)
    assert detector.evaluate(sample(), now=SOFT) == ()
    assert detector.deadline == 2 * SOFT


def test_a_rank_whose_threads_do_not_run_is_signalled(detector):
    blamed(detector)
    assert detector.evaluate(sample(), now=SOFT + SIGNAL_AFTER) == (SendSignal(NOT_NOTICED),)
    assert detector.evaluate(sample(), now=SOFT + 2 * SIGNAL_AFTER) == ()
    assert detector.evaluate(sample(), now=SOFT + 3 * SIGNAL_AFTER) == (SendSignal(NOT_NOTICED),)
    assert detector.evaluate(sample(noticed=True), now=SOFT + 9 * SIGNAL_AFTER) == ()


def test_a_rank_that_only_the_signals_keep_alive_is_terminated(detector):
    """Its monitor thread is dead: nobody notices the end of the round, and each signal's handler runs."""
    blamed(detector)
    first = now = detector.deadline
    while now < first + HARD:
        assert detector.evaluate(sample(alive_at=now), now=now) == (SendSignal(NOT_NOTICED),)
        now = detector.deadline
    assert isinstance(detector.evaluate(sample(alive_at=now), now=now)[0], TerminateRank)
    assert now < first + HARD + 3 * SIGNAL_AFTER


def test_a_new_iteration_resets_the_detector(detector):
    blamed(detector)
    assert detector.evaluate(sample(alive_at=12.0, iteration=1), now=13.0) == ()
    assert detector.deadline == 22.0
    assert isinstance(blamed(detector, now=22.0, alive_at=12.0, iteration=1)[0], SoftTimeout)


def test_a_detector_rebuilt_from_its_state_answers_the_same(detector):
    ends = [(SOFT, {}), (SOFT + 1, {"interrupting": True, "noticed": True}), (HARD, {}), (HARD + GRACE, {})]
    for now, more in ends:
        rebuilt = HangDetector.from_state(RULES, detector.state(now=now), now=now)
        rebuilt.check()
        assert rebuilt.evaluate(sample(**more), now=now) == detector.evaluate(sample(**more), now=now)
        assert (rebuilt.deadline, rebuilt.state(now=now)) == (detector.deadline, detector.state(now=now))


def test_the_hard_timeout_terminates_the_rank_and_kills_it_after_the_grace(detector):
    (terminate,) = detector.evaluate(sample(), now=HARD)
    assert terminate == TerminateRank("no progress for 30 s (hard_timeout 30 s)")
    assert detector.deadline == HARD + GRACE
    assert detector.evaluate(sample(alive_at=HARD), now=HARD + 1) == ()
    assert detector.evaluate(sample(), now=HARD + GRACE) == (KillRank("still there 2 s after SIGTERM"),)
    assert detector.deadline == HARD + GRACE + 1
    assert detector.evaluate(sample(), now=HARD + GRACE + 1) != ()


def test_a_rank_that_is_being_interrupted_asks_for_no_excuse(detector):
    """It is out of its round, whatever its peers do; until then, as in a long import, it shows signs of life."""
    for now in range(int(HARD)):
        assert detector.evaluate(sample(alive_at=float(now), interrupting=True), now=float(now)) == ()
        assert detector.deadline == HARD
    assert isinstance(detector.evaluate(sample(alive_at=HARD, interrupting=True), now=HARD)[0], TerminateRank)


def test_the_hard_timeout_counts_from_the_last_module_of_an_import_that_the_interruption_waits_for(detector):
    importing = {"interrupting": True, "noticed": True, "imported_at": HARD - 1}
    assert detector.evaluate(sample(interrupting=True, alive_at=1.0), now=1.0) == ()
    assert detector.evaluate(sample(alive_at=HARD + 1, **importing), now=HARD + 1) == ()
    assert detector.deadline == 2 * HARD - 1
    assert isinstance(detector.evaluate(sample(alive_at=2 * HARD, **importing), now=2 * HARD)[0], TerminateRank)


def test_a_rank_that_ignores_the_interruption_is_terminated(detector):
    moving = {"interrupting": True, "noticed": True}
    assert detector.evaluate(sample(alive_at=5.0, **moving), now=5.0) == ()
    assert detector.evaluate(sample(alive_at=6.0, **moving), now=6.0) == ()
    assert detector.deadline <= 5.0 + HARD
    (terminate,) = detector.evaluate(sample(alive_at=5.0 + HARD, **moving), now=5.0 + HARD)
    assert isinstance(terminate, TerminateRank)


def test_a_main_thread_that_ignores_signals_after_its_round_is_terminated(detector):
    assert detector.evaluate(sample(alive_at=5.0, out_by=7.0), now=6.0) == ()
    assert detector.deadline == 7.0
    ended = detector.evaluate(sample(alive_at=5.0, out_by=7.0), now=7.0)
    assert isinstance(ended[0], TerminateRank)
    assert "the round is over" in ended[0].reason


def test_the_bound_does_not_apply_after_the_function(detector):
    assert detector.evaluate(sample(alive_at=5.0, out_by=7.0, stage=Stage.UNWINDING), now=7.0) == ()


STEP = Limit(LimitKind.SECTION, since=2.0, timeout=3.0, section="step")


def test_a_limit_of_the_rank_is_reported_when_it_expires_before_the_soft_timeout(detector):
    assert detector.evaluate(sample(limit=STEP), now=4.0) == ()
    assert detector.deadline == 5.0
    (timeout,) = blamed(detector, now=5.0, limit=STEP)
    assert timeout == SoftTimeout("section 'step' open for 3 s (timeout 3 s)")


def test_the_soft_timeout_is_reported_when_it_expires_before_the_limit(detector):
    late = Limit(LimitKind.SECTION, since=2.0, timeout=100.0, section="step")
    assert blamed(detector, limit=late)[0].reason.startswith("no progress")


def test_a_rank_with_an_expired_limit_is_excused_while_a_peer_makes_progress(detector):
    now = STEP.deadline
    while detector.evaluate(sample(alive_at=now, limit=STEP), now=now) == (QueryPeers(),):
        if not detector.answered(Excuse.PEER_BEHIND, now=now):
            break
        detector.evaluate(sample(alive_at=now, limit=STEP), now=now)
        assert detector.deadline == now + STEP.timeout
        now = detector.deadline
    assert now >= STEP.deadline + HARD
    assert isinstance(detector.evaluate(sample(alive_at=now, limit=STEP), now=now)[0], SoftTimeout)


def test_an_excuse_from_one_limit_does_not_put_off_another_one(detector):
    assert detector.evaluate(sample(), now=SOFT) == (QueryPeers(),)
    detector.answered(Excuse.PEER_BEHIND, now=SOFT)
    late = Limit(LimitKind.SECTION, since=9.0, timeout=3.0, section="step")
    assert detector.evaluate(sample(limit=late), now=12.0) == ()
    assert detector.deadline == SOFT + late.timeout < 2 * SOFT


def test_the_peers_are_asked_anew_about_the_next_hang(detector):
    assert detector.evaluate(sample(), now=SOFT) == (QueryPeers(),)
    detector.answered(None, now=SOFT)
    assert detector.evaluate(sample(alive_at=SOFT), now=SOFT) == ()
    assert detector.evaluate(sample(alive_at=SOFT), now=2 * SOFT) == (QueryPeers(),)


def test_it_looks_again_within_its_interval_and_before_a_limit_can_expire_that_comes_up_later():
    detector = HangDetector(CallRules(SOFT, HARD, GRACE, interval=2.0))
    detector.evaluate(sample(), now=1.0)
    assert detector.deadline == 3.0
    detector.evaluate(sample(max_sample_interval=0.5), now=2.0)
    assert detector.deadline == 2.5


def test_an_excuse_stays_a_sign_of_life_when_the_rank_moves(detector):
    late = Limit(LimitKind.SECTION, since=2.0, timeout=20.0, section="step")
    assert detector.evaluate(sample(limit=late), now=SOFT) == (QueryPeers(),)
    assert detector.answered(Excuse.PEER_BEHIND, now=SOFT)
    for now in (15.0, late.deadline, 25.0):
        assert detector.evaluate(sample(alive_at=now, limit=late), now=now) == ()
    assert detector.deadline == SOFT + late.timeout
    assert detector.evaluate(sample(alive_at=30.0, limit=late), now=30.0) == (QueryPeers(),)
