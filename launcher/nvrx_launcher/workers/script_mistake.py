"""Mistakes by which a script cannot start in any worker: it does not compile, or it or an import of its is not found.

Only the imports at its beginning count: what follows another statement may depend on it, as on a change of `sys.path`.
"""

from __future__ import annotations

import ast
import importlib.util
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from datetime import timedelta
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

from nvrx_core.errors import TimeoutError
from nvrx_core.process.bounded import call_bounded
from nvrx_launcher.options import LaunchOptions

__all__ = ["ScriptMistake", "script_mistake"]

log = logging.getLogger("nvrx_launcher")
TIMEOUT: Final = timedelta(seconds=1)
"""How long it is sought: the script may lie on a file system that does not answer."""
_OURS: Final = ("nvrx_core", "nvrx_lightning", "nvrx_megatron")


class ScriptMistake:
    """The mistake in the script of a job, sought once a cycle and for a limited time.

    Args:
        options: the command line of the job.
    """

    def __init__(self, options: LaunchOptions) -> None:
        self._options, self._is_stalled = options, False
        self._found: str | None = None

    def begin_cycle(self) -> None:
        """Seek it anew: the script may have been changed."""
        self._found = None

    def find(self, environ: Mapping[str, str]) -> str:
        """Return it, "" if none is found; `environ` is what workers inherit."""
        if self._found is None:
            self._found = "" if self._is_stalled else self._seek(environ)
        return self._found

    def _seek(self, environ: Mapping[str, str]) -> str:
        found = list[str]()
        try:
            call_bounded(lambda: found.append(script_mistake(self._options, environ)), TIMEOUT, "nvrx-script-mistake")
        except TimeoutError:
            self._is_stalled = True
            log.warning("%s cannot be read: its file system does not answer", self._options.script)
        return found[0] if found else ""


def script_mistake(options: LaunchOptions, environ: Mapping[str, str]) -> str:
    """Return the mistake in the script of a job, "" if none is found.

    Args:
        options: the command line of the job.
        environ: the environment that workers inherit.
    """
    script = Path(options.script)
    if options.no_python or environ.get("PYTHON_EXEC"):
        return ""
    paths = [*filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))]
    if options.module:
        package = options.script.partition(".")[0]
        return "" if _is_found(package, [os.getcwd(), *paths]) else f"-m {options.script}: {package} is not found"
    if script.suffix != ".py":
        return ""
    try:
        text = script.read_bytes()
        with warnings.catch_warnings():  # the worker has printed those of its script
            warnings.simplefilter("ignore")
            tree = ast.parse(text, str(script))
    except (SyntaxError, ValueError) as error:
        return f"{script} does not compile: {error}"
    except (OSError, RecursionError, MemoryError):  # it cannot be read here, or is nested too deep for the parser
        return ""
    folders = [str(script.resolve().parent), *paths]
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
