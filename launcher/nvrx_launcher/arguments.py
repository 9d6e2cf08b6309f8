"""The command line: torchrun's options, ours, and those of the fault tolerance settings. Imports no torch.

An option that is not given has the value of its variable, PET_ and its name, as torchrun has it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NoReturn

from nvrx_core.errors import ConfigurationError
from nvrx_core.fault_tolerance.config import FaultToleranceConfig
from nvrx_core.settings.spelling import nearest
from nvrx_launcher.declared_options import Option, declared
from nvrx_launcher.exit_codes import USAGE
from nvrx_launcher.log_options import LogOptions
from nvrx_launcher.options import LaunchOptions

__all__ = ["OPTIONS", "explained", "parse_arguments", "parser", "read_arguments"]


OPTIONS: Final = (*declared(LaunchOptions), *declared(LogOptions))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: error: {message}; see {self.prog} --help\n")


class _RaisingParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigurationError("launch", "configuration", message, "see LaunchConfig")


def parser(environ: Mapping[str, str], kind: type[argparse.ArgumentParser] = _Parser) -> argparse.ArgumentParser:
    """Return the parser; defaults come from PET_ variables."""
    built = kind(prog="ft_launcher", description="Start, watch and restart the workers of a node.", allow_abbrev=False)
    for option in OPTIONS:
        _add(built, option, environ.get(option.variable))
    ours = built.add_argument_group("fault tolerance")
    ours.add_argument(
        "--ft-explain", "--ft_explain", action="store_true", help="Print each setting, and where it is from."
    )
    FaultToleranceConfig.add_arguments(built)
    built.add_argument("training_script", help="The script, module or program that the workers run.")
    built.add_argument("training_script_args", nargs=argparse.REMAINDER, help="Its arguments.")
    return built


def parse_arguments(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[argparse.Namespace, FaultToleranceConfig]:
    """Read a command line; an error in it ends the process with exit code 2 and one line."""
    built = parser(environ)
    try:
        return _read(built, argv, environ)
    except ConfigurationError as error:
        print(f"{built.prog}: error: {error}", file=sys.stderr)
        sys.exit(USAGE)


def read_arguments(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[argparse.Namespace, FaultToleranceConfig]:
    """Read the command line of a program, without the variables of torchrun's options.

    Raises:
        ConfigurationError: for a mistake.
    """
    return _read(parser({}, _RaisingParser), argv, environ)


def _read(
    built: argparse.ArgumentParser, argv: Sequence[str], environ: Mapping[str, str]
) -> tuple[argparse.Namespace, FaultToleranceConfig]:
    arguments, unknown = built.parse_known_args(argv)
    FaultToleranceConfig.refuse_unknown_flags(unknown)
    if unknown:
        meant = nearest(unknown[0], (name for option in OPTIONS for name in _names(option)))
        built.error(f"unrecognized arguments: {' '.join(unknown)}" + (f"; did you mean {meant}?" if meant else ""))
    _check_choices(arguments)
    return arguments, FaultToleranceConfig.from_args(arguments, environ=environ)


def _check_choices(arguments: argparse.Namespace) -> None:
    """Raise ConfigurationError when a variable has none of an option's choices; argparse checks the command line."""
    for option in OPTIONS:
        value = getattr(arguments, option.dest)
        if option.choices is not None and value != option.default and value not in option.choices:
            problem, advice = f"{value!r} is not a choice", f"write one of {', '.join(option.choices)}"
            raise ConfigurationError("environment", option.variable, problem, advice)


def _names(option: Option) -> list[str]:
    short = [f"-{option.short}"] if option.short else []
    return [*short, *dict.fromkeys((f"--{option.name}", f"--{option.dest}"))]


def _add(built: argparse.ArgumentParser, option: Option, variable: str | None) -> None:
    names = _names(option)
    if option.form is None:
        built.add_argument(*names, action="store_true", default=bool(variable and variable != "0"), help=option.help)
        return
    default = option.default if variable is None else variable
    built.add_argument(
        *names, type=option.form.parse, default=default, choices=option.choices, dest=option.dest,
        help=f"{option.help} (default: {option.default!r})".replace("%", "%%"),
    )  # fmt: skip


def explained(
    argv: Sequence[str], environ: Mapping[str, str], arguments: argparse.Namespace, config: FaultToleranceConfig
) -> list[str]:
    """Return the output of --ft-explain: a line for each option of the launcher and each setting of fault tolerance.

    Args:
        argv: the command line.
        environ: the environment.
        arguments: the options that were read from them.
        config: the settings that were read from them.
    """
    built, absent = parser({}), object()
    built.set_defaults(**{option.dest: absent for option in OPTIONS})
    typed = built.parse_known_args(argv)[0]

    def source(option: Option) -> str:
        if getattr(typed, option.dest) is not absent:
            return f"--{option.name}"
        return option.variable if option.variable in environ else "default"

    rows = [(each.dest, _shown(getattr(arguments, each.dest)), source(each)) for each in OPTIONS]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = [f"{name:{widths[0]}}  {value:{widths[1]}}  {source}" for name, value, source in rows]
    return [*lines, "", *config.table()]


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) or not isinstance(value, Iterable):
        return str(value) if value not in (None, "") else "none"
    return ",".join(map(str, value)) or "none"
