"""The import path of workers: with nvrx's `nvidia_resiliency_ext`, where that package is not installed.

A variable's entries come before an interpreter's own packages, so whether the package is installed is found out first,
for the launcher's interpreter. Workers of another one, and programs that are not run by Python, get nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from nvrx_core.compatible_names import with_folder
from nvrx_launcher.options import LaunchOptions

__all__ = ["import_path"]


def import_path(options: LaunchOptions, environ: Mapping[str, str], python: str) -> dict[str, str]:
    """Return the variable that a worker finds its packages by, where it is to change.

    Args:
        options: what the workers run.
        environ: what they inherit.
        python: the launcher's interpreter.
    """
    if options.no_python or environ.get("PYTHON_EXEC", python) != python:
        return {}
    inherited = environ.get("PYTHONPATH", "")
    entries = inherited.split(os.pathsep) if inherited else []
    wanted = with_folder(entries)
    return {} if wanted == entries else {"PYTHONPATH": os.pathsep.join(wanted)}
