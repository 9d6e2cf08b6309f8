"""The names of nvidia-resiliency-ext: where nvrx has them, and whether they are wanted.

nvrx never installs a top-level `nvidia_resiliency_ext`: two distributions would write into one folder. It has one in a
folder of `nvrx_compat` that is put on the path where it is wanted. Packages above the core, which stand beside each
other, ask here; none of them imports `nvrx_compat`.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable
from typing import Final

__all__ = ["PACKAGE", "activate", "folder", "found_at", "with_folder"]

PACKAGE: Final = "nvidia_resiliency_ext"
_OURS: Final = ("nvrx_compat", "on-path")


def folder() -> str | None:
    """Return the folder with nvrx's `nvidia_resiliency_ext`; None where nvrx_compat is not installed."""
    spec = importlib.util.find_spec(_OURS[0])
    if spec is None or spec.origin is None:
        return None
    return os.path.join(os.path.dirname(os.path.abspath(spec.origin)), _OURS[1])


def found_at() -> str | None:
    """Return where another `nvidia_resiliency_ext` than nvrx's would be imported from; None for nowhere.

    A folder without an `__init__.py`, which an uninstallation may leave behind, is none. Nothing is imported.
    """
    if PACKAGE in sys.modules:
        origin = getattr(sys.modules[PACKAGE], "__file__", None)
    else:
        spec = importlib.util.find_spec(PACKAGE)
        origin = None if spec is None else spec.origin
    own = folder()
    return None if origin is None or (own and origin.startswith(own + os.sep)) else origin


def with_folder(path: Iterable[str]) -> list[str]:
    """Return a search path with nvrx's folder at its end, where an installed package comes before it.

    The path is returned as it is where another `nvidia_resiliency_ext` is found, or nvrx_compat is not installed.
    """
    entries, own = list(path), folder()
    return entries if own is None or own in entries or found_at() else [*entries, own]


def activate(force: bool = False) -> bool:
    """Let `import nvidia_resiliency_ext` find nvrx's names in this process.

    A package of that name that is installed wins, unless `force` is set. Child processes that are started by exec do
    not inherit it; `ft_launcher` does it for the workers. A second call does nothing.

    Args:
        force: use nvrx's names even where another package of that name is installed.

    Returns:
        Whether `nvidia_resiliency_ext` is nvrx's.

    Raises:
        RuntimeError: when `force` is set, and the other package is imported already; when nvrx_compat is not installed.
    """
    own, other = folder(), found_at()
    if own is None:
        raise RuntimeError("nvrx_compat is not installed; it is a part of the distribution nvrx")
    if other is None and own not in sys.path:
        sys.path.append(own)
    if other is not None and force:
        _require_unused(other)
        sys.path[:] = [own, *(entry for entry in sys.path if entry != own)]
    return other is None or force


def _require_unused(other: str) -> None:
    if PACKAGE in sys.modules:
        raise RuntimeError(
            f"{PACKAGE} is imported already, from {other}; call nvrx_compat.activate(force=True) earlier"
        )
