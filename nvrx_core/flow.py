"""Flows: coroutines that await the operations of small ports, and the driver that carries the operations out.

A flow is an `async def` over ports, each a `Protocol` whose methods return an `Awaitable`. In production, these methods
block; `@operation` marks them, and the driver calls one when the flow awaits it. In a simulation, the same flow awaits
the methods of simulated ports, and a scheduler drives it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial, wraps
from inspect import CORO_CLOSED, getcoroutinestate
from traceback import walk_tb
from types import FrameType
from typing import Any, Final, Generic, ParamSpec, TypeVar

from nvrx_core.fault.exceptions import related
from nvrx_core.process.forks import EndedInChild

__all__ = ["Flow", "operation", "run"]

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Flow = Coroutine[Any, Any, Result]
"""A flow with its result."""
_NO_LOCK: Final = nullcontext()


class _Operation(Generic[Result]):
    """A call that the driver carries out; awaited, it suspends the flow until there is its outcome."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[], Result]) -> None:
        self._call = call

    def __await__(self) -> Generator[Callable[[], Result], Result, Result]:
        return (yield self._call)


def operation(method: Callable[Parameters, Result]) -> Callable[Parameters, Awaitable[Result]]:
    """Return an awaitable form of a method that blocks: the driver calls it, outside of the flow's step."""

    @wraps(method)
    def request(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Awaitable[Result]:
        return _Operation(partial(method, *args, **kwargs))

    return request


def run(
    flow: Flow[Result],
    lock: AbstractContextManager[object] = _NO_LOCK,
    stepped: Callable[[], object] = lambda: None,
) -> Result:
    """Run the flow to its end; returns its result.

    Args:
        flow: has not begun; it awaits operations only.
        lock: held during a step of the flow, from one operation to the next. It is taken and released by C code: Python
            code of a context manager may be left by a signal handler that raises before the lock is released. If it
            cannot be taken, as where a handler raises meanwhile, the flow gets the exception in the next step; if that
            fails as well, in one without the lock.
        stepped: called after each step, without the lock; what it raises, the flow gets.

    Raises:
        BaseException: what the flow raises. What an operation raises is raised in the flow, where it is awaited, and so
            is what a signal handler raises between the two; but a child of `os.fork` passes by the flow, which is the
            rank's.
    """
    resume: Callable[[Any], Callable[[], Any]] = flow.send
    outcome: Any = None
    call: Callable[[], Any] | None = None
    in_step, failures, package = True, 0, _package_of(flow)
    try:
        while True:
            try:
                while True:
                    in_step = True
                    try:
                        with lock if failures <= 1 else _NO_LOCK:
                            call = resume(outcome)
                    finally:
                        stepped()
                    in_step, failures = False, 0
                    resume, outcome = flow.send, call()
            except EndedInChild:
                raise
            except BaseException as error:  # boundary: the flow decides what follows, until it has ended
                if getcoroutinestate(flow) != CORO_CLOSED and failures <= 1:
                    resume, outcome, failures = flow.throw, error, failures + in_step
                elif isinstance(error, StopIteration):
                    result: Result = error.value
                    return result
                else:
                    _clear_frames(error, package)
                    raise
    finally:  # the error's traceback keeps this frame, which would keep the store's connections, and the error
        del flow, lock, stepped, resume, outcome, call


def _package_of(flow: Any) -> str:
    """Return the top-level package of the flow's code."""
    return str(flow.cr_frame.f_globals["__name__"]).partition(".")[0]


def _clear_frames(error: BaseException, package: str) -> None:
    """Clear the locals of the ended flow and its operations in the tracebacks: they would keep the store's connections.

    Args:
        error: has left the flow.
        package: of the flow; a user's functions keep their locals.
    """
    for each in related(error):
        for frame, _ in walk_tb(each.__traceback__):
            if _is_in(frame, package):
                with suppress(RuntimeError):
                    frame.clear()


def _is_in(frame: FrameType, package: str) -> bool:
    module = str(frame.f_globals.get("__name__"))
    return module == __name__ or module.partition(".")[0] == package
