"""Declarations of the launcher's options: each is a field of a dataclass, with all that is known about it. Pure.

The command line, its check, the comparison between nodes, and the reference page follow from the declarations.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Generic, TypeVar

from nvrx_core.errors import ConfigurationError

__all__ = [
    "INTEGER",
    "OPTIONAL_INTEGER",
    "OPTIONAL_TEXT",
    "SECONDS",
    "TEXT",
    "Option",
    "OptionForm",
    "declared",
    "flag",
    "option",
    "values_of",
    "wrong",
]  # fmt: skip

Parsed = TypeVar("Parsed")
Value = TypeVar("Value")
KEY: Final = "option"


@dataclass(frozen=True)
class OptionForm(Generic[Parsed, Value]):
    """How the value of an option is written.

    Attributes:
        parse: reads its text as torchrun does; a `ValueError` is a mistake in the usage.
        read: returns the value, given the option and what was parsed, or the default; raises `ConfigurationError`.
    """

    parse: Callable[[str], Parsed]
    read: Callable[[str, Parsed], Value]


def _as_it_is(_: str, parsed: Value) -> Value:
    return parsed


def _seconds(option: str, value: float) -> float:
    if not 0 <= value < float("inf"):
        raise wrong(option, f"{value:g} is no duration", "write a number of seconds, 0 or more")
    return value


TEXT: Final = OptionForm[str, str](str, _as_it_is)
OPTIONAL_TEXT: Final = OptionForm[str | None, str | None](str, _as_it_is)
INTEGER: Final = OptionForm[int, int](int, _as_it_is)
OPTIONAL_INTEGER: Final = OptionForm[int | None, int | None](int, _as_it_is)
SECONDS: Final = OptionForm[float, float](float, _seconds)


@dataclass(frozen=True)
class Option:
    """One option of the command line, which is not a setting of fault tolerance.

    Attributes:
        field: the field that has its value.
        name: with dashes; underscores are accepted as well.
        help: one sentence.
        default: what is read where neither option nor variable is given.
        form: how it is written; None for a flag without a value.
        short: its one-letter form.
        choices: what it can be; None for anything.
        is_torchruns: torchrun has it, too.
        is_jobs: the value of one node counts for all: that of the coordinator's launcher.
    """

    field: str
    name: str
    help: str
    default: object
    form: OptionForm[Any, Any] | None
    short: str = ""
    choices: tuple[str, ...] | None = None
    is_torchruns: bool = True
    is_jobs: bool = False

    @property
    def dest(self) -> str:
        """The name of the parsed value, and of its variable in lower case, after PET_."""
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        """The variable that gives its value where it is not on the command line."""
        return f"PET_{self.dest.upper()}"


def option(
    default: Parsed, form: OptionForm[Parsed, Value], help: str, *, name: str = "", short: str = "",
    choices: tuple[str, ...] | None = None, is_torchruns: bool = True, is_jobs: bool = False,
) -> Value:  # fmt: skip
    """Declare an option that is a field; see `Option`. Without a name it has that of the field."""
    about = {"name": name, "help": help, "default": default, "form": form, "short": short, "choices": choices}
    return _field(form.read(name, default), about, is_torchruns=is_torchruns, is_jobs=is_jobs)


def flag(help: str, *, short: str = "") -> bool:
    """Declare an option without a value that is a field, as all of torchrun's."""
    return _field(False, {"name": "", "help": help, "default": False, "form": None, "short": short})


def _field(value: Value, about: Mapping[str, object], **more: bool) -> Value:
    made: Value = field(default=value, metadata={KEY: {**about, **more}})
    return made


def declared(owner: type) -> tuple[Option, ...]:
    """Return the options that are fields of a dataclass, in order of definition."""
    found = ((each.name, each.metadata[KEY]) for each in fields(owner) if KEY in each.metadata)
    return tuple(Option(name, **{**about, "name": about["name"] or name.replace("_", "-")}) for name, about in found)


def values_of(owner: type, parsed: argparse.Namespace) -> dict[str, Any]:
    """Return the values of these options by field, as a parsed command line gives them.

    Raises:
        ConfigurationError: when one is wrong.
    """
    given = vars(parsed)
    return {
        each.field: given[each.dest] if each.form is None else each.form.read(f"--{each.name}", given[each.dest])
        for each in declared(owner)
    }


def wrong(option: str, problem: str, advice: str) -> ConfigurationError:
    """Return the error for an option of the command line."""
    return ConfigurationError("command line", option, problem, advice)
