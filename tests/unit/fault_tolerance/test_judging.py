"""A turn of a rank monitor: what it asks for, and in which order."""

from nvrx_core.fault_tolerance.judging import turn
from nvrx_core.fault_tolerance.policy import MonitorPolicy
from nvrx_core.progress.limits import RankSample

TIMEOUT = 5.0


class Rank:
    """A rank with its last heartbeat `silence` seconds before 100 s; notes what is asked for."""

    def __init__(self, silence, *, excused):
        self.silence, self.excused, self.asked = silence, excused, []

    def sample(self):
        self.asked.append("sample")
        return RankSample(attached_at=0.0, heartbeat_at=100.0 - self.silence, heartbeat_timeout=TIMEOUT)

    async def is_excused(self, query):
        self.asked.append("is_excused")
        return self.excused

    def terminate(self, action):
        self.asked.append("terminate")

    def kill(self, action):
        self.asked.append("kill")


def take_turn(policy, *, silence, excused=False, now=100.0):
    """Carry out a turn; returns what it has asked for."""
    rank = Rank(silence, excused=excused)
    try:
        turn(policy, rank, lambda: now).send(None)
    except StopIteration:
        return rank.asked


def seen_policy():
    policy = MonitorPolicy(1.0, 2.0)
    assert take_turn(policy, silence=0.0) == ["sample"]
    return policy


def test_a_rank_in_time_is_sampled_once():
    assert take_turn(seen_policy(), silence=TIMEOUT / 2) == ["sample"]


def test_an_overdue_rank_is_ended_by_a_new_sample_after_the_others_were_asked():
    assert take_turn(seen_policy(), silence=TIMEOUT + 1) == ["sample", "is_excused", "sample", "terminate"]


def test_an_excused_rank_is_left_alone():
    policy = seen_policy()
    assert take_turn(policy, silence=TIMEOUT + 1, excused=True) == ["sample", "is_excused", "sample"]
    assert policy.deadline > 100.0


def test_a_rank_that_outlives_its_termination_signal_is_killed():
    policy = seen_policy()
    assert take_turn(policy, silence=TIMEOUT + 1)[-1] == "terminate"
    assert take_turn(policy, silence=TIMEOUT + 1, now=100.0 + 10 * TIMEOUT)[-1] == "kill"
