"""Gives an object a subclass of its own class.

Lightning decides by `isinstance` (precision, samplers, launch environments), and a loader's sampler cannot be replaced.
So an object that is to behave differently stays the same object, and an instance of what it was: its class is replaced
by a subclass. Python allows that where the subclass has one base; hence functions that make classes, and no mixins.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["become"]

Instance = TypeVar("Instance")
Make = Callable[[Any], type[Any]]


def become(instance: Instance, make: Make) -> Instance:
    """Replace the object's class by `make(class)`, in place and once; returns the object."""
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
