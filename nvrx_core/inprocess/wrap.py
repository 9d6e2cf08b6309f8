"""The wrapper: it restarts a function on all healthy ranks, inside their processes, after a fault on any rank."""

from __future__ import annotations

import functools
import inspect
import itertools
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, ParamSpec, Self, TypeVar, overload

import torch.distributed as dist

from nvrx_core.inprocess.call import current
from nvrx_core.inprocess.call.call import WrappedCall
from nvrx_core.inprocess.call.current import OneCall
from nvrx_core.inprocess.call.handles import AtomicLock, CallHandles, MonitorHandle
from nvrx_core.inprocess.call.injection import BoundFunction, bind, parameters_for, refuse_arguments, refuse_shape
from nvrx_core.inprocess.call.parameters import Parameters
from nvrx_core.inprocess.call.user_errors import plainly, print_shortened, trim
from nvrx_core.inprocess.compose import Compose
from nvrx_core.inprocess.health_check import HealthCheck
from nvrx_core.inprocess.interruption.atomic import Atomic, new_atomic
from nvrx_core.inprocess.progress_watchdog import MainThreadWatchdog
from nvrx_core.process import user_packages
from nvrx_core.progress.page import ProgressField
from nvrx_core.rank_assignment.base import FrozenState
from nvrx_core.settings.environment import check_variables
from nvrx_core.settings.parameter import parameter

__all__ = ["CallWrapper", "HealthCheckPassed", "Wrapper", "current_call"]

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")
_calls = itertools.count()


class HealthCheckPassed(Exception):
    """A name kept for code that refers to it; nvrx does not raise it."""


class CallWrapper:
    """The interface of the wrapper for the wrapped function, injected by annotation or by the name `call_wrapper`.

    Its attributes are read-only. An instance belongs to one iteration.
    """

    def __init__(self, handles: CallHandles, wrapper: Wrapper) -> None:
        self._handles, self._wrapper = handles, wrapper
        self._atomic = new_atomic(handles.function_thread, handles.state.iteration)
        self._page = handles.page
        self._store: dist.Store | None = None
        self._base_store: dist.Store | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()

    @property
    def iteration(self) -> int:
        """How often the function was restarted, 0 in the first iteration."""
        return self._handles.state.iteration

    def ping(self) -> None:
        """Report progress; from the first ping of an iteration on, the timeouts apply to pings as well.

        Raises:
            RuntimeError: after the call.
        """
        try:
            self._page.words[ProgressField.PING] = time.monotonic_ns()
        except ValueError:
            raise _after_call("ping") from None

    def suspend_pings(self) -> None:
        """Expect no ping until the next one: a part of the function begins whose duration is not bounded.

        Raises:
            RuntimeError: after the call.
        """
        try:
            self._page.words[ProgressField.PING] = 0
        except ValueError:
            raise _after_call("suspend_pings") from None

    def progress(self, step: int, *, watched: bool = True) -> None:
        """Report a completed step.

        Within an iteration, a step higher than all previous ones is a sign of life: from the first call on, the
        timeouts apply to it as well. For `no_progress_limit`, progress is a step higher than all previous ones of the
        call, across restarts.

        Args:
            step: the step.
            watched: False for steps that may lie far apart: they count for `no_progress_limit` alone, and are no sign
                of life.

        Raises:
            RuntimeError: after the call.
        """
        words = self._page.words
        try:
            if step >= words[ProgressField.STEP]:
                words[ProgressField.STEP] = step + 1
                if watched:
                    words[ProgressField.STEP_AT] = time.monotonic_ns()
        except ValueError:
            raise _after_call("progress") from None

    def atomic(self) -> Atomic:
        """Return a context that no restart interrupts; other ranks wait for its end. It can be nested."""
        return self._atomic

    @contextmanager
    def disable_hang_protection(self) -> Iterator[None]:
        """Return a context in which neither soft nor hard timeout applies to this rank. It can be nested."""
        with self._suspended(ProgressField.UNPROTECTED, ProgressField.AUTO_HEARTBEAT):
            yield

    @contextmanager
    def suspend_ping(self) -> Iterator[None]:
        """Return a context in which the timeouts apply to executed bytecode alone, not to `ping` and `progress`.

        It is for a phase that does neither and may take longer than they, such as saving a checkpoint. It can be
        nested.
        """
        with self._suspended(ProgressField.PING_SUSPENDED):
            yield

    @contextmanager
    def _suspended(self, depth: ProgressField, *automatic: ProgressField) -> Iterator[None]:
        """Keep a depth raised; at the end, the signs of life in use start again."""
        page = self._page
        page[depth] += 1
        try:
            yield
        finally:
            now = time.monotonic_ns()
            for word in (*automatic, ProgressField.PING, ProgressField.STEP_AT):
                if page[word]:
                    page[word] = now
            page[depth] -= 1

    def iteration_store(self) -> dist.Store:
        """Return a torch store for this iteration, shared by all ranks and empty at its start."""
        return self._handles.stores.iteration_store()

    def shutdown(self) -> None:
        """Do nothing after the call, which stops its threads and processes itself.

        Raises:
            RuntimeError: inside the function, which would continue unprotected; return from it instead.
        """
        if not self._handles.over.is_set():
            raise RuntimeError(
                "shutdown() inside the wrapped function: return from it, and the call ends for all ranks"
            )

    @property
    def state(self) -> FrozenState:
        """A copy of this rank's present state."""
        return self._handles.state.freeze()

    @property
    def wrapper(self) -> Wrapper:
        """The wrapper of this call."""
        return self._wrapper

    @property
    def store(self) -> dist.Store:
        """The store of `iteration_store()`, created once."""
        if self._store is None:
            self._store = self.iteration_store()
        return self._store

    @property
    def base_store(self) -> dist.Store:
        """The control store without a prefix, on its own connection; nvrx's keys begin with `nvrx/`."""
        if self._base_store is None:
            self._base_store = self._handles.stores.base_store()
        return self._base_store

    @property
    def monitor_process(self) -> MonitorHandle:
        """A handle of the monitor process: `pid`, `is_alive()`."""
        return self._handles.monitor

    @property
    def progress_watchdog(self) -> MainThreadWatchdog:
        """The thread that requests automatic heartbeats from the main thread."""
        return self._handles.watchdog

    @property
    def atomic_lock(self) -> AtomicLock:
        """`atomic()` as a lock."""
        return AtomicLock(self._atomic)


class _Anything:
    """Accepted only by a parameter without an annotation, or with `Any` or `object`."""


# No annotation takes a parameter out of the middle: for these, checkers leave the arguments unchecked.
_TakesItLater = (
    Callable[Concatenate[Any, CallWrapper, ...], Result] | Callable[Concatenate[Any, Any, CallWrapper, ...], Result]
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Wrapper(Parameters):
    """A decorator that restarts a function inside its process after a fault on any rank.

    The parameters are those of `Parameters`, and `enabled`. Each is a read-only attribute.

    Raises:
        ValueError, TypeError: for a value that violates its rule; nothing is started.
    """

    enabled: bool = parameter(True, "False returns functions as they are.", kind=bool)

    __signature__: ClassVar[inspect.Signature]
    if not TYPE_CHECKING:  # where checkers see the parameters

        @plainly
        def __new__(cls, *given: object, **named: object) -> Self:
            """Refuse `@Wrapper` without its parentheses, and unknown parameters."""
            if cls is Wrapper:
                refuse_arguments(cls.__signature__, given, named)
            return super().__new__(cls)

    def __post_init__(self) -> None:
        if not dist.is_available():
            raise ValueError("torch.distributed.is_available() is False: this torch was built without distributed")
        if self.rank_filter is not None:
            text = "rank_filter is deprecated: list it in rank_assignment=Compose(...)"
            warnings.warn(text, DeprecationWarning, stacklevel=4)  # the frames of `plainly` and `__init__`
        super().__post_init__()

    @property
    def restart_health_check(self) -> HealthCheck | Compose | None:
        """The check of a rank before it restarts: `health_check`."""
        return self.health_check

    @overload
    def __call__(self, fn: Callable[Concatenate[_Anything, ...], Result]) -> Callable[..., Result]: ...

    @overload
    def __call__(self, fn: Callable[Concatenate[CallWrapper, Arguments], Result]) -> Callable[Arguments, Result]: ...

    @overload
    def __call__(self, fn: _TakesItLater[Result]) -> Callable[..., Result]: ...

    @overload
    def __call__(self, fn: Callable[Arguments, Result]) -> Callable[Arguments, Result]: ...

    @plainly
    def __call__(self, fn: Callable[..., Result]) -> Callable[..., Result]:
        """Wrap `fn`; each call of the returned function is one restartable job of all ranks.

        Raises:
            TypeError: when `fn` is not a function, or is an async or a generator function.
        """
        refuse_shape(fn)
        if not self.enabled:
            return fn
        names = parameters_for(CallWrapper, fn)
        user_packages.note(fn)

        @functools.wraps(fn)
        def wrapped(*args: Any, **kwargs: Any) -> Result:
            call: WrappedCall | None = None
            try:
                with OneCall():
                    bound, call = self._prepare(fn, names, args, kwargs)
                    result: Result = call.run(bound)
                    current.ended(call.iteration)
            except BaseException as error:  # boundary: the caller sees the frames of its function, not those in between
                if call is not None:
                    current.ended(None)
                trim(error, started=call is not None)
                print_shortened(error)
                raise
            return result

        return wrapped

    def _new_handle(self, handles: CallHandles) -> CallWrapper:
        """Return the `CallWrapper` of the iteration that enters the function."""
        handle = CallWrapper(handles, self)
        current.hold(handle, handle.iteration)
        return handle

    def _prepare(
        self, fn: Callable[..., Any], names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[BoundFunction, WrappedCall]:
        """Check what can be checked before anything is started."""
        if dist.is_initialized():
            raise ValueError(
                "the wrapper needs 'not torch.distributed.is_initialized()': a process group exists already; "
                "create it inside the wrapped function, or destroy it before the call"
            )
        bound = bind(fn, names, args, kwargs, kind=CallWrapper, new_handle=self._new_handle)
        check_variables()
        return bound, WrappedCall(self, next(_calls))


def current_call() -> CallWrapper | None:
    """Return the handle of the wrapped function that runs in this process, for code that is not given one.

    It is the same object in all threads of the process, a new one in each iteration, and costs some 100 ns.

    Returns:
        The handle while the function runs; None before and after it (in `initialize` and `finalize`, too), where no
        call was wrapped, and in a child of `os.fork`.
    """
    handle = current.held()
    return handle if isinstance(handle, CallWrapper) else None


def _after_call(what: str) -> RuntimeError:
    return RuntimeError(f"{what}() after the call of the wrapped function: a CallWrapper belongs to one iteration")


Wrapper.__signature__ = inspect.Signature(
    [each for name, each in inspect.signature(Wrapper.__init__).parameters.items() if name != "self"]
)
Wrapper.__init__ = plainly(Wrapper.__init__)  # type: ignore[method-assign]
