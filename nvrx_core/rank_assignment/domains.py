"""The failure domains of a `Tree`, and which of their ranks hold which seat. Pure.

A *leaf* is a rank for its whole life, numbered depth first: a domain is a range of leaves. `living` are the leaves that
live, ascending, so that an index there is a wrapper rank; `seats` are the active ones, and an index there is an active
rank. What is done here follows from the sequence of losses alone, so that all ranks come to the same answer.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import compress, takewhile
from typing import Final

from nvrx_core.errors import require
from nvrx_core.rank_assignment.keys import KeyOrFn

__all__ = ["Domain", "Domains", "Layer", "LayerFlag"]

_EMPTY: Final = -1

Path = tuple[str | None, ...]


class LayerFlag(enum.Flag):
    """How a layer's domains replace an active rank that they lose."""

    RESERVE = enum.auto()
    """By one of their inactive ranks: the one that became inactive last."""
    BACKFILL = enum.auto()
    """By their active ranks of highest active rank, which then give up their own."""


@dataclass(frozen=True)
class Layer:
    """One layer of a `Tree`, from the root down.

    Attributes:
        min_ranks: a domain with fewer living ranks is terminated as a whole.
        max_ranks: at most so many ranks of a domain are active at the start; None for no limit.
        key_or_fn: the domain that a rank belongs to: a text, a function of the rank's state, or f(rank, world_size).
        flag: how a domain replaces active ranks, None for not at all.

    Raises:
        ValueError: when a limit is negative.
    """

    min_ranks: int = 1
    max_ranks: int | None = None
    key_or_fn: KeyOrFn = ""
    flag: LayerFlag | None = None

    def __post_init__(self) -> None:
        require(self.min_ranks >= 0, "min_ranks", self.min_ranks, "at least 0")
        limit = self.max_ranks
        require(limit is None or limit >= 0, "max_ranks", limit, "at least 0, or None for no limit")


class Domain:
    """One domain: the leaves from `start` up to `end`, and those of them that wait in reserve."""

    __slots__ = ("active", "children", "end", "flag", "key", "layer", "line", "living", "ranks", "reserve", "start")

    def __init__(self, layer: Layer, key: str | None, parent: Domain | None) -> None:
        self.layer, self.key = layer, key
        self.line: tuple[Domain, ...] = (self, *(parent.line if parent else ()))  # up to the root
        self.flag = layer.flag or LayerFlag(0)
        self.children: dict[str | None, Domain] = {}
        self.ranks: list[int] = []
        self.start = self.end = self.living = self.active = 0
        self.reserve: dict[int, None] = {}  # in the order in which they became inactive


class Domains:
    """The tree of all domains.

    Args:
        layers: from the root down.
        paths: for each rank, its keys from the layer below the root down.
    """

    def __init__(self, layers: Sequence[Layer], paths: Mapping[int, Path]) -> None:
        self.layers = layers
        self.root = Domain(layers[0], None, None)
        self.killed: list[Domain] = []
        self._all, self._homes = [self.root], list[Domain]()
        self.order = self._grow(paths)
        self._alive = bytearray(b"\1" * len(self.order))
        self.living = list(range(len(self.order)))
        self.seats = list[int]()
        self._activate()

    # The start

    def _grow(self, paths: Mapping[int, Path]) -> list[int]:
        """Make the domains and number the leaves; returns the rank of each leaf."""
        lowest: dict[Path, Domain] = {}
        for rank, path in paths.items():
            domain = lowest.get(path)
            if domain is None:
                domain = lowest[path] = self._domain(path)
            domain.ranks.append(rank)
        order: list[int] = []
        self._number(self.root, order)
        return order

    def _domain(self, path: Path) -> Domain:
        domain = self.root
        for layer, key in zip(self.layers[1:], path, strict=True):
            child = domain.children.get(key)
            if child is None:
                child = domain.children[key] = Domain(layer, key, domain)
                self._all.append(child)
            domain = child
        return domain

    def _number(self, domain: Domain, order: list[int]) -> None:
        domain.start = len(order)
        for child in domain.children.values():
            self._number(child, order)
        order.extend(domain.ranks)
        self._homes.extend([domain] * len(domain.ranks))
        domain.end, domain.ranks = len(order), []
        domain.living = domain.end - domain.start

    def _activate(self) -> None:
        """Seat the leaves, depth first, as far as the limits of all their domains allow."""
        for leaf, home in enumerate(self._homes):
            if all(d.layer.max_ranks is None or d.active < d.layer.max_ranks for d in home.line):
                self.seats.append(leaf)
                for domain in home.line:
                    domain.active += 1
            else:
                for domain in home.line:
                    domain.reserve[leaf] = None

    # A round

    def lose(self, gone: Iterable[int], *, first: bool) -> None:
        """These leaves are lost, and with them the domains that fall below their `min_ranks`."""
        touched = dict.fromkeys(self._all) if first else {}
        gone = list(gone)
        self._report_death(gone, touched)
        self.killed = []
        for domain in sorted(touched, key=lambda d: -len(d.line)):
            if 0 < domain.living < domain.layer.min_ranks:
                self.killed.append(domain)
                self._report_death([leaf for leaf in range(domain.start, domain.end) if self._alive[leaf]], {})
        if gone or self.killed:
            self.living = list(compress(range(len(self._alive)), self._alive))

    def _report_death(self, leaves: Iterable[int], touched: dict[Domain, None]) -> None:
        for leaf in leaves:
            self._alive[leaf] = 0
            for domain in self._homes[leaf].line:
                domain.living -= 1
                domain.reserve.pop(leaf, None)
                touched[domain] = None

    def reseat(self) -> None:
        """Fill the seats of lost leaves: from the reserve, else from the end of their domain, else by closing ranks."""
        alive = self._alive
        vacant = [seat for seat, leaf in enumerate(self.seats) if not alive[leaf]]
        if left := [seat for seat in vacant if not self._reserve(seat)]:
            self._backfill(left)
            self.seats = [leaf for leaf in self.seats if leaf != _EMPTY and alive[leaf]]

    def _reserve(self, seat: int) -> bool:
        for domain in self._flagged(self.seats[seat], LayerFlag.RESERVE):
            if domain.reserve:
                leaf = next(reversed(domain.reserve))
                for each in self._homes[leaf].line:
                    del each.reserve[leaf]
                self.seats[seat] = leaf
                return True
        return False

    def _backfill(self, vacant: list[int]) -> None:
        by_domain: dict[Domain, list[int]] = {}
        for seat in vacant:
            for highest in deque(self._flagged(self.seats[seat], LayerFlag.BACKFILL), maxlen=1):
                by_domain.setdefault(highest, []).append(seat)
        if not by_domain:
            return
        seat_of = {leaf: seat for seat, leaf in enumerate(self.seats) if self._alive[leaf]}
        for domain, seats in by_domain.items():
            held = [seat_of[leaf] for leaf in range(domain.start, domain.end) if leaf in seat_of]
            movers = nlargest(len(seats), held)[::-1]
            for mover, seat in zip(movers, seats, strict=False):
                self.seats[seat], self.seats[mover] = self.seats[mover], _EMPTY

    def _flagged(self, leaf: int, flag: LayerFlag) -> Iterator[Domain]:
        """The domains above a leaf, from the lowest on, as long as they have the flag."""
        return takewhile(lambda domain: flag in domain.flag, self._homes[leaf].line)

    def shrink(self, size: int) -> None:
        """Only the first `size` seats stay; who held the others is in reserve."""
        for leaf in self.seats[size:]:
            for domain in self._homes[leaf].line:
                domain.reserve[leaf] = None
        del self.seats[size:]

    def lives(self, leaf: int) -> bool:
        """Whether the leaf lives."""
        return leaf >= 0 and bool(self._alive[leaf])

    def is_in_reserve(self, leaf: int) -> bool:
        """Whether the leaf lives and has no seat."""
        return leaf in self.root.reserve

    def killed_with(self, leaf: int) -> Domain | None:
        """The domain that was terminated as a whole this time, and the leaf with it."""
        return next((domain for domain in self.killed if domain.start <= leaf < domain.end), None)
