"""Composition of plug-ins: `Compose(a, b, c)(x)` is `a(b(c(x)))`, so the last one listed runs first.

A composition is an instance of the common base class of its parts: `Compose` of two `Abort`s is an `Abort`.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Self

from nvrx_core.errors import ParameterTypeError, require

__all__ = ["Compose"]

_BASETYPE: Final = 1 << 10  # Py_TPFLAGS_BASETYPE: the type may be extended (CPython, Include/object.h)

if TYPE_CHECKING:
    _Part = Any  # the base class at run time is that of the parts, which no annotation can express
else:
    _Part = object


class Compose(_Part):  # type: ignore[misc]
    """A callable that runs its parts one after the other, the last one listed first.

    Each part is called with the result of the previous one; a tuple is passed as several arguments. A part that is
    called with arguments and returns None causes a warning about a missing `return`.

    Args:
        instances: the callables.

    Attributes:
        instances: the callables.

    Raises:
        ValueError: when there are none.
        TypeError: when one is not callable.
    """

    instances: tuple[Callable[..., Any], ...]

    def __new__(cls, *instances: Callable[..., Any]) -> Self:
        """Create an instance of the common base class of the parts."""
        require(bool(instances), "instances", instances, "at least one callable")
        for instance in instances:
            if not callable(instance):
                raise ParameterTypeError("instances", instance, "Callable")
        composed: Self = object.__new__(_joined(cls, _common(instances)))
        return composed

    def __init__(self, *instances: Callable[..., Any]) -> None:
        self.instances = instances

    def __call__(self, *args: Any) -> Any:
        """Run all parts; return the result of the first one listed."""
        result: Any = args
        for instance in reversed(self.instances):
            result = instance(*args)
            if result is None and any(arg is not None for arg in args):
                name = getattr(instance, "__qualname__", type(instance).__qualname__)
                warnings.warn(
                    f"{name} got arguments and returned None: is a return missing?", UserWarning, stacklevel=2
                )
            args = _arguments(result, args)
        return result

    def __reduce__(self) -> tuple[type[Compose], tuple[Callable[..., Any], ...]]:
        return Compose, self.instances

    def __repr__(self) -> str:
        return f"Compose({', '.join(map(repr, self.instances))})"


def _arguments(result: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments of the next part: none after a part without arguments that returned None."""
    if isinstance(result, tuple):
        return result
    return () if result is None and not args else (result,)


def _common(instances: tuple[Callable[..., Any], ...]) -> type:
    """Return the most derived common class of the instances that can be extended: it defines no `__new__`."""
    for base in type(instances[0]).__mro__:
        constructor: object = base.__new__
        is_extensible = constructor is object.__new__ and bool(base.__flags__ & _BASETYPE)
        if is_extensible and all(isinstance(instance, base) for instance in instances):
            return base
    return object


def _joined(cls: type[Compose], base: type) -> type[Compose]:
    if issubclass(cls, base):
        return cls
    return types.new_class(cls.__name__, (cls, base), exec_body=lambda space: space.update(__module__=cls.__module__))
