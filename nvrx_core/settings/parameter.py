"""Declarations of parameters: default, type, rule, unit and help, written once beside the annotation.

A class of parameters is a dataclass whose fields are created by `parameter`, or by `setting` where a value is also
written outside Python: in a YAML file, a flag or a variable. `check` validates an instance against the declarations.
Reference pages and command lines are generated from `declarations`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, field, fields
from datetime import timedelta
from typing import Any, Final

from nvrx_core.errors import ParameterError, require_type, shown
from nvrx_core.settings.forms import Form, Misread, is_none
from nvrx_core.values import value

__all__ = [
    "NOT_NEGATIVE", "POSITIVE", "Declaration", "ValueRule", "above", "at_least", "check",
    "declarations", "default_of", "one_of", "parameter", "setting", "time_parameter",
]  # fmt: skip

_KEY: Final = "nvrx"


@value
class ValueRule:
    """A rule for one value.

    Attributes:
        text: completes the sentence "must be ...".
        holds: returns whether a value satisfies the rule.
    """

    text: str
    holds: Callable[[Any], bool]


POSITIVE: Final = ValueRule("positive", lambda value: value > type(value)())
NOT_NEGATIVE: Final = ValueRule("not negative", lambda value: value >= type(value)())


def at_least(minimum: float, otherwise: str = "") -> ValueRule:
    """Return the rule that a number is not below `minimum`; `otherwise` names what else is allowed."""
    return ValueRule(f"at least {minimum}{otherwise}", lambda value: bool(value >= minimum))


def above(minimum: float, maximum: float) -> ValueRule:
    """Return the rule that a number is greater than `minimum` and not greater than `maximum`."""
    return ValueRule(f"greater than {minimum} and at most {maximum}", lambda value: bool(minimum < value <= maximum))


def one_of(*values: str) -> ValueRule:
    """Return the rule that a value is one of `values`."""
    return ValueRule(" or ".join(map(repr, values)), lambda value: value in values)


@value
class Declaration:
    """The declaration of a parameter, without its name, annotation and default.

    Attributes:
        help: the purpose, in one sentence.
        kind: the class that a value must be an instance of; None where the owner checks the type itself.
        rule: the rule that a value must satisfy, beside its type.
        shorter_than: the parameters that must be greater.
        upper_bound: whether the value bounds values derived from others, so that its default fits all of them.
        optional: whether None is allowed.
        form: how a value is written outside Python; None for a parameter that exists in Python alone.
        aliases: further names that its flag has.
        is_jobs: the value of one node of a job counts for all.
    """

    help: str
    kind: type | None = None
    rule: ValueRule | None = None
    shorter_than: tuple[str, ...] = ()
    upper_bound: bool = False
    optional: bool = False
    form: Form | None = None
    aliases: tuple[str, ...] = ()
    is_jobs: bool = False

    @property
    def unit(self) -> str:
        """The unit of a value in YAML files, flags and variables, "" where it has none."""
        if self.form is not None:
            return self.form.unit
        return "s" if self.kind is timedelta else ""

    def read(self, value: object) -> Any:
        """Return the value that is written as `value`.

        Raises:
            Misread: a `ValueError`, when it has not the form, or breaks the rule.
        """
        if self.optional and is_none(value):
            return None
        read = self.form.read(value) if self.form is not None else value
        if self.rule is not None and not self.rule.holds(read):
            raise Misread(value, self.rule.text)
        return read

    def written(self, value: Any) -> Any:
        """Return a value as a YAML file or JSON holds it."""
        return value if value is None or self.form is None else self.form.write(value)

    def shown(self, value: Any) -> str:
        """Return a value as a person writes it; None and an empty mapping are "none"."""
        written = self.written(value)
        text = str(written).lower() if isinstance(written, bool) else str(written)
        return "none" if written in (None, {}) else text


def parameter(
    default: Any,
    help: str,
    *,
    kind: type | None = None,
    rule: ValueRule | None = None,
    shorter_than: tuple[str, ...] = (),
    upper_bound: bool = False,
    optional: bool = False,
) -> Any:
    """Return a dataclass field with its declaration; a default of None makes it optional."""
    declared = Declaration(
        help=help, kind=kind, rule=rule, shorter_than=shorter_than, upper_bound=upper_bound,
        optional=optional or default is None,
    )  # fmt: skip
    return field(default=default, metadata={_KEY: declared})


def time_parameter(
    default: timedelta, help: str, *shorter_than: str, rule: ValueRule = POSITIVE, upper_bound: bool = False
) -> Any:
    """Return a field for a duration that must be shorter than the named other parameters."""
    return parameter(default, help, kind=timedelta, rule=rule, shorter_than=shorter_than, upper_bound=upper_bound)


def setting(
    default: Any, form: Form, help: str, *, rule: ValueRule | None = None, aliases: tuple[str, ...] = (),
    optional: bool = False, is_jobs: bool = False,
) -> Any:  # fmt: skip
    """Return a field for a value that is also written in files, flags and variables; a default of None is optional."""
    declared = Declaration(
        help=help, rule=rule, form=form, aliases=aliases, optional=optional or default is None, is_jobs=is_jobs
    )
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata={_KEY: declared})
    return field(default=default, metadata={_KEY: declared})


def default_of(declared: Field[Any]) -> Any:
    """Return the default of a field."""
    return declared.default if declared.default_factory is MISSING else declared.default_factory()


def declarations(owner: Any) -> Mapping[str, tuple[Field[Any], Declaration]]:
    """Return the fields of a class of parameters, or of an instance of it, by name, in order of definition."""
    return {each.name: (each, each.metadata[_KEY]) for each in fields(owner) if _KEY in each.metadata}


def check(owner: Any) -> None:
    """Validate all values of an instance against their declarations.

    Raises:
        ParameterTypeError: a `TypeError`, when a value has the wrong type.
        ParameterError: a `ValueError`, when a value violates its rule, or is not shorter than it must be.
    """
    declared = declarations(owner)
    for name, (_, each) in declared.items():
        _check_value(name, getattr(owner, name), each)
    for name, (_, each) in declared.items():
        for longer in each.shorter_than:
            _check_order(owner, name, longer, upper_bound=each.upper_bound)


def _check_order(owner: Any, name: str, longer: str, *, upper_bound: bool) -> None:
    """Check that one value is below another; the error names the one that is not the default."""
    value, bound = getattr(owner, name), getattr(owner, longer)
    by_default = value == getattr(type(owner), name)
    if value < bound or (by_default and upper_bound):
        return
    if by_default and bound != getattr(type(owner), longer):
        rule = f"longer than {name}={shown(value)}, which is the default"
        raise ParameterError(longer, bound, rule, f"{name}=timedelta(...) as well, shorter than that")
    raise ParameterError(name, value, f"shorter than {longer}={shown(bound)}", _in_seconds(name, value))


def _in_seconds(name: str, value: object) -> str:
    """What to write instead of days that were meant as seconds, or of a negative time; "" for any other value."""
    if not isinstance(value, timedelta):
        return ""
    if value < timedelta(0):
        return f"{name}=timedelta(seconds={-value.total_seconds():g})"
    if value and value == timedelta(value.days):
        return f"{name}=timedelta(seconds={value.days}): timedelta({value.days}) counts days"
    return ""


def _check_value(name: str, value: object, declared: Declaration) -> None:
    if value is None and declared.optional:
        return
    if declared.kind is not None:
        require_type(name, value, declared.kind)
    if declared.rule is not None and not declared.rule.holds(value):
        raise ParameterError(name, value, declared.rule.text, _in_seconds(name, value))
