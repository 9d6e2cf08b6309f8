"""Flags of settings: each in all its spellings, on any `argparse` parser."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any, Final

from nvrx_core.errors import ConfigurationError
from nvrx_core.settings.parameter import declarations, default_of
from nvrx_core.settings.spelling import Spelling, nearest, spellings

__all__ = ["CFG_PATH", "FILE_OPTIONS", "IGNORE_MISSING", "add_arguments", "refuse_unknown"]

CFG_PATH: Final = "cfg_path"
IGNORE_MISSING: Final = "ignore_missing_cfg"
FILE_OPTIONS: Final = {
    CFG_PATH: ("The YAML file of the settings.", "fault_tol_cfg_path"),
    IGNORE_MISSING: ("Use the defaults where that file or its section is missing.", "ignore_missing_fault_tol_cfg"),
}


def add_arguments(parser: argparse.ArgumentParser, owner: type, spelling: Spelling) -> None:
    """Add a flag for each setting of a class, and those that name its YAML file.

    A flag that is not given is None in the namespace. Of its spellings only the documented one is in the help.
    """
    group = parser.add_argument_group(spelling.section.replace("_", " "))
    for name, (text, former) in FILE_OPTIONS.items():
        flags = [*spelling.flags(name), *spellings(former)]
        options = {"action": "store_const", "const": True} if name == IGNORE_MISSING else {"metavar": "PATH"}
        _add(group, flags, text, dest=spelling.attribute(name), **options)
    for name, (field, declared) in declarations(owner).items():
        flags = [flag for each in (name, *declared.aliases) for flag in spelling.flags(each)]
        text = f"{declared.help} Default: {declared.shown(default_of(field))}."
        _add(group, flags, text, dest=spelling.attribute(name), metavar=declared.form and declared.form.metavar)


def refuse_unknown(arguments: Iterable[str], owner: type, spelling: Spelling) -> None:
    """Refuse the first argument that looks like a flag of these settings; for what `parse_known_args` leaves over.

    Raises:
        ConfigurationError: with the flag that was probably meant.
    """
    known = [flag for name in _names(owner) for flag in spelling.flags(name)]
    for argument in arguments:
        flag = argument.partition("=")[0]
        if flag.startswith((f"--{spelling.prefix}-", f"--{spelling.prefix}_")):
            meant = nearest(flag, known)
            advice = f"did you mean {meant}?" if meant else "remove it, or see --help"
            raise ConfigurationError("command line", flag, "unknown flag, there is no such setting", advice)


def _names(owner: type) -> list[str]:
    return [
        *FILE_OPTIONS,
        *(each for name, (_, declared) in declarations(owner).items() for each in (name, *declared.aliases)),
    ]


def _add(group: Any, flags: list[str], text: str, **options: Any) -> None:
    group.add_argument(flags[0], help=text.replace("%", "%%"), **options)
    group.add_argument(*flags[1:], help=argparse.SUPPRESS, **options)
