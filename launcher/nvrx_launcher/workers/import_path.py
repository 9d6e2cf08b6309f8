"""PYTHONPATH of workers: includes nvrx's `nvidia_resiliency_ext` if that package is not installed.

PYTHONPATH precedes an interpreter's own packages, so the launcher first checks in its interpreter whether the package
is installed. For workers with another interpreter, and for programs other than Python, the path is unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from nvrx_core.compatible_names import with_folder
from nvrx_launcher.options import LaunchOptions

__all__ = ["import_path"]


def import_path(options: LaunchOptions, environ: Mapping[str, str], python: str) -> dict[str, str]:
    """Return the worker's PYTHONPATH, if it changes.

    Args:
        options: the command line of the job.
        environ: the environment that workers inherit.
        python: the launcher's interpreter.
    """
    if options.no_python or environ.get("PYTHON_EXEC", python) != python:
        return {}
    inherited = environ.get("PYTHONPATH", "")
    entries = inherited.split(os.pathsep) if inherited else []
    wanted = with_folder(entries)
    return {} if wanted == entries else {"PYTHONPATH": os.pathsep.join(wanted)}
