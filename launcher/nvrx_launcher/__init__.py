"""ft_launcher: starts the ranks of a node, watches them, and restarts them; a torchrun that recovers.

Names are imported on first access.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nvrx_launcher.launch import JobFailedError, LaunchConfig, elastic_launch

__all__ = ["JobFailedError", "LaunchConfig", "elastic_launch"]


if not TYPE_CHECKING:  # checkers see the names above, and refuse any other

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module("nvrx_launcher.launch"), name)
