"""The kinds of interruption of a rank, and the record of one interruption."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

__all__ = ["Interruption", "InterruptionRecord", "format_interruption_records"]

_RECORD = re.compile(r"InterruptionRecord\(rank=(\d+), interruption=Interruption\.(\w+)\)")


class Interruption(enum.Enum):
    """The kinds of interruption."""

    EXCEPTION = enum.auto()
    """The function raised an `Exception`."""
    BASE_EXCEPTION = enum.auto()
    """The function raised another `BaseException`; the rank exits."""
    SOFT_TIMEOUT = enum.auto()
    """The rank made no progress for `soft_timeout`."""
    HARD_TIMEOUT = enum.auto()
    """The rank made no progress for `hard_timeout`; its process was terminated."""
    TERMINATED = enum.auto()
    """The process exited or was killed."""
    UNRESPONSIVE = enum.auto()
    """The rank's lease was not renewed for `heartbeat_timeout`."""
    MONITOR_PROCESS_EXCEPTION = enum.auto()
    """Not used: a lost monitor process is replaced."""


@dataclass(frozen=True)
class InterruptionRecord:
    """One interruption of one rank.

    Attributes:
        rank: the wrapper's rank in the iteration that ended.
        interruption: what happened to it.
    """

    rank: int
    interruption: Interruption

    def __str__(self) -> str:
        return f"InterruptionRecord(rank={self.rank}, interruption=Interruption.{self.interruption.name})"

    @classmethod
    def from_str(cls, text: str) -> Self:
        """Parse the text that `str` returns for a record.

        Raises:
            ValueError: when `text` is not such a record.
        """
        found = _RECORD.fullmatch(text)
        if found is None or found[2] not in Interruption.__members__:
            raise ValueError(f"not an interruption record: {text!r}")
        return cls(int(found[1]), Interruption[found[2]])


def format_interruption_records(records: Iterable[InterruptionRecord]) -> str:
    """Return one line with each kind of interruption and its ranks, in the order of the kinds."""
    ranks: dict[Interruption, set[int]] = {}
    for record in records:
        ranks.setdefault(record.interruption, set()).add(record.rank)
    kinds = sorted(ranks, key=lambda kind: kind.value)
    return ", ".join(f"{kind.name} on ranks {sorted(ranks[kind])}" for kind in kinds)
