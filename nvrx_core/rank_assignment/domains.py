"""The failure domains of a `Tree`, and the active rank of each leaf. Pure.

A *leaf* is a rank under one number for the whole call, numbered depth first, so a domain is a range of leaves. `living`
lists the living leaves in ascending order: an index in it is a wrapper rank. `seats` lists the active leaves: an index
in it is an active rank. Every operation depends only on the sequence of losses, so all ranks compute the same result.
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
    """How the domains of a layer replace a lost active rank."""

    RESERVE = enum.auto()
    """By an inactive rank of the domain: the one that became inactive last."""
    BACKFILL = enum.auto()
    """By the highest active rank of the domain, which gives up its own active rank."""


@dataclass
class Layer:
    """One layer of a `Tree`, from the root down.

    Attributes:
        min_ranks: a domain with fewer living ranks is terminated as a whole.
        max_ranks: the maximum number of active ranks of a domain at the start; None for no limit.
        key_or_fn: the domain of a rank: a constant, a function of the rank's state, or f(rank, world_size).
        flag: how a domain replaces lost active ranks; None disables replacement.

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
    """One domain: the leaves from `start` up to `end`, and those among them that wait in reserve."""

    __slots__ = ("active", "children", "end", "key", "layer", "lineage", "living", "ranks", "reserve", "start")

    def __init__(self, layer: Layer, key: str | None, parent: Domain | None) -> None:
        self.layer, self.key = layer, key
        self.lineage: tuple[Domain, ...] = (self, *(parent.lineage if parent else ()))  # up to the root
        self.children: dict[str | None, Domain] = {}
        self.ranks: list[int] = []
        self.start = self.end = self.living = self.active = 0
        self.reserve: dict[int, None] = {}  # in the order in which they became inactive


class Domains:
    """The tree of all domains.

    Args:
        layers: from the root down.
        paths: the keys of each rank, from the layer below the root down.
    """

    def __init__(self, layers: Sequence[Layer], paths: Mapping[int, Path]) -> None:
        self.layers = layers
        self.root = Domain(layers[0], None, None)
        self.terminated: list[Domain] = []
        self._all, self._domain_of = [self.root], list[Domain]()
        self.order = self._build(paths)
        self._alive = bytearray(b"\1" * len(self.order))
        self.living = list(range(len(self.order)))
        self.seats = list[int]()
        self._activate()

    # Construction

    def _build(self, paths: Mapping[int, Path]) -> list[int]:
        """Create the domains and number the leaves; return the rank of each leaf."""
        lowest: dict[Path, Domain] = {}
        for rank, path in paths.items():
            domain = lowest.get(path)
            if domain is None:
                domain = lowest[path] = self._get_or_create(path)
            domain.ranks.append(rank)
        order: list[int] = []
        self._number(self.root, order)
        return order

    def _get_or_create(self, path: Path) -> Domain:
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
        self._domain_of.extend([domain] * len(domain.ranks))
        domain.end, domain.ranks = len(order), []
        domain.living = domain.end - domain.start

    def _activate(self) -> None:
        """Assign seats to the leaves, depth first, within the limits of all their domains."""
        for leaf, lowest in enumerate(self._domain_of):
            if all(d.layer.max_ranks is None or d.active < d.layer.max_ranks for d in lowest.lineage):
                self.seats.append(leaf)
                for domain in lowest.lineage:
                    domain.active += 1
            else:
                for domain in lowest.lineage:
                    domain.reserve[leaf] = None

    # Operations of a round

    def lose(self, gone: Iterable[int], *, first: bool) -> None:
        """Mark leaves as dead, and terminate the domains that fall below their `min_ranks`."""
        touched = dict.fromkeys(self._all) if first else {}
        gone = list(gone)
        self._mark_dead(gone, touched)
        self.terminated = []
        for domain in sorted(touched, key=lambda d: -len(d.lineage)):
            if 0 < domain.living < domain.layer.min_ranks:
                self.terminated.append(domain)
                self._mark_dead([leaf for leaf in range(domain.start, domain.end) if self._alive[leaf]], {})
        if gone or self.terminated:
            self.living = list(compress(range(len(self._alive)), self._alive))

    def _mark_dead(self, leaves: Iterable[int], touched: dict[Domain, None]) -> None:
        for leaf in leaves:
            self._alive[leaf] = 0
            for domain in self._domain_of[leaf].lineage:
                domain.living -= 1
                domain.reserve.pop(leaf, None)
                touched[domain] = None

    def reseat(self) -> None:
        """Fill the seats of lost leaves: from the reserve, else by backfill, else by shifting the later seats."""
        alive = self._alive
        vacant = [seat for seat, leaf in enumerate(self.seats) if not alive[leaf]]
        if unfilled := [seat for seat in vacant if not self._fill_from_reserve(seat)]:
            self._backfill(unfilled)
            self.seats = [leaf for leaf in self.seats if leaf != _EMPTY and alive[leaf]]

    def _fill_from_reserve(self, seat: int) -> bool:
        for domain in self._flagged(self.seats[seat], LayerFlag.RESERVE):
            if domain.reserve:
                leaf = next(reversed(domain.reserve))
                for each in self._domain_of[leaf].lineage:
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
        """Yield the domains of a leaf from the lowest upwards, as long as they have the flag."""
        return takewhile(lambda domain: flag in (domain.layer.flag or LayerFlag(0)), self._domain_of[leaf].lineage)

    def shrink(self, size: int) -> None:
        """Keep only the first `size` seats; move the leaves of the others to the reserve."""
        for leaf in self.seats[size:]:
            for domain in self._domain_of[leaf].lineage:
                domain.reserve[leaf] = None
        del self.seats[size:]

    def is_alive(self, leaf: int) -> bool:
        """Return whether the leaf is alive."""
        return leaf >= 0 and bool(self._alive[leaf])

    def is_in_reserve(self, leaf: int) -> bool:
        """Return whether the leaf is alive and has no seat."""
        return leaf in self.root.reserve

    def terminated_domain(self, leaf: int) -> Domain | None:
        """Return the domain that was terminated as a whole in this round and contains the leaf."""
        return next((domain for domain in self.terminated if domain.start <= leaf < domain.end), None)
