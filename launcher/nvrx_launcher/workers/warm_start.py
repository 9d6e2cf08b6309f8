"""Start of a node's workers: as functions, from standbys, or cold if there are none."""

from __future__ import annotations

import importlib.util
import logging
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from nvrx_core.fault_tolerance.config import FaultToleranceConfig
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.options import LaunchOptions
from nvrx_launcher.workers.binding import Binding
from nvrx_launcher.workers.functions import FunctionStarter
from nvrx_launcher.workers.standbys import Standbys, WarmStarter
from nvrx_launcher.workers.starting import ProgramStarter, Starter, why_no_source

__all__ = ["sets_what_imports_read", "starter_of", "why_not_warm"]

log = logging.getLogger("nvrx_launcher")
ASSIGNMENT: Final = re.compile(
    r"""(?:environ\s*\[\s*|environ\.(?:setdefault|update)\s*\(\s*|putenv\s*\(\s*)"""
    r"""[rb]*["'](?:OMP_|KMP_|MKL_|GOMP_|OPENBLAS_|TORCH_|TORCHINDUCTOR|PYTORCH_)\w*["']\s*(?:\]\s*=(?!=)|,)"""
)


def starter_of(
    options: LaunchOptions, config: FaultToleranceConfig, environ: Mapping[str, str], *,
    loop: EventLoop, bound: Sequence[Binding | None], functions: FunctionStarter | None,
) -> tuple[Starter, Standbys]:  # fmt: skip
    """Return what starts the workers of a node, and its standbys; a job that cannot use any never has one.

    Args:
        options: the job.
        config: whether to use standbys, and their imports.
        environ: the environment that all workers inherit.
        loop: the event loop that watches standbys.
        bound: the binding of each local rank.
        functions: starts workers that are functions; None: they are programs.
    """
    exits, wanted = config.install_exception_hook, config.warm_workers
    if functions is not None:
        why_none = "the workers are functions"
    elif why_none := why_not_warm(options, wanted=wanted, imports=config.warm_imports, environ=environ):
        log.log(logging.WARNING if wanted == "on" else logging.DEBUG, "no standby workers: %s", why_none)
    standbys = Standbys(
        options, environ.get("PYTHON_EXEC", sys.executable), config.warm_imports, loop=loop, bound=bound,
        needs_memory=wanted == "auto", exits=exits, why_none=why_none,
    )  # fmt: skip
    cold = functions or ProgramStarter(options, sys.executable, bound, exits=exits)
    return cold if why_none else WarmStarter(standbys, cold), standbys


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
    return why_no_source(options) or (_unwise(options, imports, environ) if wanted == "auto" else "")


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


def sets_what_imports_read(source: str) -> str:
    """Return where a script sets a variable that torch reads at import, "" if it does not.

    A standby imports torch before the script runs, so such an assignment would come too late.
    """
    found = ASSIGNMENT.search(source)
    return found[0] if found else ""
