"""How an iteration ended on a rank. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

__all__ = ["Ended", "How"]


class How(enum.Enum):
    """How an iteration ended on this rank."""

    RETURNED = enum.auto()
    RESERVE = enum.auto()
    EXITED = enum.auto()  # SystemExit(0): this rank is done
    INTERRUPTED = enum.auto()
    FAILED = enum.auto()
    LEFT = enum.auto()  # by an exception that no restart mends


@dataclass
class Ended:
    """How an iteration ended, and with what."""

    how: How
    result: Any = None
    error: BaseException | None = None
