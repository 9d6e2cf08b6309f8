"""The arrivals of the rounds in the control store.

Those of a round have one key for each block of members if the store can append, else one each. The value of a block has
one line for each arrival; the last line of a member counts, as if it had replaced the earlier ones. So a round of
thousands of members has few keys to read and delete. The arrivals before the first iteration have a key each, because
they also show which members took part in the call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from nvrx_core.inprocess.coordination.guarded_store import BATCH, GuardedStore, batches
from nvrx_core.inprocess.protocol.decision import Arrival, decode_arrivals
from nvrx_core.rank_assignment.identity import InitialRank, initial_ranks
from nvrx_core.store.keys import StoreKeys

__all__ = ["Arrivals"]


class Arrivals:
    """The arrivals of all rounds of a call.

    Args:
        store: the connection.
        keys: the keys of the call.
    """

    def __init__(self, store: GuardedStore, keys: StoreKeys) -> None:
        self.store, self.keys = store, keys

    def put(self, iteration: int, arrival: Arrival) -> None:
        """Write a member's arrival; it replaces an earlier one."""
        member = arrival.initial_rank
        if self._in_blocks(iteration):
            self.store.append(self.keys.round(iteration).arrivals(member // BATCH), f"\n{arrival.encode()}")
        else:
            self.store.put(self.keys.round(iteration).arrival(member), arrival.encode())

    def read(self, iteration: int, members: frozenset[InitialRank]) -> Mapping[InitialRank, Arrival]:
        """Return the members' arrivals; empty if one is missing.

        Raises:
            ValueError: when one is malformed.
        """
        keys = list(self._of(iteration, members))
        if not self.store.has(keys):
            return {}
        texts = self.store.read_all(keys)
        if self._in_blocks(iteration):
            return _of_blocks(texts, members)
        arrivals = [arrival for part in batches(texts) for arrival in decode_arrivals(part)]
        found = {arrival.initial_rank: arrival for arrival in arrivals}
        if found.keys() != members:
            raise ValueError(f"the arrivals of {sorted(members)!r:.100} are those of others")
        return found

    def missing(self, iteration: int, members: frozenset[InitialRank]) -> list[InitialRank]:
        """Return the members without an arrival."""
        if not self._in_blocks(iteration):
            return [
                member for member in sorted(members) if not self.store.has([self.keys.round(iteration).arrival(member)])
            ]
        keys = [key for key in self._of(iteration, members) if self.store.has([key])]
        return sorted(members - _arrivals_in(self.store.read_all(keys), []).keys())

    def keys_of(self, iteration: int, members: int) -> Iterable[str]:
        """Return all keys of a round's arrivals."""
        return self._of(iteration, initial_ranks(members))

    def _of(self, iteration: int, members: Iterable[InitialRank]) -> Iterable[str]:
        if self._in_blocks(iteration):
            return (self.keys.round(iteration).arrivals(block) for block in sorted({m // BATCH for m in members}))
        return (self.keys.round(iteration).arrival(member) for member in sorted(members))

    def _in_blocks(self, iteration: int) -> bool:
        return self.store.appends and iteration >= 0


def _of_blocks(texts: Iterable[bytes], members: frozenset[InitialRank]) -> Mapping[InitialRank, Arrival]:
    """Return the last arrival of each member; empty if one is missing. Malformed lines are ignored."""
    strange = list[bytes]()
    found = _arrivals_in(texts, strange)
    if members <= found.keys():
        return {member: found[member] for member in members}
    if strange:
        raise ValueError(f"no arrival: {strange[0]!r:.100}")
    return {}


def _arrivals_in(texts: Iterable[bytes], strange: list[bytes]) -> dict[InitialRank, Arrival]:
    lines = [line for text in texts for line in text.split(b"\n") if line]
    try:
        arrivals = [arrival for part in batches(lines) for arrival in decode_arrivals(part)]
    except ValueError:
        arrivals = [arrival for line in lines for arrival in _readable(line, strange)]
    return {arrival.initial_rank: arrival for arrival in arrivals}


def _readable(line: bytes, strange: list[bytes]) -> Iterator[Arrival]:
    try:
        yield Arrival.decode(line)
    except ValueError:
        strange.append(line)
