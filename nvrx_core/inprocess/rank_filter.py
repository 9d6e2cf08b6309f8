"""The deprecated module of the rank filters; they are in `rank_assignment`, and importing them here warns."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from nvrx_core.inprocess import rank_assignment

if TYPE_CHECKING:
    from nvrx_core.inprocess.rank_assignment import (
        ActivateAllRanks,
        ActiveWorldSizeDivisibleBy,
        MaxActiveWorldSize,
        RankFilter,
    )

__all__ = ["ActivateAllRanks", "ActiveWorldSizeDivisibleBy", "MaxActiveWorldSize", "RankFilter"]


if not TYPE_CHECKING:  # checkers see the names above, and refuse any other

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        warnings.warn(
            f"inprocess.rank_filter.{name} is now inprocess.rank_assignment.{name}", DeprecationWarning, stacklevel=2
        )
        return getattr(rank_assignment, name)
