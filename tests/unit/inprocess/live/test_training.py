"""What comes out of order is refused, and what a rank tells and finds is what it has; the rest is in `tests/sim`."""

from __future__ import annotations

import types
from dataclasses import replace

import pytest

from nvrx_core.errors import UsageError
from nvrx_core.inprocess.live.memory import (
    Holding,
    Incomplete,
    Mark,
    Memory,
    Recovery,
    Stamp,
    Transfer,
    recover,
)
from nvrx_core.inprocess.live.training import LiveTraining, StepRepeatedError


def holding(*, version=None, pending=None, passed=None, torn=False, shard=(), needs=(), width=0):
    return Holding(version, pending, passed, torn, shard, needs, width)


AT, NEXT = Stamp(0, 4), Stamp(0, 5)
AHEAD = holding(version=NEXT, pending=(NEXT, 0), passed=(NEXT, 0), width=2)
IN_VOTE = holding(version=AT, pending=(NEXT, 1), passed=(AT, 1), width=2)
SPARE = holding(shard=None)


@pytest.mark.parametrize("flow", ["commit", "start"])
def test_what_comes_before_resume_is_refused(flow):
    with pytest.raises(UsageError, match=r"before resume\(\)"):
        getattr(LiveTraining(), flow)(None, 0).send(None)


def test_in_the_first_iteration_nothing_is_in_memory():
    assert recover([SPARE, SPARE]) == Incomplete()


def test_who_was_interrupted_in_a_vote_that_another_has_passed_keeps_its_objects():
    assert recover([AHEAD, IN_VOTE]) == Recovery(NEXT, (0, 1), (), ())


def test_a_replacement_receives_parameters_and_the_local_state_of_the_lost_rank():
    assert recover([AHEAD, SPARE]) == Recovery(NEXT, (0,), (Transfer(0, 1), Transfer(0, 1, row=True)), ())


def test_local_state_that_nobody_has_is_fresh():
    assert recover([AHEAD, IN_VOTE, SPARE]) == Recovery(NEXT, (0, 1), (Transfer(0, 2),), (2,))


def test_a_rank_with_another_number_takes_its_own_row_of_the_vote():
    moved = holding(version=NEXT, pending=(NEXT, 1), passed=(NEXT, 1), width=2)
    assert recover([moved]) == Recovery(NEXT, (0,), (Transfer(0, 0, row=True),), ())


def test_a_shard_that_only_torn_ranks_have_is_missing():
    torn = holding(version=AT, pending=(NEXT, 1), passed=(NEXT, 1), torn=True, shard=(1, 2), needs=(1, 2))
    whole = holding(version=NEXT, pending=(NEXT, 0), passed=(NEXT, 0), shard=(0, 2), needs=(0, 2))
    assert recover([whole, torn]) == Incomplete(NEXT, ((1, 2),))


class Replacement:
    """The ports of rank 2, whose local state nobody has."""

    iteration, rank = 1, 2

    def shard_of(self, objects):
        return ()

    def shares(self, old, new):
        return old is new

    def width_of(self, rows):
        return 0

    async def exchange(self, mine):
        return [AHEAD, IN_VOTE, mine]

    async def receive(self, objects, source):
        assert source == 0

    async def capture(self, objects, step):
        return "fresh"

    async def vote(self, row, *, transfers=False):
        return ("one", "two", row)


class CutOff(Replacement):
    """The same; the source is lost during the transfer."""

    async def receive(self, objects, source):
        raise ConnectionError


@pytest.mark.parametrize("new", ["objects", "others"])
def test_objects_that_are_received_into_are_at_no_step_until_the_end(new):
    """As of a model that outlives the function: it is half overwritten when the source is lost."""
    training = LiveTraining()
    training.memory = Memory("objects", AT)
    with pytest.raises(ConnectionError):
        training.resume(CutOff(), new).send(None)
    assert training.memory.torn == (new == "objects")
    assert training.memory.version == AT


class Renumbered(Replacement):
    """The ports of rank 0, which has come to the newest vote as rank 1; it is interrupted in the vote that follows."""

    rank = 0

    async def exchange(self, mine):
        return [mine, AHEAD]

    async def adopt(self, old, new):
        pass

    async def receive_row(self, source):
        assert source == 1
        return "that of rank 0"

    async def restore(self, objects, row):
        assert row == "that of rank 0"

    async def capture(self, objects, step):
        return "that of rank 0"

    async def vote(self, row, *, transfers=False):
        raise ConnectionError


def test_a_local_state_that_was_received_under_another_number_is_kept():
    """The rank that has sent it may be lost before the next vote."""
    training = LiveTraining()
    training.memory = Memory("objects", AT, pending=Mark(NEXT, 1, "that of rank 1", due=False))
    with pytest.raises(ConnectionError):
        training.resume(Renumbered(), "new").send(None)
    assert training.memory.row_of(NEXT, 0) == "that of rank 0"


def test_fresh_local_state_is_left_as_it_is():
    training = LiveTraining()
    with pytest.raises(StopIteration) as end:
        training.resume(Replacement(), "objects").send(None)
    assert end.value.value == NEXT.step + 1
    assert training.memory.version == Stamp(1, NEXT.step)
    assert training.memory.passed.rows == ("one", "two", "fresh")


@pytest.mark.parametrize("step", [3, 4])
def test_a_step_that_is_not_greater_than_the_last_is_refused(step):
    """A rank that was interrupted in the second vote of a step would not do it; one may retry a pass once."""
    training = LiveTraining()
    training.memory = Memory("objects", AT)
    for repeats, kind in enumerate((StepRepeatedError, StepRepeatedError, UsageError)):
        with pytest.raises(kind, match=rf"commit\({step}\) after step 4"):
            training.commit(types.SimpleNamespace(repeats=repeats), step).send(None)


def test_who_has_lost_its_gradients_does_not_reach_the_step_of_its_vote():
    memory = Memory("objects", AT, Mark(NEXT, 1, "row", due=True))
    assert memory.holding((), (), 2).reaches(NEXT)
    assert not memory.cannot_advance().holding((), (), 2).reaches(NEXT)


def test_who_has_done_the_newest_step_goes_on_as_if_all_had_exchanged_what_they_hold():
    assert AHEAD.needs_nobody(NEXT, 0)
    assert recover([AHEAD, replace(AHEAD, pending=(NEXT, 1), passed=(NEXT, 1))]) == Recovery(NEXT, (0, 1), (), ())


def test_a_rank_with_another_number_needs_no_other_one_for_its_row():
    assert AHEAD.needs_nobody(NEXT, 1)
    assert not AHEAD.needs_nobody(NEXT, 2)


@pytest.mark.parametrize("mine", [
    SPARE, holding(version=AT, pending=(AT, 1), passed=(AT, 1), width=2), holding(version=NEXT, passed=(NEXT, 0)),
    IN_VOTE, replace(AHEAD, torn=True), replace(AHEAD, version=AT), replace(AHEAD, passed=(Stamp(0, 6), 0)),
    holding(version=NEXT, pending=(NEXT, 1), passed=(NEXT, 1), shard=(0, 2), needs=(1, 2)),
], ids=["a reserve", "it is behind", "it has no row", "it was interrupted in its vote", "it is torn",
    "it has not done the step", "it has passed another vote", "it needs another shard"])  # fmt: skip
def test_who_needs_another_rank_does_not_go_on_alone(mine):
    assert not mine.needs_nobody(NEXT, 1)


def test_who_does_the_step_of_a_vote_that_another_rank_has_passed_counts_as_having_passed_it():
    """The other one may be lost before the next vote."""
    in_vote = Memory("objects", AT, Mark(NEXT, 1, "row", due=True), Mark(AT, 1, "row", due=True))
    assert in_vote.complete(NEXT).passed == in_vote.pending
    assert in_vote.complete(AT).passed == in_vote.passed
    assert Memory("objects").complete(NEXT).passed is None


class Declining(Replacement):
    """The ports of a rank, of which another one declines the vote."""

    async def vote(self, row, *, transfers=False):
        return None

    def width_of(self, rows):
        return 0 if rows is None else len(rows)

    async def adopt(self, old, new):
        pass

    async def restore(self, objects, row):
        pass


@pytest.mark.parametrize("call", [
    lambda training: training.commit(Declining(), 5), lambda training: training.start(Declining(), 5),
    lambda training: training.resume(Declining(), "objects"),
], ids=["commit", "start", "resume"])  # fmt: skip
def test_a_vote_is_declined_at_the_beginning_of_a_resume_alone(call):
    training = LiveTraining()
    training.memory = Memory("objects", AT)
    with pytest.raises(RuntimeError, match="while another rank is at the beginning of its resume"):
        call(training).send(None)


VOTED = Mark(NEXT, 0, "zero", due=True, rows=("zero", "one", "two"))
INTERRUPTED = Mark(Stamp(0, 6), 0, "zero, later", due=True)


@pytest.mark.parametrize("knows", [True, False])
def test_ranks_exchange_what_they_hold_where_one_declines(knows):
    """A rank that has gone on alone until then has lost nothing by it."""

    class Ports(Declining):
        rank, declines = 0, True

        async def vote(self, row, *, transfers=False):
            assert (row is None) == (not knows and self.declines)
            declined, self.declines = self.declines, False
            return None if declined else ("zero", "one", "two")

        async def exchange(self, mine):
            assert mine == before.holding((), (), 3)
            return [mine, AHEAD]

    training = LiveTraining()
    training.memory = before = Memory("old", NEXT, INTERRUPTED, VOTED)
    with pytest.raises(StopIteration) as end:
        training.resume(Ports(), "new", NEXT, knows=knows).send(None)
    assert end.value.value == NEXT.step + 1
    assert training.memory.version == Stamp(1, NEXT.step)


class Cut(Declining):
    """The ports of a rank that a fault interrupts."""

    rank = 0

    def __init__(self, where):
        self.where = where

    async def vote(self, row, *, transfers=False):
        if self.where == "vote":
            raise ConnectionError
        return ("zero", "one", "two")

    async def restore(self, objects, row):
        raise ConnectionError


def interrupted(where):
    training = LiveTraining()
    training.memory = Memory("old", NEXT, INTERRUPTED, VOTED)
    with pytest.raises(ConnectionError):
        training.resume(Cut(where), "new", NEXT).send(None)
    return training.memory.holding((), (), 3)


def test_who_is_interrupted_in_the_vote_that_begins_a_branch_reaches_whatever_others_have_passed():
    found = interrupted("vote")
    assert [each for each in (AT, NEXT, INTERRUPTED.stamp, Stamp(1, 5)) if found.reaches(each)] == [
        NEXT, INTERRUPTED.stamp, Stamp(1, 5),
    ]  # fmt: skip


def test_who_is_interrupted_behind_that_vote_is_at_the_beginning_of_the_branch():
    found = interrupted("restore")
    assert found.needs_nobody(Stamp(1, 5), 0)
    assert not found.reaches(INTERRUPTED.stamp)


def test_a_vote_that_only_a_reserve_has_passed_does_not_count():
    """Who was interrupted in it has no local state for the rank that is new: both go on from the step before."""

    class Ports(Declining):
        rank, votes, sent = 0, 0, None

        def row_of(self, rows, rank):
            return rows[rank]

        async def vote(self, row, *, transfers=False):
            self.votes += 1
            return None if self.votes == 1 else (row, "one")

        async def exchange(self, mine):
            return [mine, SPARE]

        async def send(self, objects, to):
            assert objects == "old"

        async def send_row(self, row, to):
            self.sent = row, to

    training, ports = LiveTraining(), Ports()
    passed = Mark(AT, 1, "one", due=True, rows=("zero", "one"))
    training.memory = Memory("old", AT, Mark(NEXT, 1, "one, later", due=True), passed)
    with pytest.raises(StopIteration) as end:
        training.resume(ports, "new", NEXT).send(None)
    assert end.value.value == AT.step + 1
    assert ports.sent == ("one", 1)
