"""Whether a job's workers can be started from standbys."""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Mapping
from pathlib import Path

from nvrx_launcher.options import LaunchOptions
from nvrx_launcher.workers.standby_policy import sets_what_imports_read

__all__ = ["why_not_warm"]


def why_not_warm(options: LaunchOptions, *, wanted: str, imports: str, environ: Mapping[str, str]) -> str:
    """Return why a job cannot use standby workers; "" if it can.

    Args:
        options: the command line of the job.
        wanted: auto, on or off.
        imports: modules that standbys import, separated by commas.
        environ: the environment that workers inherit.
    """
    if wanted == "off":
        return "they are switched off"
    return _impossible(options) or (_unwise(options, imports, environ) if wanted == "auto" else "")


def _impossible(options: LaunchOptions) -> str:
    if options.no_python or options.run_path:
        return "the workers are no Python script"
    script = Path(options.script)
    if not options.module and (not script.is_file() or script.suffix == ".pyc" or zipfile.is_zipfile(script)):
        return f"{options.script} is no Python source file"
    return ""


def _unwise(options: LaunchOptions, imports: str, environ: Mapping[str, str]) -> str:
    if not options.max_restarts:
        return "there are no restarts"
    if environ.get("PYTHON_EXEC"):
        return "PYTHON_EXEC names the interpreter"
    for name in imports.split(","):
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            return f"{name} is not installed"
    place = sets_what_imports_read(_source(options))
    return f"{options.script} sets a variable that is read by an import: {place}" if place else ""


def _source(options: LaunchOptions) -> str:
    """Return the source of the script, or of a module in the current folder; "" if it is not found."""
    parts = Path(*options.script.split(".")) if options.module else Path(options.script)
    candidates = [parts.with_suffix(".py"), parts / "__main__.py"] if options.module else [parts]
    found = next((path for path in candidates if path.is_file()), None)
    return found.read_text(errors="replace") if found else ""
