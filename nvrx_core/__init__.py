"""Fault tolerance for PyTorch; `from nvrx_core import inprocess` restarts a training inside its processes.

Importing this package imports nothing else: each package is loaded on first access.
"""

from typing import TYPE_CHECKING

__all__ = ["__version__"]

__version__ = "0.1.0"

if not TYPE_CHECKING:  # checkers know the names

    def __getattr__(name: str) -> object:
        """Say where a name is that is imported from here by mistake."""
        if name in {"CallWrapper", "Wrapper", "current_call"}:
            raise ImportError(f"{name} is in nvrx_core.inprocess; write from nvrx_core.inprocess import {name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
