"""The installed packages that are the user's: a training may be a package in site-packages, as the libraries are.

They are the packages of the wrapped functions, and the package that the process was started with: by `python -m`, or by
a command that its installation has made. No file is read.
"""

from __future__ import annotations

import functools
import sys
from pathlib import PurePath
from typing import Any, Final

__all__ = ["note", "user_packages"]

LIBRARIES: Final = frozenset({
    "builtins", "lightning", "lightning_fabric", "megatron", "nvrx_compat", "nvrx_core", "nvrx_launcher",
    "nvrx_lightning", "nvrx_megatron", "pytorch_lightning", "torch",
})  # fmt: skip
"""Packages whose functions are wrapped, or that are started by `python -m`, without being the user's."""
_noted: Final[set[str]] = set()


def note(fn: object) -> None:
    """Count the package of a wrapped function as the user's."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    _noted.add(_package(getattr(fn, "__module__", None)))


def user_packages() -> frozenset[str]:
    """Return the top-level packages that are the user's."""
    found = _noted | _of_process(sys.modules.get("__main__"))
    return frozenset(name for name in found if not name.startswith("__")) - LIBRARIES


def _of_process(main: Any) -> set[str]:
    """Return the packages that the process was started with; a command of a package only imports what it calls."""
    found = {_package(getattr(getattr(main, "__spec__", None), "name", None))}
    file = PurePath(getattr(main, "__file__", None) or "")
    if file.parent.name == "bin" and not file.suffix:
        for value in list(vars(main).values()):
            called = getattr(value, "callback", value)  # click's commands are objects
            if callable(called) and hasattr(called, "__code__"):
                found.add(_package(called.__module__))
    return found


def _package(module: object) -> str:
    return module.partition(".")[0] if isinstance(module, str) else "builtins"
