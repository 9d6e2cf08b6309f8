"""Sources of settings: a YAML file, environment variables and flags give values, each with where it was written.

A setting has a flag in all its spellings, on any `argparse` parser.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from nvrx_core.errors import ConfigurationError
from nvrx_core.settings.forms import LONGEST, Misread, brief
from nvrx_core.settings.parameter import declarations, default_of
from nvrx_core.settings.spelling import Spelling, nearest, spellings

__all__ = [
    "CFG_PATH", "IGNORE_MISSING", "Given", "ValueOrigin", "add_arguments", "of_file", "of_flags", "of_variables",
    "refuse_unknown_flags", "refuse_unknown_name",
]  # fmt: skip

CFG_PATH: Final = "cfg_path"
IGNORE_MISSING: Final = "ignore_missing_cfg"
FILE_OPTIONS: Final = {
    CFG_PATH: ("The YAML file of the settings.", "fault_tol_cfg_path"),
    IGNORE_MISSING: ("Use the defaults where that file or its section is missing.", "ignore_missing_fault_tol_cfg"),
}


@dataclass(frozen=True, kw_only=True)
class ValueOrigin:
    """Where a value was written.

    Attributes:
        place: as an error says it: `file:line`, "environment", "command line", or the class that was given it.
        key: the setting as it is spelled there.
        source: the source as `explain` shows it.
        parts: the place of each entry of a mapping.
    """

    place: str
    key: str
    source: str
    parts: Mapping[str, str] = field(default_factory=dict)

    def error(self, misread: Misread, otherwise: str) -> ConfigurationError:
        """Return the error for a value from here; `otherwise` says what to write where the value does not show it."""
        place = self.parts.get(misread.part, self.place)
        key = f"{self.key}.{misread.part[:LONGEST]}" if misread.part else self.key
        problem = f"{brief(misread.value)} is not allowed, it must be {misread.rule}"
        return ConfigurationError(place, key, problem, f"write {misread.instead or otherwise}")


Given = dict[str, tuple[object, ValueOrigin]]
"""By the name of a setting: what was written, and where."""


def of_file(path: str, owner: type, spelling: Spelling, *, ignore_missing: bool, ignore_unknown: bool = False) -> Given:
    """Return what the section of a YAML file gives.

    Raises:
        ConfigurationError: when the file cannot be read, or a key in the section does not exist.
    """
    from nvrx_core.settings.yaml_section import load

    section = load(path, spelling.section, ignore_missing=ignore_missing)
    known = declarations(owner)
    values = {key: value for key, value in section.values.items() if key in known or not ignore_unknown}
    for key in values:
        refuse_unknown_name(section.place(key), key, known, spelling.section)
    return {
        key: (
            value,
            ValueOrigin(place=section.place(key), key=key, source=section.place(key), parts=section.parts(key)),
        )
        for key, value in values.items()
    }


def of_variables(environ: Mapping[str, str], owner: type, spelling: Spelling, *, ignore_unknown: bool = False) -> Given:
    """Return what environment variables give; those that name the file are given like settings.

    Raises:
        ConfigurationError: when a variable with the prefix of these settings names none of them.
    """
    known = {spelling.variable(name): name for name in (*FILE_OPTIONS, *declarations(owner))}
    mine = {variable: value for variable, value in environ.items() if variable.startswith(spelling.variables) and value}
    mine = {variable: value for variable, value in mine.items() if variable in known or not ignore_unknown}
    for variable in mine:
        refuse_unknown_name("environment", variable, known, spelling.section)
    return {
        known[variable]: (value, ValueOrigin(place="environment", key=variable, source=variable))
        for variable, value in mine.items()
    }


def of_flags(args: argparse.Namespace, owner: type, spelling: Spelling) -> Given:
    """Return what flags give; those that name the file are given like settings."""
    names = (*FILE_OPTIONS, *declarations(owner))
    values = {name: getattr(args, spelling.attribute(name), None) for name in names}
    return {
        name: (value, ValueOrigin(place="command line", key=spelling.flag(name), source=spelling.flag(name)))
        for name, value in values.items()
        if value is not None
    }


def refuse_unknown_name(place: str, name: str, known: Mapping[str, object], owner: str) -> None:
    """Check that a name is known.

    Raises:
        ConfigurationError: when it is not; it says which one was probably meant.
    """
    if name in known:
        return
    meant = nearest(name, known)
    advice = f"did you mean {meant}?" if meant else "remove it, or look for its name in the reference of the options"
    raise ConfigurationError(place, name[:LONGEST], f"unknown key, {owner} has no such setting", advice)


def add_arguments(parser: argparse.ArgumentParser, owner: type, spelling: Spelling) -> None:
    """Add a flag for each setting of a class, and those that name its YAML file.

    A flag that is not given is None in the namespace. Of its spellings only the documented one is in the help.
    """
    group = parser.add_argument_group(spelling.section.replace("_", " "))
    for name, (text, former) in FILE_OPTIONS.items():
        flags = [*spelling.flags(name), *spellings(former)]
        options = {"action": "store_const", "const": True} if name == IGNORE_MISSING else {"metavar": "PATH"}
        _add(group, flags, text, dest=spelling.attribute(name), **options)
    for name, (each_field, declared) in declarations(owner).items():
        flags = [flag for each in (name, *declared.aliases) for flag in spelling.flags(each)]
        text = f"{declared.help} Default: {declared.shown(default_of(each_field))}."
        _add(group, flags, text, dest=spelling.attribute(name), metavar=declared.form and declared.form.metavar)


def refuse_unknown_flags(arguments: Iterable[str], owner: type, spelling: Spelling) -> None:
    """Refuse the first argument that looks like a flag of these settings; for what `parse_known_args` leaves over.

    Raises:
        ConfigurationError: with the flag that was probably meant.
    """
    aliases = [alias for _, declared in declarations(owner).values() for alias in declared.aliases]
    known = [flag for name in (*FILE_OPTIONS, *declarations(owner), *aliases) for flag in spelling.flags(name)]
    for argument in arguments:
        flag = argument.partition("=")[0]
        if flag.startswith((f"--{spelling.prefix}-", f"--{spelling.prefix}_")):
            meant = nearest(flag, known)
            advice = f"did you mean {meant}?" if meant else "remove it, or see --help"
            raise ConfigurationError("command line", flag, "unknown flag, there is no such setting", advice)


def _add(group: Any, flags: list[str], text: str, **options: Any) -> None:
    group.add_argument(flags[0], help=text.replace("%", "%%"), **options)
    group.add_argument(*flags[1:], help=argparse.SUPPRESS, **options)
