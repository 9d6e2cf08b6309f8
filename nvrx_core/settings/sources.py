"""Sources of settings: a YAML file, environment variables and flags give values, each with where it was written."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field

from nvrx_core.errors import ConfigurationError
from nvrx_core.settings import command_line
from nvrx_core.settings.forms import LONGEST, Misread, brief
from nvrx_core.settings.parameter import declarations
from nvrx_core.settings.spelling import Spelling, nearest

__all__ = ["Given", "Origin", "of_file", "of_flags", "of_variables", "refuse_unknown_name"]


@dataclass(frozen=True, kw_only=True)
class Origin:
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


Given = dict[str, tuple[object, Origin]]
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
        key: (value, Origin(place=section.place(key), key=key, source=section.place(key), parts=section.parts(key)))
        for key, value in values.items()
    }


def of_variables(environ: Mapping[str, str], owner: type, spelling: Spelling, *, ignore_unknown: bool = False) -> Given:
    """Return what environment variables give; those that name the file are given like settings.

    Raises:
        ConfigurationError: when a variable with the prefix of these settings names none of them.
    """
    known = {spelling.variable(name): name for name in (*command_line.FILE_OPTIONS, *declarations(owner))}
    mine = {variable: value for variable, value in environ.items() if variable.startswith(spelling.variables) and value}
    mine = {variable: value for variable, value in mine.items() if variable in known or not ignore_unknown}
    for variable in mine:
        refuse_unknown_name("environment", variable, known, spelling.section)
    return {
        known[variable]: (value, Origin(place="environment", key=variable, source=variable))
        for variable, value in mine.items()
    }


def of_flags(args: argparse.Namespace, owner: type, spelling: Spelling) -> Given:
    """Return what flags give; those that name the file are given like settings."""
    names = (*command_line.FILE_OPTIONS, *declarations(owner))
    values = {name: getattr(args, spelling.attribute(name), None) for name in names}
    return {
        name: (value, Origin(place="command line", key=spelling.flag(name), source=spelling.flag(name)))
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
