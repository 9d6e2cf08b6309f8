"""A read-only view of a `Tree`: the place of every rank, as this rank has computed it. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping

from nvrx_core.rank_assignment.base import AssignmentState, Mode
from nvrx_core.rank_assignment.domains import Domains
from nvrx_core.rank_assignment.identity import InitialRank
from nvrx_core.values import value

__all__ = ["Leaf", "Leaves"]


@value
class Leaf:
    """One rank in a `Tree`.

    Attributes:
        state: a copy of its state; of a rank that has no place, its initial rank, with mode TERMINATED.
    """

    state: AssignmentState


class Leaves(Mapping[int, Leaf]):
    """The ranks by initial rank, as they are when the view is made.

    Args:
        domains: the tree; None before the start, when there is no rank.
        world_size: the number of ranks at the start.
    """

    def __init__(self, domains: Domains | None, world_size: int) -> None:
        self._world_size = world_size
        self._living = [] if domains is None else list(domains.living)
        self._seats = {} if domains is None else {leaf: seat for seat, leaf in enumerate(domains.seats)}
        self._leaves = {} if domains is None else {rank: leaf for leaf, rank in enumerate(domains.order)}

    def __getitem__(self, initial_rank: int) -> Leaf:
        if not 0 <= initial_rank < self._world_size:
            raise KeyError(initial_rank)
        leaf = self._leaves.get(initial_rank, -1)
        rank = bisect_left(self._living, leaf)
        if rank == len(self._living) or self._living[rank] != leaf:
            gone = AssignmentState(
                initial_rank, len(self._living), active_world_size=len(self._seats), mode=Mode.TERMINATED
            )
            return Leaf(gone)
        seat = self._seats.get(leaf)
        state = AssignmentState(
            rank, len(self._living), seat, len(self._seats), InitialRank(initial_rank), self._world_size,
            mode=Mode.INACTIVE if seat is None else Mode.ACTIVE,
        )  # fmt: skip
        return Leaf(state)

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._world_size))

    def __len__(self) -> int:
        return self._world_size
