"""nvrx's `inprocess.rank_filter`, whose names warn that they have moved."""

from typing import TYPE_CHECKING, Any

from nvrx_core.inprocess import rank_filter

if TYPE_CHECKING:
    from nvrx_core.inprocess.rank_filter import (
        ActivateAllRanks,
        ActiveWorldSizeDivisibleBy,
        MaxActiveWorldSize,
        RankFilter,
    )

__all__ = ["ActivateAllRanks", "ActiveWorldSizeDivisibleBy", "MaxActiveWorldSize", "RankFilter"]


if not TYPE_CHECKING:  # checkers see the names above, and refuse any other

    def __getattr__(name: str) -> Any:
        return getattr(rank_filter, name)
