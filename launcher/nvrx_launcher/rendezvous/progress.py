"""The progress of all ranks, in the rendezvous store: a rank that waits for one of another node is not ended.

progress/<node>      the slowest ranks of a node, which its launcher writes with each renewal of its lease
progress             the slowest ranks of the job, of two nodes at least; the launcher of the coordinator writes them

A value that is read is up to two beats old. Counts only grow, so an old one can excuse a rank for a moment too long,
but never blame it. A query costs one request, whatever the number of nodes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from nvrx_core.fault_tolerance.peers import Progress, slowest_of_each_kind
from nvrx_core.parsing import integer, parse_object

__all__ = ["NodeProgress", "ProgressBoard", "ProgressSummary", "existing", "slowest_of_job"]

NodeProgress = tuple[int, Sequence[Progress]]
"""A cycle, and ranks of it."""


class ProgressStore(Protocol):
    """The operations of a store that are used."""

    def set(self, key: str, value: str) -> object:
        """Write a value."""

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Return the values of existing keys."""

    def check(self, keys: list[str]) -> bool:
        """Whether all of these keys are there."""


def existing(store: ProgressStore, keys: list[str]) -> list[bytes] | None:
    """Return the values of keys, None unless all of them are there; one request where the store has one for that."""
    if (read := getattr(getattr(store, "store", None), "read", None)) is not None:
        found: list[bytes] | None = read(keys)
        return found
    return store.multi_get(keys) if store.check(keys) else None


class ProgressBoard:
    """Writes and reads the progress, in the request thread.

    Args:
        key: names the key of a node, and with -1 that of the job.
        own: returns the current cycle and the progress of this node's ranks.
    """

    def __init__(self, key: Callable[[int], str], own: Callable[[], NodeProgress]) -> None:
        self._key, self._own, self._written = key, own, (-1, "")

    def write(self, store: ProgressStore, node: int) -> None:
        """Write the progress of this node's ranks, if it has changed."""
        cycle, ranks = self._own()
        text = _to_text(cycle, slowest_of_each_kind(ranks))
        if (node, text) != self._written:  # a node that joins again has another number
            store.set(self._key(node), text)
            self._written = (node, text)

    def read(self, store: ProgressStore) -> list[Progress]:
        """Return the slowest ranks of other nodes in the current cycle."""
        key = self._key(-1)
        cycle, ranks = (-1, ()) if (found := existing(store, [key])) is None else _from_text(found[0])
        current, own = self._own()
        here = {each.rank for each in own}
        return [each for each in ranks if cycle == current and each.rank not in here]


class ProgressSummary:
    """Summarizes the progress of all nodes, in the request thread of the coordinator's launcher.

    Args:
        key: names the key of a node, and with -1 that of the job.
    """

    def __init__(self, key: Callable[[int], str]) -> None:
        self._key, self._collected = key, ""

    def collect(self, store: ProgressStore, nodes: Iterable[int]) -> None:
        """Write the slowest ranks of the job, if they have changed."""
        wanted = list(nodes)
        if not wanted or (found := existing(store, list(map(self._key, wanted)))) is None:
            return
        text = _to_text(*slowest_of_job(dict(zip(wanted, map(_from_text, found), strict=True))))
        if text != self._collected:
            store.set(self._key(-1), text)
            self._collected = text


def slowest_of_job(nodes: Mapping[int, NodeProgress]) -> tuple[int, list[Progress]]:
    """Return the last cycle of some nodes and its slowest ranks, then the slowest ranks of the other nodes."""
    last = max((cycle for cycle, _ in nodes.values()), default=-1)
    present = {node: ranks for node, (cycle, ranks) in nodes.items() if cycle == last}
    first = slowest_of_each_kind(each for ranks in present.values() for each in ranks)
    others = [ranks for ranks in present.values() if not set(ranks) & set(first)]
    return last, [*first, *slowest_of_each_kind(each for ranks in others for each in ranks)]


def _to_text(cycle: int, ranks: Iterable[Progress]) -> str:
    return json.dumps({"cycle": cycle, "ranks": [each.to_json() for each in ranks]})


def _from_text(text: bytes) -> NodeProgress:
    """Parse what a launcher has written; a malformed value is ignored."""
    try:
        found: dict[str, Any] = parse_object(text)
        return integer(found.get("cycle"), -1), [Progress.from_json(each) for each in found["ranks"]]
    except (ValueError, KeyError, TypeError, AttributeError):
        return -1, ()
