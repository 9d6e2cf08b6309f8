"""Fault tolerance for PyTorch; `from nvrx_core import inprocess` restarts a training inside its processes.

Importing this package imports nothing else: each package is loaded on first access.
"""

from typing import TYPE_CHECKING

__all__ = ["__version__"]

__version__ = "0.1.0"

if not TYPE_CHECKING:  # checkers know the names

    def __getattr__(name: str) -> object:
        """Say where a name is that is imported from here by mistake."""
        from nvrx_core.settings.spelling import no_such_name

        home = f"{name} is in nvrx_core.inprocess; write from nvrx_core.inprocess import {name}"
        raise no_such_name(__name__, name, (), told=home if name in {"CallWrapper", "Wrapper", "current_call"} else "")
