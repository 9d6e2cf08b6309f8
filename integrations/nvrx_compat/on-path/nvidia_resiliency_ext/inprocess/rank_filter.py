"""nvrx's `inprocess.rank_filter`, whose names warn that they have moved."""

from typing import Any

from nvrx_core.inprocess import rank_filter

__all__ = ["ActivateAllRanks", "ActiveWorldSizeDivisibleBy", "MaxActiveWorldSize", "RankFilter"]


def __getattr__(name: str) -> Any:
    return getattr(rank_filter, name)
