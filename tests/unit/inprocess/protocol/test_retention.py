"""Which rounds outlive their deletion."""

from nvrx_core.inprocess.protocol.decision import RoundDecision, kept_after_call, kept_in_call


def decision(*, lost=(), silent=()):
    return RoundDecision(iteration=4, lost=lost, terminated=(), cause=None, culprits=(), step=-1, silent=silent)


def test_the_round_of_a_silent_loss_stays_and_the_one_that_the_silent_has_arrived_in():
    silent = decision(lost=(1,), silent=(1,))
    assert kept_in_call(silent) == kept_after_call(silent) == {3, 4}


def test_the_round_in_which_a_member_leaves_stays_until_the_call_is_completed():
    left = decision(lost=(1,))
    assert (kept_in_call(left), kept_after_call(left)) == ({4}, frozenset())


def test_the_round_of_a_loss_stays_if_another_member_has_marked_the_lost_one_as_left():
    """It was silent, but has arrived by itself or by its monitor process, which waits for the decision."""
    lost = decision(lost=(1, 2))
    assert kept_after_call(lost, {2, 3}) == {4}
    assert kept_after_call(lost, {3}) == frozenset()
    assert kept_after_call(decision(lost=(1, 2), silent=(1,)), {1, 2}) == {3, 4}


def test_nobody_reads_a_round_late_in_which_nobody_is_lost():
    assert kept_in_call(decision()) == kept_after_call(decision()) == frozenset()
