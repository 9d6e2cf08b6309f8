"""Exceptions that are raised in another thread, for code that does it by itself; the wrapper's own are in `interrupt`.

The interpreter raises such an exception between two bytecodes. Inside `__del__` or a weakref callback it is lost to the
code around them, but for `sys.unraisablehook`.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import CodeType

__all__ = ["async_raise", "reraise_if_unraisable"]


def async_raise(tid: int, exc_type: type[BaseException]) -> None:
    """Have the interpreter raise an exception in a thread as soon as that thread runs Python code.

    Args:
        tid: the thread's `ident`.
        exc_type: the exception's class; the interpreter makes the instance.

    Raises:
        ValueError: when there is no such thread.
    """
    if not ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(tid), ctypes.py_object(exc_type)):
        raise ValueError(f"tid={tid}: no thread has this ident; threading.get_ident() returns that of the caller")


@contextmanager
def reraise_if_unraisable(exc_type: type[BaseException]) -> Iterator[None]:
    """Return a context in which an exception of this class that could not be raised is raised again, asynchronously.

    It is raised in the thread in which it was lost. Other exceptions go to the former `sys.unraisablehook`.

    Args:
        exc_type: the class.
    """
    former = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if isinstance(unraisable.exc_value, exc_type):
            again = threading.get_ident(), type(unraisable.exc_value), hook.__code__
            threading.Thread(target=_raise_outside, args=again, name="nvrx-reraise", daemon=True).start()
        else:
            former(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = former


def _raise_outside(tid: int, exc_type: type[BaseException], code: CodeType) -> None:
    """Raise it when the thread has left this code, in which it would be lost once more."""
    while _runs(tid, code):
        threading.Event().wait(0.001)
    with suppress(ValueError):  # the thread has ended
        async_raise(tid, exc_type)


def _runs(tid: int, code: CodeType) -> bool:
    frame = sys._current_frames().get(tid)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None
