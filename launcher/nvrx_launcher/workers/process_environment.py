"""The environment of a process: `os.environ` for workers that are functions, and PYTHONPATH for programs.

Except for the command line, this is the launcher's only access to `os.environ`. A new interpreter inherits its parent's
environment at the time it is started; a function's process sets the rest.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from nvrx_core.compatible_names import with_folder
from nvrx_launcher.options import LaunchOptions

__all__ = ["become", "exactly", "import_path", "inherited"]


def inherited() -> dict[str, str]:
    """Return the environment of this process."""
    return dict(os.environ)


def become(variables: Mapping[str, str]) -> None:
    """Replace the environment of this process."""
    os.environ.clear()
    os.environ.update(variables)


@contextmanager
def exactly(variables: Mapping[str, str]) -> Iterator[None]:
    """Return a context in which this process has exactly this environment."""
    before = inherited()
    become(variables)
    try:
        yield
    finally:
        become(before)


def import_path(options: LaunchOptions, environ: Mapping[str, str], python: str) -> dict[str, str]:
    """Return the worker's PYTHONPATH, with nvrx's `nvidia_resiliency_ext` if that package is not installed.

    PYTHONPATH precedes an interpreter's own packages, so whether the package is installed is checked in the launcher's
    interpreter. For workers with another one, and for programs other than Python, the path is unchanged.

    Args:
        options: the command line of the job.
        environ: the environment that workers inherit.
        python: the launcher's interpreter.

    Returns:
        The variable if it changes, else none.
    """
    if options.no_python or environ.get("PYTHON_EXEC", python) != python:
        return {}
    inherited = environ.get("PYTHONPATH", "")
    entries = inherited.split(os.pathsep) if inherited else []
    wanted = with_folder(entries)
    return {} if wanted == entries else {"PYTHONPATH": os.pathsep.join(wanted)}
