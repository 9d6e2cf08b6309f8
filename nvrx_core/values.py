"""`@value`: a frozen dataclass whose methods are shared by all such classes.

`dataclass(frozen=True)` generates and compiles the methods of each class when its module is imported, 0.4 ms of CPU a
class, in every rank of every job. These are written once; fields, defaults, `replace` and `match` are a dataclass's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from functools import cache
from typing import Any, Final, NoReturn, TypeVar, dataclass_transform

__all__ = ["replaced", "value"]

Class = TypeVar("Class", bound=type)
Value = TypeVar("Value")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: Class) -> Class:
    """Return the class as a frozen dataclass. Each field is a parameter, and takes part in equality and hash."""
    dataclass(init=False, repr=False, eq=False)(cls)
    takes_arguments = bool(cls.__match_args__)  # type: ignore[attr-defined]
    for name, method in _METHODS.items():
        if name not in cls.__dict__ and (name != "__init__" or takes_arguments):  # that of `object` takes none
            setattr(cls, name, method)
    return cls


def replaced(of: Value, **changes: object) -> Value:
    """Return a value with other fields, as `dataclasses.replace` does in three times the time."""
    names = of.__match_args__  # type: ignore[attr-defined]
    assert changes.keys() <= set(names), f"{type(of).__name__} has no {', '.join(changes.keys() - set(names))}"
    return type(of)(*[changes[name] if name in changes else getattr(of, name) for name in names])


_set: Final = object.__setattr__  # for a few fields, quicker than `__dict__`: that makes later reads of them slower


def _init(self: Any, *args: object, **kwargs: object) -> None:
    names = self.__match_args__
    if kwargs or len(args) != len(names):
        self.__dict__.update(_complete(type(self), args, kwargs))
        return
    for name, given in zip(names, args, strict=True):
        _set(self, name, given)


def _complete(cls: Any, args: tuple[object, ...], kwargs: dict[str, object]) -> dict[str, object]:
    """Return the values of all fields, in their order: what is given, and the defaults of the others.

    Raises:
        TypeError: when a field without a default is missing, or a value has no field, or two.
    """
    names = cls.__match_args__
    given = dict(zip(names, args, strict=False)) | kwargs if args else kwargs
    template, required, factories = _defaults(cls)
    state = template | given
    each_once = len(given) == len(args) + len(kwargs) and len(state) == len(names)
    if not each_once or not required <= given.keys():
        raise TypeError(f"{cls.__name__} takes {names}, each once")
    for name, make in factories.items():
        if name not in given:
            state[name] = make()
    return state


@cache
def _defaults(cls: Any) -> tuple[dict[str, object], frozenset[str], dict[str, Callable[[], object]]]:
    """Return all fields with their defaults, those that have none, and the defaults that are made for each object."""
    declared = fields(cls)
    factories = {each.name: each.default_factory for each in declared if each.default_factory is not MISSING}
    required = frozenset(each.name for each in declared if each.default is MISSING) - factories.keys()
    return {each.name: each.default for each in declared}, required, factories


def _astuple(self: Any) -> tuple[object, ...]:
    return tuple([getattr(self, name) for name in self.__match_args__])


def _eq(self: Any, other: Any) -> bool:
    return _astuple(self) == _astuple(other) if other.__class__ is self.__class__ else NotImplemented


def _hash(self: Any) -> int:
    return hash(_astuple(self))


def _repr(self: Any) -> str:
    return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__match_args__)})"


def _refuse(self: object, name: str, *_: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to or delete field {name!r}")


_METHODS = {
    "__init__": _init, "__repr__": _repr, "__eq__": _eq, "__hash__": _hash,
    "__setattr__": _refuse, "__delattr__": _refuse,
}  # fmt: skip
