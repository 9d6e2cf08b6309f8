"""An operation of torch.distributed, as a rank is seen in it, as reports name it, and as verdicts compare it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["RENDEZVOUS", "Collective"]

RENDEZVOUS: Final = "rendezvous"
"""The operation of a rank that creates a process group or a store."""


@dataclass(frozen=True)
class Collective:
    """The operation of torch.distributed that a thread is in.

    Attributes:
        operation: as `all_reduce`; `RENDEZVOUS` for the creation of a process group or a store.
        group: the name of its group, the same on all its ranks; "" if it is not known.
        label: the name for people; "" for the default group.
        number: the number of the collective in its group, from 1; 0 if it is not known, and for a send or receive.
        ranks: the ranks that take part, empty if they are not known.
        peers: the ranks that a send or receive waits for, empty for any other operation.
    """

    operation: str
    group: str = ""
    label: str = ""
    number: int = 0
    ranks: frozenset[int] = frozenset()
    peers: frozenset[int] = frozenset()
