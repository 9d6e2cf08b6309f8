"""A rank assignment along failure domains: hosts, racks, NVLink domains. Pure.

A `Tree` is stateful: it keeps the domains of the start, the living ranks, and the holders of the active ranks. The
state is rebuilt at the first barrier of each call. Every living rank has seen all decisions since then, so the state is
equal on all of them.
"""

from __future__ import annotations

import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from itertools import pairwise, repeat
from typing import Final

from nvrx_core.errors import ParameterError, ParameterTypeError, RankAssignmentError, RankDiscarded, RestartAbort
from nvrx_core.rank_assignment.base import AssignmentState, Mode, RankAssignmentCtx
from nvrx_core.rank_assignment.domains import Domains, Layer, LayerFlag
from nvrx_core.rank_assignment.keys import Keyed, KeyFunction
from nvrx_core.rank_assignment.leaves import Leaf, Leaves
from nvrx_core.rank_assignment.moves import require_known

__all__ = ["Layer", "LayerFlag", "Tree"]

_START: Final = -1
_MINUTE: Final = timedelta(seconds=60)


class Tree(Keyed):
    """A rank assignment along a tree of failure domains. It is used alone, not composed with others.

    At the start, active ranks are assigned depth first; a rank stays inactive if one of its domains is full. In each
    round,

    1. a domain with fewer living ranks than `min_ranks` is terminated as a whole;
    2. a lost active rank is replaced by the rank of its domain that became inactive last, or of the next domain above,
       as long as the layers have `RESERVE`;
    3. else by the highest active ranks in the highest domain above it up to which all layers have `BACKFILL`;
    4. the remaining gaps are closed by shifting, which reduces the active world size;
    5. `world_size_filter` may reduce it further; the last ranks become inactive.

    The wrapper's ranks number the living ranks, depth first.

    Args:
        layers: the layers from the root down; the root's keys must be equal on all ranks.
        world_size_filter: returns, for a number of active ranks, how many of them may be active.

    Raises:
        TypeError: when a parameter has the wrong type.
        ValueError: when there is no layer.
    """

    def __init__(self, layers: Iterable[Layer], world_size_filter: Callable[[int], int] | None = None) -> None:
        self.layers = tuple(layers)
        if not self.layers:
            raise ParameterError("layers", self.layers, "at least one Layer")
        if invalid := [layer for layer in self.layers if not isinstance(layer, Layer)]:
            raise ParameterTypeError("layers", invalid[0], "Layer")
        if not (world_size_filter is None or callable(world_size_filter)):
            raise ParameterTypeError("world_size_filter", world_size_filter, "Callable")
        self.world_size_filter = world_size_filter
        self._functions = tuple(KeyFunction(layer.key_or_fn) for layer in self.layers)
        self._domains: Domains | None = None
        self._leaves: Leaves | None = None
        self._started_with = 0

    @property
    def init_rank_map(self) -> Mapping[int, Leaf]:
        """The place of every rank, by initial rank; read-only. Empty before the start."""
        if self._leaves is None:
            self._leaves = Leaves(self._domains, self._started_with)
        return self._leaves

    def key_functions(self, iteration: int) -> tuple[KeyFunction, ...]:
        """See `Keyed`: only the first barrier needs keys, because the domains do not change."""
        return self._functions if iteration == _START else ()

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """Assign, see `RankAssignment`.

        Raises:
            RestartAbort: when fewer ranks live than the root's `min_ranks`.
            RankAssignmentError: when the root's keys differ, or the result of `world_size_filter` is out of range.
        """
        state = ctx.state
        require_known(state, sorted(ctx.terminated_ranks))
        self._leaves = None
        first = ctx.snapshot.iteration == _START if ctx.snapshot else state.mode is Mode.INITIALIZED
        if first:
            self._domains, self._started_with = self._build_domains(ctx), state.world_size
        domains = self._domains
        if domains is None:
            raise RankAssignmentError("this Tree has not seen the start", rank=state.rank, world_size=state.world_size)
        leaves = _by_rank(domains, state.world_size) if first else domains.living
        domains.lose([leaves[rank] for rank in ctx.terminated_ranks if leaves[rank] >= 0], first=first)
        if state.rank not in ctx.terminated_ranks:
            _require_ranks(domains)
        domains.reseat()
        self._filter(domains, state)
        _require_place(state, domains, leaves[state.rank])
        _take_place(state, domains, leaves[state.rank])
        ctx.terminated_ranks = set()
        return ctx

    def _build_domains(self, ctx: RankAssignmentCtx) -> Domains:
        root, *below = self.columns(ctx, _MINUTE, _START)
        state = ctx.state
        roots = set(root) - {None}
        if len(roots) != 1:
            raise RankAssignmentError(
                f"the root's keys are {sorted(map(str, roots))}, not the same on all ranks", rank=state.rank,
                world_size=state.world_size, advice="give the first Layer a key that all ranks share, such as ''",
            )  # fmt: skip
        paths = zip(*below, strict=True) if below else repeat((), state.world_size)
        domains = Domains(self.layers, {rank: path for rank, path in enumerate(paths) if root[rank] is not None})
        if state.rank == 0 and any(earlier > later for earlier, later in pairwise(domains.order)):
            text = "the ranks of a domain do not follow each other: the Tree renumbers them, and rank 0 may move"
            warnings.warn(text, UserWarning, stacklevel=3)
        return domains

    def _filter(self, domains: Domains, state: AssignmentState) -> None:
        if self.world_size_filter is None:
            return
        limit = len(domains.seats)
        size = self.world_size_filter(limit)
        if not 0 <= size <= limit:
            raise RankAssignmentError(
                f"world_size_filter({limit}) is {size}, not between 0 and {limit}", rank=state.rank,
                world_size=state.world_size,
            )  # fmt: skip
        domains.shrink(size)


def _by_rank(domains: Domains, world_size: int) -> list[int]:
    """Return the leaf of each rank at the start, -1 for a rank without a living process."""
    leaves = [-1] * world_size
    for leaf, rank in enumerate(domains.order):
        leaves[rank] = leaf
    return leaves


def _require_ranks(domains: Domains) -> None:
    if not domains.living:
        few = f"fewer than min_ranks={domains.root.layer.min_ranks} are left"
        raise RestartAbort(
            f"Tree leaves no rank: {few if domains.root in domains.terminated else 'every domain has too few'}"
        )


def _require_place(state: AssignmentState, domains: Domains, leaf: int) -> None:
    if domains.is_alive(leaf):
        return
    domain = domains.terminated_domain(leaf)
    why = "it is lost" if domain is None else f"its domain {domain.key!r} has fewer than {domain.layer.min_ranks} ranks"
    raise RankDiscarded(f"rank {state.rank} has no place: {why}", rank=state.rank)


def _take_place(state: AssignmentState, domains: Domains, leaf: int) -> None:
    state.rank, state.world_size = bisect_left(domains.living, leaf), len(domains.living)
    reserved = domains.is_in_reserve(leaf)
    state.mode = Mode.INACTIVE if reserved else Mode.ACTIVE
    state.active_rank = None if reserved else domains.seats.index(leaf)
    state.active_world_size = len(domains.seats)
