"""An assignment that knows which ranks fail together: hosts, racks, NVLink domains. Pure.

A `Tree` has a memory: the domains as they were at the start, who of them lives, and who holds which active rank. It
starts afresh at the first barrier of each call, and every rank that lives has seen all decisions since, so all agree.
"""

from __future__ import annotations

import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterable
from datetime import timedelta
from itertools import pairwise, repeat
from typing import Final

from nvrx_core.errors import ParameterError, ParameterTypeError, RankAssignmentError, RankDiscarded, RestartAbort
from nvrx_core.rank_assignment.base import Mode, RankAssignmentCtx, State
from nvrx_core.rank_assignment.domains import Domains, Layer, LayerFlag
from nvrx_core.rank_assignment.keys import Keyed, KeyFunction
from nvrx_core.rank_assignment.moves import require_known

__all__ = ["Layer", "LayerFlag", "Tree"]

_START: Final = -1
_MINUTE: Final = timedelta(seconds=60)


class Tree(Keyed):
    """Assigns active ranks along a tree of failure domains. It decides everything: it is not composed with others.

    At the start the ranks are seated depth first, a rank stays inactive where a domain above it is full. In each round,

    1. a domain with fewer living ranks than `min_ranks` is terminated as a whole;
    2. a lost active rank is replaced by the rank of its domain that became inactive last, or of the next domain above,
       as long as the layers have `RESERVE`;
    3. else by the ranks of highest active rank in the highest domain above it up to which all layers have `BACKFILL`;
    4. the gaps that are left are closed by shifting, and the active world is that much smaller;
    5. `world_size_filter` may make it smaller still; the last ones become inactive.

    The wrapper's ranks are the living ones, depth first.

    Args:
        layers: from the root down; the root's keys must be the same on all ranks.
        world_size_filter: answers, for a number of active ranks, how many of them there may be.

    Raises:
        TypeError: when a parameter has the wrong type.
        ValueError: when there is no layer.
    """

    def __init__(self, layers: Iterable[Layer], world_size_filter: Callable[[int], int] | None = None) -> None:
        self.layers = tuple(layers)
        if not self.layers:
            raise ParameterError("layers", self.layers, "at least one Layer")
        if strangers := [layer for layer in self.layers if not isinstance(layer, Layer)]:
            raise ParameterTypeError("layers", strangers[0], "Layer")
        if not (world_size_filter is None or callable(world_size_filter)):
            raise ParameterTypeError("world_size_filter", world_size_filter, "Callable")
        self.world_size_filter = world_size_filter
        self._functions = tuple(KeyFunction(layer.key_or_fn) for layer in self.layers)
        self._domains: Domains | None = None

    def key_functions(self, iteration: int) -> tuple[KeyFunction, ...]:
        """See `Keyed`: only the first barrier asks, for the domains do not change."""
        return self._functions if iteration == _START else ()

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """Assign, see `RankAssignment`.

        Raises:
            RestartAbort: when fewer ranks live than the root's `min_ranks`.
            RankAssignmentError: when the root's keys differ, or `world_size_filter` answers out of range.
        """
        state = ctx.state
        require_known(state, sorted(ctx.terminated_ranks))
        first = ctx.snapshot.iteration == _START if ctx.snapshot else state.mode is Mode.INITIALIZED
        if first:
            self._domains = self._plant(ctx)
        domains = self._domains
        if domains is None:
            raise RankAssignmentError("this Tree has not seen the start", rank=state.rank, world_size=state.world_size)
        leaves = _by_rank(domains, state.world_size) if first else domains.living
        domains.lose([leaves[rank] for rank in ctx.terminated_ranks if leaves[rank] >= 0], first=first)
        _require_place(state, domains, leaves[state.rank])
        domains.reseat()
        self._filter(domains, state)
        _take_place(state, domains, leaves[state.rank])
        ctx.terminated_ranks = set()
        return ctx

    def _plant(self, ctx: RankAssignmentCtx) -> Domains:
        root, *below = self.columns(ctx, _MINUTE, _START)
        state, gone = ctx.state, ctx.terminated_ranks
        roots = {key for rank, key in enumerate(root) if rank not in gone}
        if len(roots) != 1:
            raise RankAssignmentError(
                f"the root's keys are {sorted(map(str, roots))}, not the same on all ranks", rank=state.rank,
                world_size=state.world_size, advice="give the first Layer a key that all ranks share, such as ''",
            )  # fmt: skip
        paths = zip(*below, strict=True) if below else repeat((), state.world_size)
        domains = Domains(self.layers, {rank: path for rank, path in enumerate(paths) if rank not in gone})
        if state.rank == 0 and any(earlier > later for earlier, later in pairwise(domains.order)):
            text = "the ranks of a domain do not follow each other: the Tree renumbers them, and rank 0 may move"
            warnings.warn(text, UserWarning, stacklevel=3)
        return domains

    def _filter(self, domains: Domains, state: State) -> None:
        if self.world_size_filter is None:
            return
        most = len(domains.seats)
        size = self.world_size_filter(most)
        if not 0 <= size <= most:
            raise RankAssignmentError(
                f"world_size_filter({most}) is {size}, not between 0 and {most}", rank=state.rank,
                world_size=state.world_size,
            )  # fmt: skip
        domains.shrink(size)


def _by_rank(domains: Domains, world_size: int) -> list[int]:
    """The leaf of each rank at the start, -1 for one that nobody has."""
    leaves = [-1] * world_size
    for leaf, rank in enumerate(domains.order):
        leaves[rank] = leaf
    return leaves


def _require_place(state: State, domains: Domains, leaf: int) -> None:
    if not domains.living:
        few = f"fewer than min_ranks={domains.root.layer.min_ranks} are left"
        raise RestartAbort(
            f"Tree leaves no rank: {few if domains.root in domains.killed else 'every domain has too few'}"
        )
    if domains.lives(leaf):
        return
    domain = domains.killed_with(leaf)
    why = "it is lost" if domain is None else f"its domain {domain.key!r} has fewer than {domain.layer.min_ranks} ranks"
    raise RankDiscarded(f"rank {state.rank} has no place: {why}", rank=state.rank)


def _take_place(state: State, domains: Domains, leaf: int) -> None:
    state.rank, state.world_size = bisect_left(domains.living, leaf), len(domains.living)
    reserved = domains.is_in_reserve(leaf)
    state.mode = Mode.INACTIVE if reserved else Mode.ACTIVE
    state.active_rank = None if reserved else domains.seats.index(leaf)
    state.active_world_size = len(domains.seats)
