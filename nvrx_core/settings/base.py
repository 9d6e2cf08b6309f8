"""A class of settings, each declared once by `setting`, which reads files, variables and flags.

A value is read and checked where it is set: by the constructor, an assignment, or a source outside Python. So a value
that is there has its type and keeps its rule. Only the entries of a mapping can change behind that; `check` finds them.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self

from nvrx_core.settings import environment, sources
from nvrx_core.settings.forms import BOOLEAN, PATH, Form, Misread
from nvrx_core.settings.parameter import Declaration, declarations, default_of
from nvrx_core.settings.sources import Given, ValueOrigin
from nvrx_core.settings.spelling import Spelling

__all__ = ["Settings"]


class Settings:
    """The base of a dataclass whose fields are created by `setting`.

    A value that is wrong, or a name that does not exist, is a `ConfigurationError` at once.
    """

    spelling: ClassVar[Spelling]
    _origins: dict[str, ValueOrigin]

    def __new__(cls, *_: object, **settings: object) -> Self:
        """Refuse an unknown name here: the constructor of a dataclass does not say which one was meant."""
        for name in settings:
            sources.refuse_unknown_name(cls.__name__, name, declarations(cls), cls.__name__)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, (field, _) in declarations(self).items():
            if getattr(self, name) == default_of(field):
                del self._origins[name]

    def __setattr__(self, name: str, value: object) -> None:
        self._set(name, value, self._in_code(name))

    @classmethod
    def from_kwargs(cls, ignore_not_recognized: bool = False, **settings: object) -> Self:
        """Return the settings given by name; the others have their defaults.

        Args:
            ignore_not_recognized: accept names that are no settings, also misspelt ones.
            settings: the settings.

        Raises:
            ConfigurationError: when a name or a value is wrong.
        """
        made = cls()
        known = declarations(cls)
        for name, value in settings.items():
            if ignore_not_recognized and name not in known:
                continue
            made._set(name, value, cls._in_code(name))
        return made

    @classmethod
    def from_dict(cls, settings: Mapping[str, object]) -> Self:
        """Return the settings that `to_dict` of another process gave, which has warned of what is not implemented.

        Raises:
            ConfigurationError: when a name or a value is wrong.
        """
        made = cls()
        for name, value in settings.items():
            made._set(name, value, cls._in_code(name))
        return made

    @classmethod
    def from_yaml_file(
        cls,
        path: str | os.PathLike[str],
        ignore_missing: bool = False,
        *,
        ignore_not_recognized: bool = False,
        environ: Mapping[str, str] | None = None,
    ) -> Self:
        """Return the settings of environment variables, else of a YAML file.

        Args:
            path: the file; its first mapping with the name of the section, at any depth, is read.
            ignore_missing: accept that the file, or its section, is missing.
            ignore_not_recognized: accept keys that are no settings, also misspelt ones.
            environ: the variables; None for those of this process.

        Raises:
            ConfigurationError: when the file cannot be read, or a variable, a key or a value is wrong.
        """
        in_file = sources.of_file(
            os.fspath(path), cls, cls.spelling, ignore_missing=ignore_missing, ignore_unknown=ignore_not_recognized
        )
        return cls._from(in_file | cls._in_variables(environ))

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None, *, ignore_not_recognized: bool = False) -> Self:
        """Return the settings of environment variables, else of the YAML file that one of them may name.

        Args:
            environ: the variables; None for those of this process.
            ignore_not_recognized: accept variables and keys that are no settings, also misspelt ones.

        Raises:
            ConfigurationError: when the file cannot be read, or a variable, a key or a value is wrong.
        """
        return cls.from_args(argparse.Namespace(), environ=environ, ignore_not_recognized=ignore_not_recognized)

    @classmethod
    def from_args(
        cls,
        args: argparse.Namespace,
        *,
        environ: Mapping[str, str] | None = None,
        ignore_not_recognized: bool = False,
    ) -> Self:
        """Return the settings of flags, else of variables, else of the YAML file that one of these may name.

        Args:
            args: the result of a parser that `add_arguments` has extended; None stands for a flag that is not given.
            environ: the variables; None for those of this process.
            ignore_not_recognized: accept variables and keys that are no settings, also misspelt ones.

        Raises:
            ConfigurationError: when the file cannot be read, or a flag, a variable, a key or a value is wrong.
        """
        in_variables = cls._in_variables(environ, ignore_unknown=ignore_not_recognized)
        given = in_variables | sources.of_flags(args, cls, cls.spelling)
        if sources.CFG_PATH not in given:
            return cls._from(given)
        path = _read(PATH, *given[sources.CFG_PATH], PATH.example)
        ignore_missing = sources.IGNORE_MISSING in given and _read(
            BOOLEAN, *given[sources.IGNORE_MISSING], BOOLEAN.example
        )
        in_file = sources.of_file(
            path, cls, cls.spelling, ignore_missing=ignore_missing, ignore_unknown=ignore_not_recognized
        )
        return cls._from(in_file | given)

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        """Add a flag for each setting, in all its spellings, and those that name the YAML file."""
        sources.add_arguments(parser, cls, cls.spelling)

    @classmethod
    def refuse_unknown_flags(cls, arguments: Iterable[str]) -> None:
        """Check that no argument that `parse_known_args` has left over looks like a flag of these settings.

        Raises:
            ConfigurationError: with the flag that was probably meant.
        """
        sources.refuse_unknown_flags(arguments, cls, cls.spelling)

    def to_dict(self) -> dict[str, Any]:
        """Return all settings with values as JSON and YAML have them, for `from_dict`."""
        return {name: declared.written(getattr(self, name)) for name, (_, declared) in declarations(self).items()}

    def to_yaml_file(self, path: str | os.PathLike[str]) -> None:
        """Write all settings to a YAML file, which is replaced as a whole.

        Raises:
            OSError: when the file cannot be written.
        """
        from nvrx_core.settings.yaml_section import save

        save(path, self.spelling.section, self.to_dict())

    def explain(self) -> dict[str, str]:
        """Return where each setting comes from: `file:line`, a variable, a flag, "code" or "default"."""
        return {name: self._origins[name].source if name in self._origins else "default" for name in declarations(self)}

    def table(self) -> list[str]:
        """Return a line for each setting: its name, its value and its source."""
        shown = {name: declared.shown(getattr(self, name)) for name, (_, declared) in declarations(self).items()}
        widths = max(map(len, shown)), max(map(len, shown.values()))
        return [f"{name:{widths[0]}}  {shown[name]:{widths[1]}}  {source}" for name, source in self.explain().items()]

    def check(self) -> None:
        """Check all values, also the entries of mappings.

        Raises:
            ConfigurationError: when one is wrong.
        """
        for name, (field, declared) in declarations(self).items():
            origin = self._origins.get(name, self._in_code(name))
            vars(self)[name] = _read(declared, getattr(self, name), origin, _otherwise(default_of(field), declared))

    @classmethod
    def _in_variables(cls, environ: Mapping[str, str] | None, *, ignore_unknown: bool = False) -> Given:
        mine = environment.variables(cls.spelling.variables) if environ is None else environ
        return sources.of_variables(mine, cls, cls.spelling, ignore_unknown=ignore_unknown)

    @classmethod
    def _in_code(cls, name: str) -> ValueOrigin:
        return ValueOrigin(place=cls.__name__, key=name, source="code")

    @classmethod
    def _from(cls, given: Given) -> Self:
        made = cls()
        for name in [name for name in declarations(cls) if name in given]:
            value, origin = given[name]
            made._set(name, value, origin)
        return made

    def _set(self, name: str, value: object, origin: ValueOrigin) -> None:
        owner = type(self).__name__
        sources.refuse_unknown_name(owner, name, declarations(self), owner)
        field, declared = declarations(self)[name]
        vars(self)[name] = _read(declared, value, origin, _otherwise(default_of(field), declared))
        vars(self).setdefault("_origins", {})[name] = origin


def _read(form: Form | Declaration, value: object, origin: ValueOrigin, otherwise: str) -> Any:
    try:
        return form.read(value)
    except Misread as error:
        raise origin.error(error, otherwise) from None


def _otherwise(default: object, declared: Declaration) -> str:
    """What to write where a value does not show what was meant."""
    example = declared.form.example if declared.form else ""
    text = example if default in (None, {}) else f"{declared.shown(default)} (the default)"
    return f"{text}, or none" if declared.optional else text
