"""The `nvidia_resiliency_ext` names for code that is written against them: nvrx's objects under those names.

The folder `path()` holds a package of that name. It is not on `sys.path` by default: `activate()` puts it there, and
`ft_launcher` does so for its workers. An installed package of that name takes precedence.
"""

from __future__ import annotations

from pathlib import Path

from nvrx_core.compatible_names import activate

__all__ = ["activate", "path"]


def path() -> str:
    """Return the folder to put on `sys.path`; it contains nvrx's `nvidia_resiliency_ext`."""
    return str(Path(__file__).resolve().parent / "on-path")
