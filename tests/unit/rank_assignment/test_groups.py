"""Groups that stand or fall together: the filter, the keys of the ranks, and how they come to all others."""

import functools
import itertools
import threading
from collections import Counter
from datetime import timedelta

import pytest
from hypothesis import given, strategies as st

from nvrx_core.errors import RankAssignmentError, RankDiscarded, RestartAbort
from nvrx_core.inprocess.compose import Compose
from nvrx_core.rank_assignment import (
    ActivateAllRanks,
    ActiveWorldSizeDivisibleBy,
    AssignmentState,
    FillGaps,
    FilterCountGroupedByKey,
    FilterGroupedByKey,
    MaxActiveWorldSize,
    RankAssignment,
    RankAssignmentCtx,
    RankFilter,
    ShiftRanks,
    Snapshot,
)
from nvrx_core.rank_assignment.composition import assign, check, declare, snapshot
from nvrx_core.rank_assignment.keys import KeyFunction
from nvrx_core.rank_assignment.snapshot import columns_of, spread
from tests.harness.ranks import NoStore, Ranks

FROZEN = AssignmentState(5, 8, initial_rank=6).freeze()


def whole(count):
    return count == 8


def pairs(condition, move=ShiftRanks):
    return Compose(move(), FilterCountGroupedByKey(lambda state: state.initial_rank // 2, condition))


# The filter


def test_the_filter_does_what_its_drawing_shows():
    ranks = Ranks(lambda: pairs(lambda count: count == 2), 8)
    ranks.round()
    assert {member: state.rank for member, state in ranks.round(1, 4, 5).items()} == {2: 0, 3: 1, 6: 2, 7: 3}
    assert list(ranks.discarded) == [0]


@given(groups=st.lists(st.integers(0, 3), min_size=2, max_size=12), data=st.data())
def test_every_remaining_rank_is_in_a_group_that_meets_the_condition(groups, data):
    least = data.draw(st.integers(1, 3))
    move = data.draw(st.sampled_from([ShiftRanks, FillGaps]))
    deaths = data.draw(st.lists(st.sets(st.integers(0, len(groups) - 1)), max_size=4))

    def make():
        return Compose(move(), FilterCountGroupedByKey(lambda s: groups[s.initial_rank], lambda count: count >= least))

    ranks, living = Ranks(make, len(groups)), set(range(len(groups)))
    for dead in [set(), *deaths]:
        gone = dead & set(ranks.states)
        living -= dead
        counts = Counter(groups[member] for member in living)
        living = {member for member in living if counts[groups[member]] >= least}
        if not living:
            if set(ranks.states) - gone - set(ranks.discarded):
                with pytest.raises(RestartAbort, match="leaves no rank"):
                    ranks.round(*gone)
            return
        assert set(ranks.round(*gone)) == living


def test_two_filters_count_who_the_first_one_left_and_moves_take_the_keys_along():
    def make():
        hosts = FilterCountGroupedByKey(lambda s: s.initial_rank // 2, lambda count: count == 2)
        racks = FilterCountGroupedByKey(lambda s: s.initial_rank // 4, lambda count: count == 4)
        return Compose(ShiftRanks(), racks, FillGaps(), hosts)

    ranks = Ranks(make, 12)
    ranks.round()
    assert {member: state.rank for member, state in ranks.round(1).items()} == {
        4: 2, 5: 3, 6: 4, 7: 5, 8: 6, 9: 7, 10: 0, 11: 1,
    }  # fmt: skip
    assert ranks.round(7).keys() == {8, 9, 10, 11}


def test_no_group_left_ends_the_job():
    ranks = Ranks(lambda: pairs(lambda count: count == 2), 4)
    ranks.round()
    with pytest.raises(RestartAbort, match=r"FilterCountGroupedByKey leaves no rank.*'0': 1.*'1': 1"):
        ranks.round(0, 3)


def test_a_filter_leaves_the_callers_set_alone():
    terminated, (keys,) = {0}, columns_of([("a",), ("b",), ("b",)])
    stage = FilterCountGroupedByKey("", lambda count: count == 2)
    ctx = RankAssignmentCtx(
        AssignmentState(2, 4), NoStore(), terminated, Snapshot(0, {stage: (spread(keys, 4, terminated),)})
    )
    assert (stage(ctx).terminated_ranks, terminated) == ({0, 1}, {0})


def test_the_older_name_is_an_alias():
    assert FilterGroupedByKey is FilterCountGroupedByKey


# The compositions that the documents of nvidia-resiliency-ext print


def test_the_documented_composition():
    def make():
        return Compose(
            ShiftRanks(),
            FilterGroupedByKey(
                key_or_fn=lambda rank, world_size: f"host-{rank // 8}",
                condition=lambda count: count == 8,
            ),
        )

    ranks = Ranks(make, 24)
    ranks.round()
    states = ranks.round(9)
    assert set(states) == {*range(8), *range(16, 24)}
    assert {state.active_world_size for state in states.values()} == {16}
    assert [states[member].rank for member in range(16, 24)] == list(range(8, 16))


def test_the_documented_group():
    def make():
        return Compose(
            ActivateAllRanks(),
            ShiftRanks(),
            FilterCountGroupedByKey(key_or_fn=lambda state: state.rank // 8, condition=lambda count: count == 8),
        )

    ranks = Ranks(make, 32)
    assert len(ranks.round()) == 32
    assert len(ranks.round(3)) == 24
    assert set(ranks.round(12, 30)) == set(range(16, 24))


@pytest.mark.parametrize(("m", "n"), [(4, 10), (1, 3), (3, 100), (8, 8)])
def test_the_documented_reserve(m, n):
    ranks = Ranks(lambda: Compose(ActiveWorldSizeDivisibleBy(m), MaxActiveWorldSize(n), ShiftRanks()), 12)
    for living, dead in [(12, ()), (11, (0,)), (9, (4, 7))]:
        states = ranks.round(*dead)
        assert len(states) == living
        assert {state.active_world_size for state in states.values()} == {min(living, n) // m * m}


def test_active_world_sizes_are_divisible_or_the_job_ends():
    ranks = Ranks(lambda: Compose(ActiveWorldSizeDivisibleBy(4), ShiftRanks()), 9)
    assert {state.active_world_size for state in ranks.round().values()} == {8}
    assert {state.active_world_size for state in ranks.round(0).values()} == {8}
    assert {state.active_world_size for state in ranks.round(1).values()} == {4}
    with pytest.raises(RestartAbort, match="none of 3 ranks active"):
        ranks.round(2, 3, 4, 5)
    with pytest.raises(ValueError, match="divisor=0: must be at least 1"):
        ActiveWorldSizeDivisibleBy(0)


def test_a_filter_that_nothing_follows_is_refused_at_the_start():
    for alone in (
        FilterCountGroupedByKey("", bool),
        Compose(FilterCountGroupedByKey("", bool), ShiftRanks()),
        Compose(ActivateAllRanks(), FilterCountGroupedByKey("", bool)),
    ):
        with pytest.raises(ValueError, match=r"ShiftRanks or FillGaps runs after FilterCountGroupedByKey"):
            check(alone)


# Keys


class Both:
    """Can be called with one argument and with two."""

    def __call__(self, state, world_size=None):
        return (type(state).__name__, world_size)


@pytest.mark.parametrize(
    ("key_or_fn", "key"),
    [
        ("rack", "rack"),
        (lambda state: state.rank // 2, "2"),
        (lambda rank, world_size: (rank, world_size), "(5, 8)"),
        (lambda *arguments: len(arguments), "1"),
        (Both(), "('FrozenState', None)"),
        (lambda rank, world_size, *, base=10: rank + base, "15"),
        (functools.partial(lambda a, rank, size: a + rank, 1), "6"),
        (lambda state: None, "None"),
        (type, str(type(FROZEN))),
        (7, "7"),
        (("rack", 7), "('rack', 7)"),
    ],
)
def test_a_key_is_a_constant_or_the_result_of_a_function(key_or_fn, key):
    assert KeyFunction(key_or_fn)(FROZEN) == key


@pytest.mark.parametrize("function", [lambda: "", lambda a, b, c: ""])
def test_a_function_of_no_or_three_arguments_is_refused(function):
    with pytest.raises(ValueError, match=r"key_or_fn=.*callable as f\(state\) or f\(rank, world_size\)"):
        KeyFunction(function)


def test_other_parameters_are_refused():
    with pytest.raises(TypeError, match=r"key_or_fn=\[7\]: must be of type Hashable or Callable"):
        FilterCountGroupedByKey([7], whole)
    with pytest.raises(TypeError, match="condition=8: must be of type Callable"):
        FilterCountGroupedByKey("", 8)
    with pytest.raises(TypeError, match="timeout=60: must be of type timedelta"):
        FilterCountGroupedByKey("", whole, timeout=60)
    with pytest.raises(ValueError, match=r"timeout=.*must be positive"):
        FilterCountGroupedByKey("", whole, timeout=timedelta(0))


def test_a_key_that_is_not_hashable_is_refused():
    with pytest.raises(TypeError, match="must be of type Hashable, not list; write return str"):
        KeyFunction(lambda state: [state.rank])(FROZEN)


def test_keys_are_declared_in_the_order_in_which_the_stages_run():
    first, second = FilterCountGroupedByKey("first", bool), FilterCountGroupedByKey("second", bool)
    assert declare(Compose(ShiftRanks(), second, ShiftRanks(), first), AssignmentState(0, 1), 3) == ("first", "second")
    assert declare(Compose(ShiftRanks(), first, ShiftRanks(), first), AssignmentState(0, 1), 3) == ("first",)
    assert declare(Compose(ActivateAllRanks(), ShiftRanks()), AssignmentState(0, 1), 3) == ()


class Users(RankAssignment):
    """A user's own assignment: it reverses the ranks, and may call a filter by hand."""

    def __init__(self, stage=None):
        self.stage = stage

    def __call__(self, ctx):
        ctx.state.rank = ctx.state.world_size - 1 - ctx.state.rank
        ctx.terminated_ranks = {ctx.state.world_size - 1 - rank for rank in ctx.terminated_ranks}
        return self.stage(ctx) if self.stage else ctx


class UsersFilter(FilterCountGroupedByKey):
    """A user's own way to call a built-in stage."""

    def __call__(self, ctx):
        return super().__call__(ctx)


class WithInstances(Users):
    """A user's own class that looks like a composition and is none."""

    instances = (FilterCountGroupedByKey("", bool),)


def test_stages_after_a_users_class_declare_no_keys():
    stage = FilterCountGroupedByKey("key", bool)
    behind = [
        Compose(ShiftRanks(), stage, Users()),
        Compose(ShiftRanks(), stage, Users(), stage),
        Compose(Users(), UsersFilter("key", bool)),
        Compose(ShiftRanks(), stage, UsersFilter("key", bool)),
        WithInstances(),
        Users(stage),
    ]
    assert [declare(assignment, AssignmentState(0, 1), 0) for assignment in behind] == [()] * len(behind)
    assert declare(Compose(Users(), Compose(ShiftRanks(), stage)), AssignmentState(0, 1), 0) == ("key",)


def test_ranks_that_declare_different_keys_are_refused():
    assignment = Compose(ShiftRanks(), FilterCountGroupedByKey("", bool))
    for columns in ((), (((2, "a"),), ((2, "b"),))):
        with pytest.raises(RankAssignmentError, match="declare other keys than this one, which declares 1"):
            snapshot(assignment, AssignmentState(0, 2).freeze(), iteration=0, terminated=(), columns=columns)
    assert columns_of([("a",), ()]) == columns_of([]) == ()


@given(st.lists(st.none() | st.tuples(st.sampled_from("ab"), st.sampled_from("cd"))))
def test_columns_say_what_the_ranks_said(by_rank):
    vacant = {rank for rank, row in enumerate(by_rank) if row is None}
    columns = columns_of(row for row in by_rank if row is not None)
    assert all(earlier[1] != later[1] for column in columns for earlier, later in itertools.pairwise(column))
    keys = [spread(column, len(by_rank), vacant) for column in columns]
    assert [None if None in row else row for row in zip(*keys, strict=True)] == (by_rank if keys else [])


def test_a_column_of_another_world_is_refused():
    with pytest.raises(ValueError, match="3 keys for 3 ranks, of which 1 are vacant"):
        spread(((3, "a"),), 3, {1})


# Keys through the store


class Store:
    """A store that the threads of a test share."""

    def __init__(self):
        self.values, self.changed = {}, threading.Condition()

    def set(self, key, value, /):
        with self.changed:
            self.values[key] = value.encode()
            self.changed.notify_all()

    def get(self, key, /):
        return self.values[key]

    def add(self, key, amount, /):
        with self.changed:
            self.values[key] = self.values.get(key, 0) + amount
            return self.values[key]

    def wait(self, keys, timeout, /):
        with self.changed:
            if not self.changed.wait_for(lambda: self.values.keys() >= set(keys), timeout.total_seconds()):
                raise RuntimeError("the wait timed out")


def together(make, size, terminated=(), store=None):
    """What all ranks compute, each in a thread: a state or an error."""
    store, answers = store or Store(), {}

    def run(rank):
        try:
            answers[rank] = assign(make(), RankAssignmentCtx(AssignmentState(rank, size), store, set(terminated))).state
        except Exception as error:  # boundary: an answer like any other
            answers[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return answers


def two_of_each():
    return FilterCountGroupedByKey(lambda state: state.rank // 2, lambda count: count == 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Compose(ShiftRanks(), two_of_each(), Users()),
        lambda: Compose(ShiftRanks(), Users(two_of_each())),
        lambda: Compose(ShiftRanks(), two_of_each(), two_of_each(), Users()),
    ],
    ids=["behind a user's class", "called by a user's class", "two, one after the other"],
)
def test_keys_that_could_not_travel_ahead_go_through_the_store(make):
    answers = together(make, 6, terminated={4})
    assert {old: state.rank for old, state in answers.items() if old < 4} == {3: 0, 2: 1, 1: 2, 0: 3}
    assert all(isinstance(answers[old], RankDiscarded) for old in (4, 5))


def test_a_rank_that_does_not_send_its_key_in_time_is_an_error():
    stage = FilterCountGroupedByKey("", bool, timeout=timedelta(milliseconds=10))
    with pytest.raises(RankAssignmentError, match=r"not all of 2 ranks sent their keys within 0\.01 s"):
        assign(Compose(ShiftRanks(), Users(stage)), RankAssignmentCtx(AssignmentState(0, 2), Store(), set()))


def test_a_users_filter_does_not_hide_what_a_filter_terminates():
    class Quiet(RankFilter):
        def __call__(self, ctx):
            return ctx

    with pytest.raises(ValueError, match="runs after FilterCountGroupedByKey"):
        check(Compose(Quiet(), FilterCountGroupedByKey("", bool)))
    check(Compose(Users(), FilterCountGroupedByKey("", bool)))


def test_of_a_long_key_only_the_beginning_and_a_digest_travel():
    long = "rack-" * 1000
    keys = {KeyFunction(text)(FROZEN) for text in (long, f"{long}a", f"{long}\ud800")}
    assert len(keys) == 3
    assert all(len(key) == 64 and key.startswith("rack-rack-") for key in keys)
    assert KeyFunction(long)(FROZEN) in keys
    assert KeyFunction("x" * 64)(FROZEN) == "x" * 64
