"""The output of --ft-explain: each value in effect, and where it comes from."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence

from nvrx_core.fault_tolerance.config import FaultToleranceConfig
from nvrx_core.fault_tolerance.explain import table
from nvrx_launcher.arguments import OPTIONS, parser

__all__ = ["explained"]

ABSENT = object()


def explained(
    argv: Sequence[str], environ: Mapping[str, str], arguments: argparse.Namespace, config: FaultToleranceConfig
) -> list[str]:
    """Return a line for each option of the launcher, then one for each setting of fault tolerance.

    Args:
        argv: the command line.
        environ: the environment.
        arguments: the options that were read from them.
        config: the settings that were read from them.
    """
    typed = _typed(argv)
    rows = [(each.dest, _shown(getattr(arguments, each.dest)), _source(each.dest, typed, environ)) for each in OPTIONS]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = [f"{name:{widths[0]}}  {value:{widths[1]}}  {source}" for name, value, source in rows]
    return [*lines, "", *table(config)]


def _typed(argv: Sequence[str]) -> set[str]:
    """Return the options that are on the command line."""
    built = parser({})
    built.set_defaults(**{option.dest: ABSENT for option in OPTIONS})
    found = vars(built.parse_known_args(argv)[0])
    return {option.dest for option in OPTIONS if found[option.dest] is not ABSENT}


def _source(dest: str, typed: set[str], environ: Mapping[str, str]) -> str:
    variable = f"PET_{dest.upper()}"
    if dest in typed:
        return f"--{dest.replace('_', '-')}"
    return variable if variable in environ else "default"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) or not isinstance(value, Iterable):
        return str(value) if value not in (None, "") else "none"
    return ",".join(map(str, value)) or "none"
