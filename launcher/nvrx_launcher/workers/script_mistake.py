"""Mistakes by which a script cannot start in any worker: it does not compile, or it imports what is not installed.

Only the imports at its beginning count: what follows another statement may depend on it, as on a change of `sys.path`.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

from nvrx_launcher.options import LaunchOptions

__all__ = ["script_mistake"]

_OURS: Final = ("nvrx_core", "nvrx_lightning", "nvrx_megatron")


def script_mistake(options: LaunchOptions, environ: Mapping[str, str]) -> str:
    """Return the mistake in the script of a job, "" if none is found.

    Args:
        options: the command line of the job.
        environ: the environment that workers inherit.
    """
    script = Path(options.script)
    if options.module or options.no_python or environ.get("PYTHON_EXEC") or script.suffix != ".py":
        return ""
    try:
        with warnings.catch_warnings():  # the worker has printed those of its script
            warnings.simplefilter("ignore")
            tree = ast.parse(script.read_bytes(), str(script))
    except (SyntaxError, ValueError) as error:
        return f"{script} does not compile: {error}"
    except (OSError, RecursionError, MemoryError):  # it cannot be read here, or is nested too deep for the parser
        return ""
    folders = [str(script.resolve().parent), *filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))]
    missing = [name for name in _first_imports(tree) if not _is_found(name, folders)]
    hint = f"; nvrx is imported as {', '.join(_OURS)}" if missing[:1] == ["nvrx"] else ""
    return f"{script} imports {missing[0]}, which is not found{hint}" if missing else ""


def _first_imports(tree: ast.Module) -> Iterator[str]:
    """Yield the modules that a script imports before it does anything else."""
    for statement in tree.body:
        if isinstance(statement, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            yield statement.module.partition(".")[0]
        elif not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
            return


def _is_found(name: str, folders: list[str]) -> bool:
    if name in sys.stdlib_module_names or PathFinder.find_spec(name, folders) is not None:
        return True
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # a module of the launcher without a spec
        return True
