"""What a rank tells with its arrival: an endpoint, if the decision can tell who is the leader, and a passed vote."""

import sys
from types import SimpleNamespace

import pytest

from nvrx_core.fault.blame import RankProgress
from nvrx_core.flow import run
from nvrx_core.inprocess.call.handles import PassedVotes
from nvrx_core.inprocess.call.parameters import Parameters
from nvrx_core.inprocess.call.rank_status import ArrivalReport
from nvrx_core.inprocess.compose import Compose
from nvrx_core.inprocess.protocol.decision import ArrivalStatus
from nvrx_core.inprocess.state import State
from nvrx_core.progress.page import Page
from nvrx_core.rank_assignment.base import RankAssignment
from nvrx_core.rank_assignment.filters import MaxActiveWorldSize
from nvrx_core.rank_assignment.moves import FillGaps, ShiftRanks


class Renumbers(RankAssignment):
    """An assignment of a user's, which may give any rank to anybody."""

    def __call__(self, ctx):
        return ctx


@pytest.fixture
def page():
    page = Page(2)
    yield page
    page.close()


def arrival(page, status=ArrivalStatus.ALIVE, votes=None, **given):
    report = ArrivalReport(
        State(rank=1, world_size=2), page, SimpleNamespace(keys=()),
        sample=SimpleNamespace(progress=RankProgress(), stalled=False),
        connections=SimpleNamespace(offer_rendezvous=lambda: "host:1"), parameters=Parameters(**given),
        votes=votes or PassedVotes(),
    )  # fmt: skip

    async def describe():
        return await report.describe_arrival(status, None)

    return run(describe())


@pytest.mark.parametrize(("assignment", "fills"), [
    (ShiftRanks(), False), (FillGaps(), True), (Compose(MaxActiveWorldSize(1), FillGaps()), True),
])  # fmt: skip
def test_a_rank_offers_where_it_would_host(page, assignment, fills):
    found = arrival(page, rank_assignment=assignment)
    assert (found.endpoint, found.fills_gaps) == ("host:1", fills)


@pytest.mark.parametrize("given", [
    {"rank_assignment": Compose(Renumbers(), ShiftRanks())}, {"rank_filter": MaxActiveWorldSize(1)},
])  # fmt: skip
def test_where_nobody_can_tell_the_leader_a_rank_offers_nothing(page, given):
    assert arrival(page, **given).endpoint == ""


def test_a_rank_that_leaves_offers_nothing(page):
    assert arrival(page, ArrivalStatus.LEAVING).endpoint == ""


class Training:
    """A live state that has passed a vote."""

    def __init__(self, vote=(0, 7)):
        self.vote = vote

    def passed_vote(self):
        return self.vote


def told(page, votes):
    found = arrival(page, votes=votes)
    assert ("vote" in found.encode()) == bool(found.vote)
    return found.vote


def test_a_rank_tells_which_vote_its_live_state_has_passed(page):
    votes, training = PassedVotes(), Training()
    assert told(page, votes) == ()
    votes.register(training)
    assert told(page, votes) == (0, 7)
    assert arrival(page, ArrivalStatus.LEAVING, votes).vote == ()
    training.vote = ()
    assert told(page, votes) == ()


def test_what_the_others_tell_is_of_the_live_state_that_this_rank_has_told_of(page):
    votes, training = PassedVotes(), Training()
    votes.register(training)
    told(page, votes)
    votes.decided((0, 8))
    assert votes.newest(training) == ((0, 8), True)
    assert votes.newest(Training()) == ((0, 8), False)


def test_a_rank_without_a_live_state_has_told_of_none(page):
    votes = PassedVotes()
    told(page, votes)
    votes.decided((0, 8))
    assert votes.newest(Training()) == ((0, 8), False)


def test_a_rank_with_two_live_states_tells_of_none_until_one_is_released(page):
    votes, one, other = PassedVotes(), Training(), Training((0, 9))
    votes.register(one)
    votes.register(other)
    assert told(page, votes) == ()
    assert arrival(page, votes=votes).several
    votes.decided((0, 8))
    assert [votes.newest(each) for each in (one, other)] == [((0, 8), False)] * 2
    del one
    assert told(page, votes) == (0, 9)
    assert not arrival(page, votes=votes).several


class Loop:
    """A loop of a user's, with a live state that only notes where it commits, and an exception in a chosen place."""

    def __init__(self, place):
        self.votes, self.place = PassedVotes(), place

    def at(self, place):
        if place == self.place:
            raise ValueError(place)

    def commit(self):
        self.at("in the commit")
        self.votes.committed(sys._getframe(1))

    def run(self):
        self.at("before the first commit")
        for _ in range(2):
            self.epoch()
            self.at("after an epoch")
        self.at("after the loop")

    def epoch(self):
        self.at("an epoch begins")
        for number in range(2):
            self.at(f"pass {number} begins")
            self.commit()
            self.at(f"pass {number} ends")

    def fails_behind(self):
        try:
            self.run()
        except ValueError as error:
            return self.votes.follows_commit(error.__traceback__)


@pytest.mark.parametrize(("place", "behind"), [
    ("before the first commit", False), ("an epoch begins", False), ("pass 0 begins", False), ("pass 1 begins", False),
    ("in the commit", False), ("pass 0 ends", True), ("pass 1 ends", True), ("after an epoch", True),
    ("after the loop", True),
])  # fmt: skip
def test_what_fails_behind_a_commit_is_told_from_what_fails_before_the_next_one(place, behind):
    assert Loop(place).fails_behind() is behind


def test_a_step_of_an_earlier_iteration_is_not_what_a_failure_follows():
    loop = Loop("pass 1 ends")
    loop.votes.committed(sys._getframe(0))
    loop.votes.decided(())
    assert not loop.votes.follows_commit(None)
    assert loop.votes._committed_at == {}
