"""The ranks that have entered a call and the missing ones, for log lines; found by their claims in the store.

In a large job, only one rank reads the claims and logs: the lowest entered rank that is 0 or a power of two. Thousands
of readers would delay the store's answers to the ranks that enter.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Final

from nvrx_core.errors import BarrierTimeout
from nvrx_core.inprocess.coordination.control_store import RoundOperations
from nvrx_core.inprocess.coordination.guarded_store import BATCH, GuardedStore
from nvrx_core.inprocess.protocol.ports import StoreFailure
from nvrx_core.parsing import integer, integers, parse_object, ranges, string
from nvrx_core.rank_assignment.identity import InitialRank, initial_ranks
from nvrx_core.store.keys import StoreKeys
from nvrx_core.values import value

__all__ = ["Presence", "Reminders", "claimed_ranks", "find_presence", "name_missing", "ranges"]

SMALL: Final = 256
"""Ranks of a job up to which each of them looks for those that are missing."""
REQUESTS: Final = 2048
"""The most questions to the store of one look."""
HOSTS: Final = 32
"""The most hosts that are named."""


@value
class Reminders:
    """When to log the ranks that a rank waits for.

    Attributes:
        first: seconds until the first line.
        every: seconds between two further lines.
        lease: seconds between two checks whether another process with this RANK is alive.
    """

    first: float = 10.0
    every: float = 60.0
    lease: float = 2.5


@value
class Presence:
    """The ranks that have entered.

    Attributes:
        size: the number of ranks of the job.
        entered: the number of ranks that have entered.
        missing: those that have not; empty if this rank has not read the claims.
        hosts: the ranks that have entered, by host; likewise.
    """

    size: int
    entered: int
    missing: tuple[int, ...] = ()
    hosts: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def __str__(self) -> str:
        if not self.missing:
            return f"missing: {self.size - self.entered} of {self.size} ranks"
        named = ", ".join(f"{ranges(ranks)} on {host}" for host, ranks in self.hosts[:HOSTS])
        more = ", and others" if self.entered > sum(len(ranks) for _, ranks in self.hosts[:HOSTS]) else ""
        return f"missing ranks: {ranges(self.missing)} (of {self.size}); present: {named or 'none'}{more}"

    def encode(self) -> str:
        """Return it as JSON, with at most `HOSTS` hosts."""
        return json.dumps({**vars(self), "hosts": self.hosts[:HOSTS]})

    @classmethod
    def decode(cls, text: str) -> Presence:
        """Parse the result of `encode`.

        Raises:
            ValueError: when the text is malformed.
        """
        data = parse_object(text)
        hosts = data.get("hosts")
        if not isinstance(hosts, list) or not all(isinstance(each, list) and len(each) == 2 for each in hosts):
            raise ValueError(f"not a list of hosts: {hosts!r:.100}")
        return cls(
            size=integer(data.get("size")),
            entered=integer(data.get("entered")),
            missing=integers(data.get("missing")),
            hosts=tuple((string(host), integers(ranks)) for host, ranks in hosts),
        )


def find_presence(store: GuardedStore, keys: StoreKeys, size: int, member: InitialRank) -> Presence:
    """Find the ranks that have entered the generation of `keys`; a rank of a large job may only count them.

    Raises:
        StoreFailure: when the store fails.
    """
    if size > SMALL:
        readers = [InitialRank(rank) for rank in (0, *(1 << power for power in range(member.bit_length())))]
        if member not in readers or any(store.has([keys.claim(rank)]) for rank in readers if rank < member):
            return Presence(size, min(size, int(store.try_get(keys.claims()) or 0)))
    entered = claimed_ranks(store, keys, size)
    missing = tuple(sorted({*range(size)}.difference(entered)))
    found = dict[str, list[int]]()
    for rank, claim in zip(entered, store.read_all([keys.claim(rank) for rank in entered]), strict=True):
        found.setdefault(claim.decode(errors="replace").partition("/")[0], []).append(rank)
    return Presence(size, len(entered), missing, tuple((host, tuple(ranks)) for host, ranks in found.items()))


def claimed_ranks(store: GuardedStore, keys: StoreKeys, size: int) -> list[InitialRank]:
    """Return the ranks that have claimed their place; a range of ranks that all have costs one request."""
    everybody = sorted(initial_ranks(size))
    parts = [everybody[first : first + BATCH] for first in range(0, size, BATCH)]
    found, requests = list[InitialRank](), 0
    while parts and requests < REQUESTS:
        part, requests = parts.pop(), requests + 1
        if store.has([keys.claim(rank) for rank in part]):
            found.extend(part)
        elif len(part) > 1:
            parts += (part[: len(part) // 2], part[len(part) // 2 :])
    return sorted(found)


def name_missing(
    error: BarrierTimeout, operations: RoundOperations, iteration: int, members: frozenset[InitialRank]
) -> None:
    """Name the members that have not arrived in a round whose barrier timed out; in a small job only."""
    if len(members) <= SMALL:
        with suppress(StoreFailure):
            error.missing = tuple(operations.missing(iteration, members))
            error.add_note(f"missing ranks: {ranges(error.missing)} (of {len(members)})")
