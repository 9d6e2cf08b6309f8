"""Rank monitors: `FaultToleranceConfig`. Names are imported on first access."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nvrx_core.fault_tolerance.config import FaultToleranceConfig

__all__ = ["FaultToleranceConfig"]

_HOME = {"FaultToleranceConfig": "config"}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
