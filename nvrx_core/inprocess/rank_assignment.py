"""The rank assignments, under the names that users import."""

from nvrx_core.rank_assignment.base import RankAssignment, RankAssignmentCtx, RankDiscarded, RankFilter
from nvrx_core.rank_assignment.filters import ActivateAllRanks, MaxActiveWorldSize
from nvrx_core.rank_assignment.moves import FillGaps, ShiftRanks

__all__ = [
    "ActivateAllRanks",
    "FillGaps",
    "MaxActiveWorldSize",
    "RankAssignment",
    "RankAssignmentCtx",
    "RankDiscarded",
    "RankFilter",
    "ShiftRanks",
]
