"""A profiler that wraps the trainer's profiler to observe the phases of a training.

Lightning reports the start and the end of each action of a training to `trainer.profiler`, also if the action ends by
an exception. The wrapper forwards every call: user code that inspects `trainer.profiler` sees its own profiler.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

__all__ = ["ActionListener", "PhaseProfiler"]


class ActionListener(NamedTuple):
    """The calls for an action: before it begins, after it has ended, and after an exception has ended it."""

    begin: Callable[[], object]
    end: Callable[[], object]
    fail: Callable[[], object]


class PhaseProfiler:
    """Calls the listener of an action, if it has one, and the wrapped profiler.

    Args:
        inner: the trainer's profiler.
        find: returns the listener of an action; None for none. It is called once for each name.
    """

    _inner: Any
    _find: Callable[[str], ActionListener | None]
    _listeners: dict[str, ActionListener | None]
    _handled: BaseException | None

    def __init__(self, inner: Any, find: Callable[[str], ActionListener | None]) -> None:
        own = self.__dict__
        own["_inner"], own["_find"], own["_listeners"], own["_handled"] = inner, find, {}, None

    @property  # type: ignore[misc]
    def __class__(self) -> type[Any]:
        """The class of the wrapped profiler, for `isinstance`."""
        return type(self.__dict__["_inner"])

    def profile(self, action_name: str) -> AbstractContextManager[Any]:
        """Return a context for an action."""
        listener = self._listener(action_name)
        context: AbstractContextManager[Any] = self._inner.profile(action_name)
        return context if listener is None else _heard(listener, context)

    def start(self, action_name: str) -> None:
        """Report the start of an action."""
        if (listener := self._listener(action_name)) is not None:
            self.__dict__["_handled"] = sys.exc_info()[1]
            listener.begin()
        self._inner.start(action_name)

    def stop(self, action_name: str) -> None:
        """Report the end of an action."""
        try:
            self._inner.stop(action_name)
        finally:
            if (listener := self._listener(action_name)) is not None:
                (listener.fail if self._has_failed() else listener.end)()

    def _has_failed(self) -> bool:
        """Whether an exception propagates through `stop`; the StopIteration that ends the data does not count."""
        error = sys.exc_info()[1]
        return error is not None and error is not self._handled and not isinstance(error, StopIteration)

    def unwrap(self) -> Any:
        """Return the wrapped profiler."""
        return self._inner

    def _listener(self, action: str) -> ActionListener | None:
        listeners = self._listeners
        try:
            return listeners[action]
        except KeyError:
            found = listeners[action] = self._find(action)
            return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_inner"], name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.__dict__["_inner"], name, value)


@contextmanager
def _heard(listener: ActionListener, context: AbstractContextManager[Any]) -> Iterator[Any]:
    try:
        listener.begin()
        with context as value:
            yield value
    except BaseException:  # boundary: the user's training, whose exception goes on
        listener.fail()
        raise
    listener.end()
