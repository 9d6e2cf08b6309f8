"""The rank assignments, under the names that users import."""

from nvrx_core.rank_assignment.base import RankAssignment, RankAssignmentCtx, RankDiscarded, RankFilter, Snapshot
from nvrx_core.rank_assignment.filters import ActivateAllRanks, ActiveWorldSizeDivisibleBy, MaxActiveWorldSize
from nvrx_core.rank_assignment.groups import FilterCountGroupedByKey, FilterGroupedByKey
from nvrx_core.rank_assignment.moves import FillGaps, ShiftRanks
from nvrx_core.rank_assignment.tree import Layer, LayerFlag, Tree

__all__ = [
    "ActivateAllRanks", "ActiveWorldSizeDivisibleBy", "FillGaps", "FilterCountGroupedByKey", "FilterGroupedByKey",
    "Layer", "LayerFlag", "MaxActiveWorldSize", "RankAssignment", "RankAssignmentCtx", "RankDiscarded", "RankFilter",
    "ShiftRanks", "Snapshot", "Tree",
]  # fmt: skip
