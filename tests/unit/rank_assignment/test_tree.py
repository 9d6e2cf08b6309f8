"""Trees of failure domains: each rule by itself, whole clusters, any tree against a slow one written from the rules."""

import itertools
import warnings

import pytest
from hypothesis import given, settings, strategies as st

from nvrx_core.errors import RankAssignmentError, RankDiscarded, RestartAbort
from nvrx_core.inprocess.compose import Compose
from nvrx_core.rank_assignment import (
    AssignmentState,
    Layer,
    LayerFlag,
    Mode,
    RankAssignmentCtx,
    ShiftRanks,
    Snapshot,
    Tree,
)
from nvrx_core.rank_assignment.composition import assign, check, declare
from tests.benchmarks.tree import growth
from tests.harness.ranks import NoStore, Ranks
from tests.unit.rank_assignment.test_groups import together

RESERVE, BACKFILL, BOTH = LayerFlag.RESERVE, LayerFlag.BACKFILL, LayerFlag.RESERVE | LayerFlag.BACKFILL


def of(size):
    """Domains of so many consecutive ranks."""
    return lambda state: state.initial_rank // size


def job(size, *layers, world_size_filter=None):
    """A job that has begun."""
    ranks = Ranks(lambda: Tree(layers, world_size_filter), size)
    ranks.round()
    return ranks


def seats(ranks):
    """The initial ranks that are active, in the order of their active ranks."""
    return list(ranks.places().values())


# The rules, one by one


def test_a_tree_of_one_layer_shifts():
    ranks = job(4, Layer())
    assert seats(ranks) == [0, 1, 2, 3]
    ranks.round(1)
    assert seats(ranks) == [0, 2, 3]


def test_a_domain_with_too_few_ranks_is_terminated_as_a_whole():
    ranks = job(12, Layer(), Layer(min_ranks=3, key_or_fn=of(4)))
    ranks.round(5)
    assert seats(ranks) == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]
    ranks.round(6)
    assert seats(ranks) == [0, 1, 2, 3, 8, 9, 10, 11]
    assert set(ranks.discarded) == {4, 7}
    assert "rank 4 has no place: its domain '1' has fewer than 3 ranks" in str(ranks.discarded[4])
    ranks.round()
    assert set(ranks.states) == {0, 1, 2, 3, 8, 9, 10, 11}


def test_a_terminated_domain_may_take_the_one_above_with_it():
    ranks = job(16, Layer(), Layer(min_ranks=8, key_or_fn=of(8)), Layer(min_ranks=4, key_or_fn=of(4)))
    ranks.round(1)
    assert seats(ranks) == list(range(8, 16))
    assert "its domain '0' has fewer than 4" in str(ranks.discarded[0])
    assert "its domain '0' has fewer than 8" in str(ranks.discarded[7])


def test_a_domain_that_is_short_at_the_start_is_terminated():
    ranks = Ranks(lambda: Tree([Layer(), Layer(min_ranks=4, key_or_fn=of(4))]), 8)
    ranks.round(2)
    assert seats(ranks) == [4, 5, 6, 7]


def test_too_few_ranks_in_total_end_the_job():
    ranks = job(4, Layer(min_ranks=3))
    ranks.round(0)
    with pytest.raises(RestartAbort, match="Tree leaves no rank: fewer than min_ranks=3 are left"):
        ranks.round(1)


def test_the_last_one_to_become_inactive_replaces_a_lost_rank():
    ranks = job(8, Layer(max_ranks=5, flag=RESERVE))
    assert seats(ranks) == [0, 1, 2, 3, 4]
    ranks.round(1)
    assert seats(ranks) == [0, 7, 2, 3, 4]
    ranks.round(7, 3)
    assert seats(ranks) == [0, 6, 2, 5, 4]
    ranks.round(6)
    assert seats(ranks) == [0, 2, 5, 4]


def test_a_reserve_of_the_nearest_domain_comes_first():
    layers = Layer(flag=RESERVE), Layer(max_ranks=3, key_or_fn=of(4), flag=RESERVE)
    ranks = job(12, *layers)
    assert seats(ranks) == [0, 1, 2, 4, 5, 6, 8, 9, 10]
    ranks.round(5)
    assert seats(ranks) == [0, 1, 2, 4, 7, 6, 8, 9, 10], "its own domain's"
    ranks.round(6)
    assert seats(ranks) == [0, 1, 2, 4, 7, 11, 8, 9, 10], "the last one of the domain above"


def test_a_layer_without_the_flag_ends_the_search_for_a_reserve():
    ranks = job(8, Layer(flag=RESERVE), Layer(max_ranks=3, key_or_fn=of(4)))
    ranks.round(1)
    assert seats(ranks) == [0, 2, 4, 5, 6]
    ranks = job(8, Layer(), Layer(max_ranks=3, key_or_fn=of(4), flag=RESERVE))
    ranks.round(1, 2)
    assert seats(ranks) == [0, 3, 4, 5, 6]


def test_a_lost_reserve_changes_nothing():
    ranks = job(6, Layer(max_ranks=3, flag=RESERVE))
    ranks.round(5)
    assert seats(ranks) == [0, 1, 2]
    ranks.round(0)
    assert seats(ranks) == [4, 1, 2]


def test_the_highest_ranks_of_a_domain_fill_its_gaps():
    ranks = job(12, Layer(), Layer(key_or_fn=of(6), flag=BACKFILL))
    ranks.round(0, 2)
    assert seats(ranks) == [4, 1, 5, 3, 6, 7, 8, 9, 10, 11]
    ranks = job(12, Layer(flag=BACKFILL), Layer(key_or_fn=of(6), flag=BACKFILL))
    ranks.round(0, 2)
    assert seats(ranks) == [10, 1, 11, 3, 4, 5, 6, 7, 8, 9], "the highest domain up to which all layers have the flag"
    ranks = job(12, Layer(flag=BACKFILL), Layer(key_or_fn=of(6)))
    ranks.round(0, 2)
    assert seats(ranks) == [1, 3, 4, 5, 6, 7, 8, 9, 10, 11]


def test_a_domain_without_enough_ranks_to_backfill_closes_up():
    ranks = job(6, Layer(), Layer(key_or_fn=of(3), flag=BACKFILL))
    ranks.round(0, 1)
    assert seats(ranks) == [2, 3, 4, 5]
    ranks.round(2)
    assert seats(ranks) == [3, 4, 5]


def test_reserve_comes_before_backfill():
    ranks = job(8, Layer(max_ranks=6, flag=BOTH))
    ranks.round(0, 1, 2)
    assert seats(ranks) == [7, 6, 5, 3, 4]


def test_the_filter_makes_the_last_ones_inactive_and_they_are_the_first_to_come_back():
    ranks = job(10, Layer(flag=RESERVE), world_size_filter=lambda size: size // 4 * 4)
    assert seats(ranks) == [0, 1, 2, 3, 4, 5, 6, 7]
    ranks.round(0)
    assert seats(ranks) == [9, 1, 2, 3, 4, 5, 6, 7]
    ranks.round(1, 2)
    assert seats(ranks) == [9, 8, 3, 4]
    ranks.round(4)
    assert seats(ranks) == [9, 8, 3, 7]


@pytest.mark.parametrize("size", [-1, 5])
def test_a_filter_that_answers_out_of_range_is_refused(size):
    with pytest.raises(RankAssignmentError, match=rf"world_size_filter\(4\) is {size}, not between 0 and 4"):
        job(4, Layer(), world_size_filter=lambda _: size)


def test_a_filter_that_leaves_no_active_rank_ends_the_job():
    with pytest.raises(RestartAbort, match="none of 4 ranks active"):
        job(4, Layer(), world_size_filter=lambda _: 0)


# Clusters


def test_two_gb200_racks_with_nodes_in_reserve():
    """Racks of 18 nodes of 4 ranks; 16 nodes of each run, 2 wait; a node that loses a rank is replaced as a whole."""
    layers = (
        Layer(flag=RESERVE),
        Layer(max_ranks=64, key_or_fn=of(72), flag=RESERVE),
        Layer(min_ranks=4, key_or_fn=of(4), flag=RESERVE),
    )
    ranks = job(144, *layers)
    assert seats(ranks) == [*range(64), *range(72, 136)]
    ranks.round(9)
    assert seats(ranks) == [*range(8), 71, 70, 69, 68, *range(12, 64), *range(72, 136)], "from its own rack"
    ranks.round(16, 20)
    assert seats(ranks)[16:24] == [67, 66, 65, 64, 143, 142, 141, 140], "then from the other one"
    assert len(seats(ranks)) == 128
    ranks.round(24, 28)
    assert seats(ranks)[24:32] == [139, 138, 137, 136, *range(32, 36)]
    assert len(seats(ranks)) == 124


def test_a_pod_keeps_model_parallel_groups_of_8_together():
    layers = Layer(min_ranks=16), Layer(min_ranks=8, key_or_fn=of(8), flag=BACKFILL)
    ranks = job(32, *layers, world_size_filter=lambda size: size // 16 * 16)
    ranks.round(3)
    assert seats(ranks) == list(range(8, 24)), "24 living ranks, 16 of them active"
    assert [state.mode for state in ranks.states.values()].count(Mode.INACTIVE) == 8
    with pytest.raises(RestartAbort, match="Tree leaves no rank: every domain has too few"):
        ranks.round(8, 16, 24)


# The start, and other calls


def test_ranks_are_numbered_depth_first_with_a_warning():
    layers = [Layer(), Layer(key_or_fn=lambda state: state.initial_rank % 2)]
    ranks = Ranks(lambda: Tree(layers), 4)
    with pytest.warns(UserWarning, match="do not follow each other"):
        ranks.round()
    assert seats(ranks) == [0, 2, 1, 3]
    ranks.round(2)
    assert {member: state.rank for member, state in ranks.states.items()} == {0: 0, 1: 1, 3: 2}


def test_keys_are_declared_at_the_start_only():
    tree = Tree([Layer(), Layer(key_or_fn=lambda rank, size: rank // 2), Layer(key_or_fn=of(1))])
    assert declare(tree, AssignmentState(3, 4), -1) == ("", "1", "3")
    assert declare(tree, AssignmentState(3, 4), 0) == ()


def test_the_roots_keys_must_be_the_same():
    with pytest.raises(
        RankAssignmentError, match=r"the root's keys are \['0', '1'\].*Next: give the first Layer a key"
    ):
        job(2, Layer(key_or_fn=of(1)))


def test_a_call_begins_afresh():
    tree = Tree([Layer(max_ranks=2, flag=RESERVE)])
    ranks = Ranks(lambda: Tree([Layer(max_ranks=2, flag=RESERVE)]), 4)
    ranks.assignments[3] = tree
    for _ in range(2):
        ranks.enter()
        ranks.round()
        ranks.round(0)
        assert seats(ranks) == [3, 1]


def test_a_thousand_calls_do_not_grow_a_tree():
    assert growth(ranks=256, calls=1000) < 4096


def test_a_tree_is_not_composable():
    with pytest.raises(ValueError, match="a Tree alone"):
        check(Compose(Tree([Layer()]), ShiftRanks()))
    check(Compose(Tree([Layer()])))


def test_a_tree_that_missed_the_start_raises():
    ctx = RankAssignmentCtx(AssignmentState(0, 1), NoStore(), set(), Snapshot(3))
    with pytest.raises(RankAssignmentError, match="has not seen the start"):
        assign(Tree([Layer()]), ctx)


def test_ranks_that_do_not_exist_are_refused():
    with pytest.raises(RankAssignmentError, match="not all among the ranks 0 to 0"):
        Tree([Layer()])(RankAssignmentCtx(AssignmentState(0, 1), NoStore(), {1}))


def test_a_tree_called_by_hand_asks_the_store_at_its_start():
    def make():
        return Tree([Layer(), Layer(key_or_fn=of(2), min_ranks=2)])

    answers = together(make, 4, terminated={0})
    assert {old: state.rank for old, state in answers.items() if old > 1} == {2: 0, 3: 1}
    assert isinstance(answers[1], RankDiscarded)


def test_a_tree_called_by_hand_goes_on_from_its_own_answer():
    tree = Tree([Layer()])
    ctx = tree(RankAssignmentCtx(AssignmentState(2, 4), NoStore(), set(), Snapshot(-1, {tree: (("",) * 4,)})))
    state = tree(RankAssignmentCtx(ctx.state, NoStore(), {0})).state
    assert (state.rank, state.world_size, state.active_rank, state.mode) == (1, 3, 1, Mode.ACTIVE)
    with pytest.raises(RankDiscarded, match="rank 1 has no place: it is lost"):
        tree(RankAssignmentCtx(state, NoStore(), {1}))


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: Tree([]), "layers=.*at least one Layer"),
        (lambda: Tree(["rack"]), "layers='rack': must be of type Layer"),
        (lambda: Tree([Layer()], world_size_filter=8), "world_size_filter=8: must be of type Callable"),
        (lambda: Layer(min_ranks=-1), "min_ranks=-1: must be at least 0"),
        (lambda: Layer(max_ranks=-1), "max_ranks=-1: must be at least 0, or None"),
        (lambda: Tree([Layer(key_or_fn={})]), "key_or_fn={}: must be of type Hashable or Callable"),
    ],
)
def test_wrong_parameters_are_refused(make, error):
    with pytest.raises((ValueError, TypeError), match=error):
        make()


# Any tree


class Slow:
    """The rules as they are written, leaf by leaf: `paths` by initial rank, from below the root down."""

    def __init__(self, layers, paths, world_size_filter):
        self.layers, self.filter = layers, world_size_filter
        self.paths = {member: ("", *path) for member, path in paths.items()}
        self.leaves = self._depth_first("", 1, list(paths))
        self.seats, self.reserve = [], []
        for leaf in self.leaves:
            full = any(
                layer.max_ranks is not None and len(self._under(leaf, depth, self.seats)) >= layer.max_ranks
                for depth, layer in enumerate(layers)
            )
            (self.reserve if full else self.seats).append(leaf)

    def _depth_first(self, key, depth, members):
        if depth == len(self.layers):
            return members
        keys = dict.fromkeys(self.paths[member][depth] for member in members)
        return [
            leaf for key in keys
            for leaf in self._depth_first(key, depth + 1, [m for m in members if self.paths[m][depth] == key])
        ]  # fmt: skip

    def _under(self, leaf, depth, leaves):
        return [each for each in leaves if self.paths[each][: depth + 1] == self.paths[leaf][: depth + 1]]

    def _flagged(self, leaf, flag):
        """The depths above a leaf that have the flag, from the lowest on."""
        depths = range(len(self.layers) - 1, -1, -1)
        return list(itertools.takewhile(lambda depth: flag in (self.layers[depth].flag or LayerFlag(0)), depths))

    def round(self, dead):
        living = [leaf for leaf in self.leaves if leaf not in dead]
        for depth in range(len(self.layers) - 1, -1, -1):
            living = [m for m in living if len(self._under(m, depth, living)) >= self.layers[depth].min_ranks]
        self.leaves, self.reserve = living, [leaf for leaf in self.reserve if leaf in living]
        vacant = [seat for seat, leaf in enumerate(self.seats) if leaf not in living]
        left = [seat for seat in vacant if not self._replace(seat)]
        self._backfill(left)
        self.seats = [leaf for leaf in self.seats if leaf in living]
        size = self.filter(len(self.seats)) if self.filter else len(self.seats)
        self.reserve += self.seats[size:]
        del self.seats[size:]

    def _replace(self, seat):
        for depth in self._flagged(self.seats[seat], RESERVE):
            if found := self._under(self.seats[seat], depth, self.reserve):
                self.seats[seat] = found[-1]
                self.reserve.remove(found[-1])
                return True
        return False

    def _backfill(self, vacant):
        domains = {}
        for seat in vacant:
            if depths := self._flagged(self.seats[seat], BACKFILL):
                domain = self.paths[self.seats[seat]][: depths[-1] + 1]
                domains.setdefault(domain, []).append(seat)
        for domain, gaps in domains.items():
            held = [
                seat for seat, leaf in enumerate(self.seats)
                if leaf in self.leaves and self.paths[leaf][: len(domain)] == domain
            ]  # fmt: skip
            for mover, gap in zip(held[-len(gaps) :], gaps, strict=False):
                self.seats[gap], self.seats[mover] = self.seats[mover], None


@st.composite
def trees(draw):
    """Layers, and for each rank its keys from below the root down."""
    depth = draw(st.integers(1, 4))
    flags = st.sampled_from([None, RESERVE, BACKFILL, BOTH])
    limits = [(0, 3), (0, 3), (0, 2), (0, 2)]
    layers = [
        Layer(
            min_ranks=draw(st.integers(*limits[level])),
            max_ranks=draw(st.none() | st.integers(1, 9 if level == 0 else 4)),
            key_or_fn=lambda state, level=level: paths[state.initial_rank][level - 1] if level else "",
            flag=draw(flags),
        )
        for level in range(depth)
    ]
    key = st.sampled_from("abc")
    paths = dict(enumerate(draw(st.lists(st.tuples(*[key] * (depth - 1)), min_size=1, max_size=14))))
    return layers, paths


@given(trees(), st.sampled_from([None, 1, 2, 3]), st.data())
@settings(max_examples=300)
def test_any_tree_does_what_the_rules_say(tree, divisor, data):
    layers, paths = tree
    filter_ = divisor and (lambda size: size // divisor * divisor)
    ranks = Ranks(lambda: Tree(layers, filter_), len(paths))
    missing = data.draw(st.sets(st.sampled_from(range(len(paths)))))
    if len(missing) == len(paths):
        return
    slow = Slow(layers, {member: path for member, path in paths.items() if member not in missing}, filter_)
    for number in range(4):
        dead = missing if number == 0 else data.draw(st.sets(st.sampled_from(sorted(ranks.states))))
        slow.round(dead)
        with warnings.catch_warnings(action="ignore"):
            if not slow.seats:
                if set(ranks.states) - dead - set(ranks.discarded):
                    with pytest.raises(RestartAbort):
                        ranks.round(*dead)
                return
            states = ranks.round(*dead)
        assert seats(ranks) == slow.seats
        assert sorted(states, key=lambda member: states[member].rank) == slow.leaves


# The view of a tree


def test_a_tree_shows_the_place_of_every_rank():
    tree = Tree([Layer(max_ranks=2, flag=RESERVE)])
    assert dict(tree.init_rank_map) == {}
    ranks = Ranks(lambda: Tree([Layer(max_ranks=2, flag=RESERVE)]), 4)
    ranks.assignments[3] = tree
    ranks.round()
    view = tree.init_rank_map
    assert [view[rank].state.active_rank for rank in view] == [0, 1, None, None]
    assert tree.init_rank_map is view
    ranks.round(0)
    places = [leaf.state for leaf in tree.init_rank_map.values()]
    assert [(state.rank, state.active_rank, state.mode.name) for state in places] == [
        (0, None, "TERMINATED"), (0, 1, "ACTIVE"), (1, None, "INACTIVE"), (2, 0, "ACTIVE"),
    ]  # fmt: skip
    assert {(state.world_size, state.active_world_size) for state in places} == {(3, 2)}
    assert {member: places[member].active_rank for member in ranks.states} == {
        member: state.active_rank for member, state in ranks.states.items()
    }
    assert view[0].state.active_rank == 0, "a view does not change"


def test_a_view_has_the_ranks_of_the_start():
    tree = Tree([Layer()])
    tree(RankAssignmentCtx(AssignmentState(1, 2), NoStore(), {0}, Snapshot(-1, {tree: ((None, ""),)})))
    assert list(tree.init_rank_map) == [0, 1]
    assert tree.init_rank_map[0].state.mode is Mode.TERMINATED
    for rank in (-1, 2):
        with pytest.raises(KeyError):
            tree.init_rank_map[rank]


def test_a_lost_rank_knows_the_places_of_the_others():
    tree = Tree([Layer()])
    tree(RankAssignmentCtx(AssignmentState(0, 2), NoStore(), set(), Snapshot(-1, {tree: (("", ""),)})))
    with pytest.raises(RankDiscarded):
        tree(RankAssignmentCtx(AssignmentState(0, 2, mode=Mode.ACTIVE), NoStore(), {0}, Snapshot(0)))
    assert tree.init_rank_map[1].state.active_rank == 0


def test_a_lost_rank_is_discarded_even_where_no_other_lives():
    tree = Tree([Layer(min_ranks=2)])
    tree(RankAssignmentCtx(AssignmentState(0, 2), NoStore(), set(), Snapshot(-1, {tree: (("", ""),)})))
    with pytest.raises(RankDiscarded, match="rank 0 has no place: it is lost"):
        tree(RankAssignmentCtx(AssignmentState(0, 2, mode=Mode.ACTIVE), NoStore(), {0, 1}, Snapshot(0)))


# A user's own store, with the operations of StoreMixin alone


class Facts:
    """A store that knows all keys already."""

    def __init__(self, *keys):
        self.keys = dict(enumerate(keys))

    def send_key(self, key, rank):
        assert self.keys[rank] == key

    def get_keys(self, ranks):
        return [self.keys[rank] for rank in ranks]


def test_keys_come_from_a_store_without_counters():
    tree = Tree([Layer(flag=BACKFILL), Layer(key_or_fn=of(2), flag=BACKFILL)])
    keys = Facts(*(("", str(rank // 2)) for rank in range(4)))
    ctx = tree(RankAssignmentCtx(AssignmentState(3, 4), keys, {1}))
    assert (ctx.state.rank, ctx.state.active_rank, ctx.terminated_ranks) == (2, 1, set())


def test_ranks_with_other_numbers_of_keys_are_an_error():
    tree = Tree([Layer(), Layer()])
    with pytest.raises(RankAssignmentError, match="Tree: not all ranks have 2 keys, as this one has"):
        tree(RankAssignmentCtx(AssignmentState(0, 2), Short(("", ""), ("", "")), set()))


class Short(Facts):
    def get_keys(self, ranks):
        return [key[1:] for key in super().get_keys(ranks)]
