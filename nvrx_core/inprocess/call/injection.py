"""The wrapped function as the user wrote it: the form of `Wrapper(...)`, its signature, the injected `CallWrapper`.

`bind` checks a call of it; the `BoundFunction` that it returns is what each iteration enters.
"""

from __future__ import annotations

import difflib
import inspect
import os
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final

from nvrx_core.inprocess.call.handles import CallHandles
from nvrx_core.process.forks import EndedInChild
from nvrx_core.values import value

__all__ = ["NAMES", "BoundFunction", "bind", "parameters_for", "refuse_arguments", "refuse_shape"]

NAMES: Final = ("call_wrapper", "inprocess_call_wrapper")
_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_SHAPES: Final = (
    (inspect.iscoroutinefunction, "an async function", "asyncio.run({name}(...))"),
    (inspect.isasyncgenfunction, "an async generator function", "asyncio.run(...) over {name}(...)"),
    (inspect.isgeneratorfunction, "a generator function", "for item in {name}(...): ..."),
)


@value
class BoundFunction:
    """The wrapped function with the arguments of one call.

    Attributes:
        function: as the user wrote it.
        args: its positional arguments.
        kwargs: its other arguments.
        places: the places in `args` that take the `CallWrapper`.
        names: the parameters that take it by name.
        new_handle: makes the `CallWrapper` of an iteration.
        rank_pid: the process that the function was called in.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    places: tuple[int, ...]
    names: tuple[str, ...]
    new_handle: Callable[[CallHandles], object]
    rank_pid: int

    def enter(self, handles: CallHandles) -> Any:
        """Run the function, with a `CallWrapper` of its own; return its result.

        Raises:
            EndedInChild: with its outcome, in a child of `os.fork`.
            BaseException: the exception of the function.
        """
        try:
            handle = self.new_handle(handles)
            result = self.function(
                *(handle if place in self.places else given for place, given in enumerate(self.args)),
                **{**self.kwargs, **dict.fromkeys(self.names, handle)},
            )
        except BaseException as error:  # boundary: in a child, the wrapper passes it through
            if os.getpid() != self.rank_pid:
                raise EndedInChild(error=error) from None
            raise
        if os.getpid() != self.rank_pid:
            raise EndedInChild(result)
        return result


def refuse_arguments(signature: inspect.Signature, given: tuple[object, ...], named: Mapping[str, object]) -> None:
    """Refuse arguments that `Wrapper` does not have: such without a name, and unknown names.

    Raises:
        TypeError: with what to write instead.
    """
    if given:
        if callable(given[0]):
            name = getattr(given[0], "__qualname__", given[0])
            raise TypeError(f"Wrapper takes its parameters by name; to wrap {name}, write @Wrapper() above it")
        raise TypeError(f"Wrapper takes its parameters by name, not {given[0]!r}; write Wrapper(name=...)")
    for name in named.keys() - signature.parameters:
        close = difflib.get_close_matches(name, signature.parameters, 1, 0.5)
        instead = f"write {close[0]}=" if close else f"it has {', '.join(signature.parameters)}"
        raise TypeError(f"Wrapper has no parameter {name}; {instead}")


def refuse_shape(fn: object) -> None:
    """Refuse what is no function, or one whose call returns before its body has run: that body would be unprotected.

    Raises:
        TypeError: with what to wrap instead.
    """
    name = getattr(fn, "__qualname__", type(fn).__qualname__)
    if isinstance(fn, classmethod | staticmethod):
        kind = type(fn).__name__
        raise TypeError(f"Wrapper wraps a function, and {name} is a {kind}; write @{kind} above @Wrapper()")
    if not callable(fn):
        raise TypeError(f"Wrapper wraps a function, not {fn!r}; write Wrapper()(train), and call what it returns")
    for is_of_shape, shape, body in _SHAPES:
        if is_of_shape(fn) or is_of_shape(getattr(fn, "__call__", None)):  # noqa: B004 (its shape is asked for)
            instead = body.format(name=name)
            raise TypeError(
                f"{name} is {shape}: its body would run after the wrapper has returned; "
                f"wrap a plain function whose body is: {instead}"
            )


def parameters_for(kind: type, fn: Callable[..., Any]) -> tuple[str, ...]:
    """Return the parameters of `fn` that take a `kind`: annotated with it or a union with it, or named in `NAMES`."""
    signature = _signature(fn, True, False)
    parameters = signature.parameters if signature is not None else {}
    return tuple(name for name, parameter in parameters.items() if name in NAMES or _wants(kind, parameter.annotation))


def bind(
    fn: Callable[..., Any],
    names: tuple[str, ...],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    kind: type,
    new_handle: Callable[[CallHandles], object],
) -> BoundFunction:
    """Check the arguments against the signature of `fn`; return its call in this process.

    The arguments are those of the function without the parameters `names`. Where they do not fit so, or where one is a
    `kind` itself, a positional argument may fill such a parameter.

    Raises:
        TypeError: when `fn` cannot be called so.
    """
    signature, errors = _signature(fn, False), []
    if signature is None:
        return BoundFunction(fn, args, kwargs, (), names, new_handle, os.getpid())
    for positional, places in (_placed(signature, names, args, kind), (args, ())):
        try:
            filled = signature.bind_partial(*positional).arguments
            free = tuple(name for name in names if name not in filled)
            signature.bind(*positional, **{**kwargs, **dict.fromkeys(free)})
        except TypeError as error:
            errors.append(str(error))
        else:
            return BoundFunction(fn, positional, kwargs, places, free, new_handle, os.getpid())
    raise TypeError(_called_wrongly(fn, signature, names, errors[0]))


def _placed(
    signature: inspect.Signature, names: tuple[str, ...], args: tuple[Any, ...], kind: type
) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """Return the positional arguments with a place for each of `names` that one of them would fill which is no `kind`.

    Where None is its default, a None is for the parameter itself, and no argument for the one behind it.
    """
    positional, places = list(args), []
    for place, parameter in enumerate(signature.parameters.values()):
        if place >= len(positional) or parameter.kind not in _POSITIONAL:
            break
        if parameter.name in names and not isinstance(positional[place], kind):
            if positional[place] is not None or parameter.default is not None:
                positional.insert(place, None)
            places.append(place)
    return tuple(positional), tuple(places)


def _called_wrongly(fn: Callable[..., Any], signature: inspect.Signature, names: tuple[str, ...], why: str) -> str:
    name = getattr(fn, "__qualname__", fn)
    own = [each for each in signature.parameters.values() if each.name not in names]
    text = f"{name}(): {why}; call it as {name}{signature.replace(parameters=own, return_annotation=signature.empty)}"
    if names or not why.startswith("missing"):
        return text
    return f"{text}; a parameter gets the CallWrapper by its annotation, call_wrapper: CallWrapper, or by this name"


def _signature(fn: Callable[..., Any], *attempts: bool) -> inspect.Signature | None:
    """The signature by the first attempt that succeeds, with annotations evaluated or not; None where there is none."""
    for evaluated in attempts:
        try:
            return inspect.signature(fn, eval_str=evaluated)
        except Exception:  # boundary: any text may stand in an annotation
            continue
    return None


def _wants(kind: type, annotation: Any) -> bool:
    if annotation is kind:
        return True
    if isinstance(annotation, typing.ForwardRef):
        annotation = annotation.__forward_arg__
    if isinstance(annotation, str):  # its names cannot be evaluated, so the last one is compared
        parts = annotation.replace("Optional[", "").rstrip("]").split("|")
        return kind.__name__ in {part.strip().rpartition(".")[2] for part in parts}
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return is_union and any(_wants(kind, part) for part in typing.get_args(annotation))
