"""Rank assignments: all termination sets of up to 10 ranks, and what the wrapper makes of a composition."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

import nvrx_core.rank_assignment as package
from nvrx_core.errors import RankAssignmentError, RankDiscarded, RestartAbort
from nvrx_core.inprocess.compose import Compose
from nvrx_core.rank_assignment.base import (
    AssignmentState,
    FrozenState,
    Mode,
    RankAssignment,
    RankAssignmentCtx,
    RankFilter,
)
from nvrx_core.rank_assignment.composition import assign, check, settle, sole_move
from nvrx_core.rank_assignment.filters import ActivateAllRanks, ActiveWorldSizeDivisibleBy, MaxActiveWorldSize
from nvrx_core.rank_assignment.moves import FillGaps, ShiftRanks
from nvrx_core.rank_assignment.tree import Layer, Tree
from tests.harness.ranks import NoStore

LARGEST = 10


class UserAssignment(RankAssignment):
    """A user's own: changes the context as it is told."""

    def __init__(self, change: Callable[[RankAssignmentCtx], object]):
        self.change = change

    def __call__(self, ctx):
        self.change(ctx)
        return ctx


class UserFilter(UserAssignment, RankFilter):
    """A user's own filter."""


def context(rank: int, world_size: int, terminated=(), **fields) -> RankAssignmentCtx:
    return RankAssignmentCtx(AssignmentState(rank, world_size, **fields), NoStore(), set(terminated))


def termination_sets(world_size: int) -> Iterator[tuple[int, ...]]:
    for size in range(world_size):
        yield from itertools.combinations(range(world_size), size)


def everyone(assignment: RankAssignment, world_size: int, terminated: tuple[int, ...]) -> dict[int, AssignmentState]:
    """What all ranks compute, by old rank; the terminated ones must be discarded."""
    states = {}
    for rank in range(world_size):
        ctx = context(rank, world_size, terminated)
        if rank in terminated:
            with pytest.raises(RankDiscarded):
                assign(assignment, ctx)
        else:
            states[rank] = assign(assignment, ctx).state
    return states


def shifted(world_size: int, terminated: tuple[int, ...]) -> dict[int, int]:
    return {old: new for new, old in enumerate(rank for rank in range(world_size) if rank not in terminated)}


def filled(world_size: int, terminated: tuple[int, ...]) -> dict[int, int]:
    """The drawing of FillGaps, read off slot by slot."""
    survivors = [rank for rank in range(world_size) if rank not in terminated]
    preserved, moved = [r for r in survivors if r < len(survivors)], [r for r in survivors if r >= len(survivors)]
    gaps = [slot for slot in range(len(survivors)) if slot in terminated]
    return {**{rank: rank for rank in preserved}, **dict(zip(moved, gaps, strict=True))}


FILTERS = [(), (ActivateAllRanks(),), (MaxActiveWorldSize(),), (MaxActiveWorldSize(2),), (MaxActiveWorldSize(5),)]
CHAINS = [*FILTERS, (MaxActiveWorldSize(3), MaxActiveWorldSize(7)), (MaxActiveWorldSize(7), MaxActiveWorldSize(3))]


@pytest.mark.parametrize(("move", "expected"), [(ShiftRanks, shifted), (FillGaps, filled)])
@pytest.mark.parametrize(
    "filters", CHAINS, ids=lambda chain: "-".join(f"{f.__class__.__name__}" for f in chain) or "none"
)
@pytest.mark.parametrize("world_size", range(1, LARGEST + 1))
def test_every_termination_set_gives_a_valid_world(move, expected, filters, world_size):
    limits = [f.max_active_world_size for f in filters if isinstance(f, MaxActiveWorldSize)]
    limit = min((n for n in limits if n is not None), default=LARGEST)
    assignment = Compose(*filters, move())
    check(assignment)
    for terminated in termination_sets(world_size):
        states = everyone(assignment, world_size, terminated)
        survivors, active = len(states), min(limit, len(states))
        assert {old: state.rank for old, state in states.items()} == expected(world_size, terminated)
        assert sorted(state.rank for state in states.values()) == list(range(survivors))
        for state in states.values():
            assert (state.world_size, state.active_world_size) == (survivors, active)
            is_active = state.rank < active
            assert state.mode is (Mode.ACTIVE if is_active else Mode.INACTIVE)
            assert state.active_rank == (state.rank if is_active else None)


def test_fill_gaps_does_what_its_drawing_shows():
    states = everyone(FillGaps(), 8, (1, 4, 5))
    slots = {state.rank: old for old, state in states.items()}
    assert [slots[slot] for slot in range(5)] == [0, 6, 2, 3, 7]


def test_shift_ranks_does_what_its_drawing_shows():
    states = everyone(ShiftRanks(), 8, (1, 4, 5))
    slots = {state.rank: old for old, state in states.items()}
    assert [slots[slot] for slot in range(5)] == [0, 2, 3, 6, 7]


@pytest.mark.parametrize("move", [ShiftRanks, FillGaps])
def test_a_move_changes_neither_the_active_ranks_nor_the_callers_set(move):
    terminated = {0}
    ctx = RankAssignmentCtx(
        AssignmentState(1, 3, active_rank=1, active_world_size=2, mode=Mode.ACTIVE), NoStore(), terminated
    )
    after = move()(ctx)
    assert after is ctx
    assert (after.state.active_rank, after.state.active_world_size, after.state.mode) == (1, 2, Mode.ACTIVE)
    assert (after.terminated_ranks, terminated) == (set(), {0})


@pytest.mark.parametrize("move", [ShiftRanks, FillGaps])
@pytest.mark.parametrize("terminated", [{-1}, {3}, {0, 7}])
def test_a_move_refuses_terminated_ranks_that_do_not_exist(move, terminated):
    with pytest.raises(RankAssignmentError, match="not all among the ranks 0 to 2") as caught:
        move()(context(1, 3, terminated))
    assert (caught.value.rank, caught.value.world_size) == (1, 3)


def test_a_discarded_ranks_error_lists_the_terminated_ranks():
    with pytest.raises(RankDiscarded, match=r"rank 1 is among the terminated ranks \[1, 2\]") as caught:
        ShiftRanks()(context(1, 4, {2, 1}))
    assert (caught.value.rank, caught.value.terminated) == (1, (1, 2))


def test_a_round_does_not_start_from_the_active_world_size_of_the_round_before():
    ctx = context(2, 4, active_world_size=1, mode=Mode.INACTIVE)
    assert assign(MaxActiveWorldSize(3), ctx).state.active_rank == 2


def test_filters_of_one_composition_start_from_each_other():
    ctx = MaxActiveWorldSize()(context(1, 4, active_world_size=1))
    assert (ctx.state.mode, ctx.state.active_world_size) == (Mode.INACTIVE, 1)


def test_a_reserve_rank_takes_over():
    assignment = Compose(MaxActiveWorldSize(3), ShiftRanks())
    ctx = assign(assignment, context(3, 4))
    assert ctx.state.mode is Mode.INACTIVE
    ctx.terminated_ranks = {1}
    assert assign(assignment, ctx).state == AssignmentState(
        2, 3, active_rank=2, active_world_size=3, initial_rank=3, initial_world_size=4, mode=Mode.ACTIVE
    )


def test_a_limit_below_zero_is_refused():
    with pytest.raises(ValueError, match=r"max_active_world_size=-1: must be at least 0"):
        MaxActiveWorldSize(-1)


def test_an_assignment_without_active_ranks_ends_the_job():
    with pytest.raises(RestartAbort, match="none of 4 ranks active"):
        assign(MaxActiveWorldSize(0), context(0, 4))


def test_a_filter_that_terminates_with_no_move_after_it_is_named():
    assignment = Compose(UserAssignment(lambda ctx: ctx.terminated_ranks.add(2)), ShiftRanks())
    with pytest.raises(
        RankAssignmentError, match=r"ranks \[2\] are terminated and no assignment removed them.*ShiftRanks"
    ):
        assign(assignment, context(0, 4, {1}))


def test_a_filter_that_terminates_before_a_move_is_obeyed():
    assignment = Compose(ActivateAllRanks(), ShiftRanks(), UserAssignment(lambda ctx: ctx.terminated_ranks.add(0)))
    assert everyone(assignment, 2, (0,))[1].rank == 0
    with pytest.raises(RankDiscarded):
        assign(assignment, context(0, 4))


def test_a_rank_that_an_assignment_terminates_is_discarded():
    with pytest.raises(RankDiscarded, match="rank 1 was terminated"):
        settle(context(1, 2, mode=Mode.TERMINATED))


IMPOSSIBLE = [
    {"mode": Mode.ACTIVE},
    {"mode": Mode.ACTIVE, "active_world_size": 2},
    {"mode": Mode.ACTIVE, "active_rank": 2, "active_world_size": 2},
    {"mode": Mode.ACTIVE, "active_rank": -1, "active_world_size": 2},
    {"mode": Mode.ACTIVE, "active_rank": 0, "active_world_size": 3},
    {"mode": Mode.INACTIVE, "active_rank": 0, "active_world_size": 1},
    {"mode": Mode.INACTIVE, "active_world_size": -1},
    {"rank": 2},
    {"rank": -1},
]


@pytest.mark.parametrize("fields", IMPOSSIBLE)
def test_an_impossible_answer_is_refused(fields):
    ctx = context(0, 2)
    for name, value in fields.items():
        setattr(ctx.state, name, value)
    with pytest.raises(RankAssignmentError, match="impossible state"):
        settle(ctx)


def test_an_assignment_that_forgets_its_return_is_named():
    class Forgetful(RankAssignment):
        def __call__(self, ctx):
            return None

    with pytest.raises(RankAssignmentError, match=r"returned None.*return its ctx"):
        assign(Forgetful(), context(0, 2))


@pytest.mark.parametrize("value", [(ShiftRanks(),), (Compose(ActivateAllRanks(), ShiftRanks()),)])
def test_the_error_for_a_tuple_mentions_the_comma(value):
    with pytest.raises(
        TypeError, match=r"rank_assignment=.*must be of type RankAssignment, not tuple.*remove the comma"
    ):
        check(value)


def test_an_object_that_is_no_rank_assignment_is_refused():
    with pytest.raises(TypeError, match=r"must be of type RankAssignment, not function; write .* an instance"):
        check(lambda ctx: ctx)


def test_a_move_after_a_filter_is_refused_at_the_start():
    nested = Compose(ShiftRanks(), Compose(UserAssignment(lambda ctx: None), MaxActiveWorldSize(2)))
    with pytest.raises(
        ValueError, match=r"ShiftRanks runs before MaxActiveWorldSize: list ShiftRanks after MaxActiveWorldSize"
    ):
        check(nested)


@pytest.mark.parametrize(
    "value",
    [
        ShiftRanks(),
        Compose(ActivateAllRanks(), MaxActiveWorldSize(2), FillGaps()),
        Compose(UserFilter(lambda ctx: None), ShiftRanks(), UserAssignment(lambda ctx: None)),
    ],
)
def test_a_sound_composition_passes(value):
    check(value)


def test_state_takes_its_initial_ranks_from_its_ranks():
    assert (AssignmentState(1, 4).initial_rank, AssignmentState(1, 4).initial_world_size) == (1, 4)
    state = AssignmentState(1, 4, initial_rank=3, initial_world_size=8)
    assert (state.initial_rank, state.initial_world_size) == (3, 8)


def test_advance_forgets_the_exception():
    state = AssignmentState(0, 1, fn_exception=ValueError())
    state.advance()
    assert (state.iteration, state.fn_exception) == (1, None)


def test_a_frozen_state_holds_the_same_exception_and_cannot_change():
    error = ValueError()
    frozen = AssignmentState(0, 1, fn_exception=error).freeze()
    assert frozen.fn_exception is error
    with pytest.raises(dataclasses.FrozenInstanceError):
        frozen.rank = 1


def test_state_and_frozen_state_have_the_same_fields():
    names = [[field.name for field in dataclasses.fields(kind)] for kind in (AssignmentState, FrozenState)]
    assert names[0] == names[1]


def test_a_state_copies_all_or_some_fields():
    source = AssignmentState(2, 3, 1, 2, 4, 5, 6, Mode.ACTIVE, ValueError())
    whole, part = AssignmentState(0, 1), AssignmentState(0, 1)
    whole.copy_from(source.freeze())
    assert whole == source
    part.copy_from(source, fields=["iteration", "mode"])
    assert part == AssignmentState(0, 1, iteration=6, mode=Mode.ACTIVE)


def test_a_state_refuses_to_copy_an_unknown_field():
    with pytest.raises(ValueError, match=r"fields=\['colour'\]: must be among .*'rank'"):
        AssignmentState(0, 1).copy_from(AssignmentState(0, 1), fields=["colour"])


def test_the_package_offers_its_names():
    older = {"FilterGroupedByKey": "FilterCountGroupedByKey"}
    assert all(getattr(package, name).__name__ == older.get(name, name) for name in package.__all__)
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match="no attribute 'Tree2'"):
        _ = package.Tree2


PLAIN = {
    "shift": ShiftRanks(),
    "fill": FillGaps(),
    "shift, some in reserve": Compose(MaxActiveWorldSize(2), ShiftRanks()),
    "fill, pairs": Compose(ActiveWorldSizeDivisibleBy(2), FillGaps(), FillGaps()),
}


@pytest.mark.parametrize("name", PLAIN)
def test_all_know_who_will_be_rank_0(name):
    assignment = PLAIN[name]
    for size in range(1, 8):
        for gone in itertools.chain.from_iterable(itertools.combinations(range(size), n) for n in range(size)):
            states = {rank: AssignmentState(rank, size) for rank in range(size) if rank not in gone}
            for state in states.values():
                with suppress(RestartAbort):
                    assign(assignment, RankAssignmentCtx(state, NoStore(), set(gone)))
            found = [rank for rank, state in states.items() if state.active_rank == 0]
            assert [sole_move(assignment).leader(size, gone)] == found or not found


@pytest.mark.parametrize("assignment", [Tree([Layer()]), ActivateAllRanks(), Compose(ShiftRanks(), UserAssignment(id))])
def test_an_unpredictable_assignment_has_no_sole_move(assignment):
    assert sole_move(assignment) is None


def test_nobody_is_rank_0_when_all_are_gone():
    assert ShiftRanks().leader(2, (0, 1)) is None


@pytest.mark.parametrize(
    "filters", [MaxActiveWorldSize(2), Compose(ActiveWorldSizeDivisibleBy(2), MaxActiveWorldSize(2))]
)
def test_a_filter_without_a_move_is_refused_with_the_line_to_write(filters):
    with pytest.raises(ValueError, match=r"which removes the ranks that are lost; .*, ShiftRanks\(\)\)"):
        check(filters)
