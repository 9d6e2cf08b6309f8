"""Changes the class of an object to a subclass of it.

Lightning decides by `isinstance` (precision, samplers, launch environments), and a loader's sampler cannot be replaced.
So an object that must behave differently keeps its identity and remains an instance of its class: its `__class__` is
set to a subclass. Python allows this only for a subclass with a single base; hence class factories instead of mixins.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar, get_type_hints

from nvrx_core.inprocess.call.user_errors import plainly

__all__ = ["become", "keep_name", "tell_parameters"]

Instance = TypeVar("Instance")
Make = Callable[[Any], type[Any]]


def become(instance: Instance, make: Make) -> Instance:
    """Set the object's class to `make(class)`, in place and once; return the object."""
    if make not in getattr(instance, "nvrx_made_by", ()):
        kind: Any = type(instance)
        instance.__class__ = _made(kind, make)
    return instance


@functools.cache
def _made(kind: Any, make: Make) -> type[Any]:
    made = make(kind)
    made.__module__, made.__doc__ = kind.__module__, kind.__doc__
    made.nvrx_made_by = (*getattr(kind, "nvrx_made_by", ()), make)
    return made


def keep_name(made: type[Any], kind: Any) -> type[Any]:
    """Give a subclass the name of its base: Lightning identifies some objects by that of their class."""
    made.__name__, made.__qualname__ = kind.__name__, kind.__qualname__
    return made


def tell_parameters(kind: type[Any], base: Any, options: Any) -> type[Any]:
    """Give a class a constructor signature with named parameters, for LightningCLI and editors.

    Args:
        kind: the class; its constructor takes any arguments.
        base: the class to which it passes parameters.
        options: the dataclass whose fields it also takes, by name.

    Returns:
        The class.
    """

    @plainly
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        super(kind, self).__init__(*args, **kwargs)

    known = inspect.signature(base.__init__).parameters.values()
    named = [each for each in known if each.kind is not inspect.Parameter.VAR_KEYWORD]
    types = get_type_hints(options)
    more = [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=types[each.name])
        for each in fields(options)
    ]
    rest = [each for each in known if each.kind is inspect.Parameter.VAR_KEYWORD]
    vars(construct)["__signature__"] = inspect.Signature([*named, *more, *rest])
    kind.__init__ = construct
    return kind
