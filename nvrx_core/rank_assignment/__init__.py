"""Rank assignment: the ranks of the next iteration, and which of them call the wrapped function. Pure."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nvrx_core.rank_assignment.base import (
        AssignmentState,
        FrozenState,
        Mode,
        RankAssignment,
        RankAssignmentCtx,
        RankDiscarded,
        RankFilter,
        Snapshot,
    )
    from nvrx_core.rank_assignment.filters import ActivateAllRanks, ActiveWorldSizeDivisibleBy, MaxActiveWorldSize
    from nvrx_core.rank_assignment.groups import FilterCountGroupedByKey, FilterGroupedByKey
    from nvrx_core.rank_assignment.moves import FillGaps, ShiftRanks
    from nvrx_core.rank_assignment.tree import Layer, LayerFlag, Tree

__all__ = [
    "ActivateAllRanks",
    "ActiveWorldSizeDivisibleBy",
    "AssignmentState",
    "FillGaps",
    "FilterCountGroupedByKey",
    "FilterGroupedByKey",
    "FrozenState",
    "Layer",
    "LayerFlag",
    "MaxActiveWorldSize",
    "Mode",
    "RankAssignment",
    "RankAssignmentCtx",
    "RankDiscarded",
    "RankFilter",
    "ShiftRanks",
    "Snapshot",
    "Tree",
]  # fmt: skip

_FILES = {
    "ActivateAllRanks": "filters", "ActiveWorldSizeDivisibleBy": "filters", "MaxActiveWorldSize": "filters",
    "FilterCountGroupedByKey": "groups", "FilterGroupedByKey": "groups", "FillGaps": "moves", "ShiftRanks": "moves",
    "Layer": "tree", "LayerFlag": "tree", "Tree": "tree",
}  # fmt: skip


if not TYPE_CHECKING:  # checkers see the names above, and refuse any other

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_FILES.get(name, 'base')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
