"""Which rounds outlive their deletion."""

from nvrx_core.inprocess.protocol.retention import rounds_read_late


def test_the_round_of_a_silent_loss_stays_and_the_one_that_the_silent_has_arrived_in():
    assert rounds_read_late([]) == frozenset()
    assert rounds_read_late([0, 4]) == {-1, 0, 3, 4}
