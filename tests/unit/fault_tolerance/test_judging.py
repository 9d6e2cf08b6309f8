"""A turn of a rank monitor: what it asks for, and in which order."""

from nvrx_core.fault_tolerance.judging import TakeSample, turn
from nvrx_core.fault_tolerance.policy import MonitorPolicy, QueryPeers, TerminateRank
from nvrx_core.progress.limits import RankSample

TIMEOUT = 5.0


def take_turn(policy, *, silence, excused=False):
    """Carry out a turn; returns what it has asked for."""
    asked, outcome = [], None
    flow = turn(policy, lambda: 100.0)
    while True:
        try:
            request = flow.send(outcome)
        except StopIteration:
            return asked
        asked.append(type(request))
        outcome = excused if isinstance(request, QueryPeers) else None
        if isinstance(request, TakeSample):
            outcome = RankSample(attached_at=0.0, heartbeat_at=100.0 - silence, heartbeat_timeout=TIMEOUT)


def seen_policy():
    policy = MonitorPolicy(1.0, 2.0)
    assert take_turn(policy, silence=0.0) == [TakeSample]
    return policy


def test_a_rank_in_time_is_sampled_once():
    assert take_turn(seen_policy(), silence=TIMEOUT / 2) == [TakeSample]


def test_an_overdue_rank_is_ended_by_a_new_sample_after_the_others_were_asked():
    assert take_turn(seen_policy(), silence=TIMEOUT + 1) == [TakeSample, QueryPeers, TakeSample, TerminateRank]


def test_an_excused_rank_is_left_alone():
    policy = seen_policy()
    assert take_turn(policy, silence=TIMEOUT + 1, excused=True) == [TakeSample, QueryPeers, TakeSample]
    assert policy.deadline > 100.0
