"""Handing the `CallWrapper` to the wrapped function: by annotation, or by the name of a parameter."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from typing import Any, Final

__all__ = ["NAMES", "parameters_for"]

NAMES: Final = ("call_wrapper", "inprocess_call_wrapper")


def parameters_for(kind: type, fn: Callable[..., Any]) -> tuple[str, ...]:
    """The parameters of `fn` that want a `kind`: annotated with it, or a union that has it, or named one of `NAMES`."""
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return ()
    return tuple(
        name for name, parameter in parameters.items() if name in NAMES or _wants(kind, parameter.annotation, fn)
    )


def _wants(kind: type, annotation: Any, fn: Callable[..., Any]) -> bool:
    if isinstance(annotation, str):
        annotation = _resolve(kind, annotation, fn)
    if annotation is kind:
        return True
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return any(_wants(kind, part, fn) for part in typing.get_args(annotation))
    return isinstance(annotation, typing.ForwardRef) and _wants(kind, annotation.__forward_arg__, fn)


def _resolve(kind: type, text: str, fn: Callable[..., Any]) -> Any:
    """What a string annotation means where the function was defined; else its last name is compared."""
    space = {**vars(typing), **getattr(inspect.unwrap(fn), "__globals__", {})}
    try:
        return eval(text, space, {kind.__name__: space.get(kind.__name__, kind)})
    except Exception:  # boundary: any text may stand in an annotation
        parts = {part.strip().rpartition(".")[2] for part in text.replace("Optional[", "").rstrip("]").split("|")}
        return kind if kind.__name__ in parts else None
