"""Who has which rank in the next iteration, and who of them calls the wrapped function. Pure."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nvrx_core.rank_assignment.base import (
        FrozenState,
        Mode,
        RankAssignment,
        RankAssignmentCtx,
        RankDiscarded,
        RankFilter,
        State,
    )
    from nvrx_core.rank_assignment.filters import ActivateAllRanks, MaxActiveWorldSize
    from nvrx_core.rank_assignment.moves import FillGaps, ShiftRanks

__all__ = [
    "ActivateAllRanks", "FillGaps", "FrozenState", "MaxActiveWorldSize", "Mode", "RankAssignment", "RankAssignmentCtx",
    "RankDiscarded", "RankFilter", "ShiftRanks", "State",
]  # fmt: skip

_FILES = {
    "ActivateAllRanks": "filters", "MaxActiveWorldSize": "filters", "FillGaps": "moves", "ShiftRanks": "moves",
}  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_FILES.get(name, 'base')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
