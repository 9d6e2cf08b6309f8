"""Who holds the others up: the rank that waits for nobody while others wait."""

import pytest
from hypothesis import given, strategies as st

from nvrx_core.fault.blame import RankProgress, behind


def ranks(*progress):
    return dict(enumerate(progress))


def begun(collectives, **more):
    return RankProgress(rendezvous=2, collectives=collectives, **more)


def test_the_rank_that_has_begun_fewer_collectives_is_behind():
    assert behind(ranks(begun(9), begun(8), begun(9)), {0, 1, 2}) == {1}


def test_a_running_rank_that_others_wait_for_is_behind():
    assert behind(ranks(begun(9), begun(8), begun(9)), {0, 2}) == {1}


def test_a_slow_rank_is_not_blamed_for_a_hung_one():
    assert behind(ranks(begun(9), begun(8), begun(8)), {0, 1}) == {1}


def test_the_rank_that_has_begun_fewer_collectives_of_a_group_is_behind():
    """Rank 0 waits for rank 1 in group 7, rank 1 for rank 2 in group 8; rank 3 is a member of neither."""
    chain = [[(7, 5)], [(7, 4), (8, 3)], [(8, 2)], [(9, 0)]]
    assert behind(ranks(*(begun(9, groups=tuple(groups)) for groups in chain)), {0, 1, 2}) == {2}


def test_counts_of_different_groups_say_nothing():
    assert behind(ranks(begun(9, groups=((7, 5),)), begun(9, groups=((8, 1),))), set()) == set()


def test_counts_that_differ_by_far_say_nothing():
    """As those of gloo, for the stages of a pipeline that send each other messages."""
    assert behind(ranks(begun(9, groups=((7, 500),)), begun(9, groups=((7, 400),))), set()) == set()


def test_ranks_ahead_of_each_other_in_different_groups_are_not_blamed():
    both = begun(9, groups=((7, 5), (8, 1))), begun(9, groups=((7, 4), (8, 2)))
    assert behind(ranks(*both), {0, 1}) == set()


def test_a_rank_that_others_wait_for_in_a_rendezvous_is_behind():
    inside, elsewhere = RankProgress(3, inside=1), RankProgress(2)
    assert behind(ranks(inside, elsewhere, inside), {0, 1, 2}) == {1}


def test_a_rendezvous_of_a_subset_is_no_evidence():
    assert behind(ranks(RankProgress(5, collectives=8), RankProgress(2, collectives=9)), {0, 1}) == {0}


def test_ranks_that_wait_for_each_other_are_not_blamed():
    assert behind(ranks(RankProgress(5, 1, 8), RankProgress(2, 0, 9)), {0, 1}) == set()


def test_stalled_ranks_are_blamed_if_no_rank_waits():
    assert behind(ranks(begun(9), begun(9), begun(9)), {1, 2}) == {1, 2}


def test_the_lowest_step_breaks_the_tie():
    assert behind(ranks(begun(9, step=7), begun(9, step=6)), {0, 1}) == {1}
    assert behind(ranks(begun(9, step=7), begun(9, step=6), begun(9, step=3)), {0, 1}) == {1}


@pytest.mark.parametrize("stalled", [set(), {0, 1}])
def test_no_rank_is_behind_if_all_have_equal_progress(stalled):
    assert behind(ranks(begun(9), begun(9)), stalled) == set()


def test_no_rank_is_behind_without_ranks():
    assert behind({}, {0}) == set()


COUNTS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=3).map(tuple)
PROGRESS = st.builds(RankProgress, st.integers(0, 2), st.integers(0, 1), st.integers(0, 2), st.integers(0, 2), COUNTS)


@given(st.dictionaries(st.integers(0, 5), PROGRESS), st.sets(st.integers(0, 5)))
def test_never_all_are_behind_and_never_one_that_waits_for_a_collective(progress, stalled):
    found = behind(progress, stalled)
    assert found < progress.keys() or not progress
    least = min((each.collectives for each in progress.values()), default=0)
    waits = {rank for rank, each in progress.items() if each.collectives > least}
    others = any(each.inside or each.groups for each in progress.values())
    assert not found & waits or others


@given(PROGRESS)
def test_progress_survives_the_wire(progress):
    assert RankProgress.of(progress.values()) == progress


@pytest.mark.parametrize("values", [[], [1, 2], [1, 2, 3, 4, 5]])
def test_progress_of_another_length_is_refused(values):
    with pytest.raises(ValueError, match="not a rank's progress"):
        RankProgress.of(values)
