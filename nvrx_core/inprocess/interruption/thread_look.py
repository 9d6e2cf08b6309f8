"""What one thread can see of another: whether it waits inside a system call, and which exception it handles."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from typing import Final

__all__ = ["WaitLook", "handled", "waits_in_call"]

_ENOUGH: Final = 256
_RUNTIME_BYTES: Final = 1 << 20
_held = ctypes.PyDLL(None)  # its calls keep the interpreter's lock
_held.pread.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long]
_held.pread.restype = ctypes.c_ssize_t


class WaitLook:
    """Looks at whether a thread of this process waits inside a system call, by `/proc`.

    The look keeps the interpreter's lock, so whoever waits for one of Python's locks still waits after it: nobody can
    have released the lock meanwhile. Where `/proc` does not tell, nobody is seen to wait.

    Args:
        native_id: the thread's id in the kernel.
    """

    def __init__(self, native_id: int) -> None:
        self._fd = -1
        with suppress(OSError):
            self._fd = os.open(f"/proc/self/task/{native_id}/syscall", os.O_RDONLY | os.O_CLOEXEC)
        self._buffer = ctypes.create_string_buffer(_ENOUGH)
        self._interpreter = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))

    def waits(self) -> bool:
        """Whether it does now; a wait for the interpreter's own lock is none."""
        size = _held.pread(self._fd, self._buffer, _ENOUGH, 0) if self._fd >= 0 else 0
        interpreter = range(self._interpreter, self._interpreter + _RUNTIME_BYTES)
        return size > 0 and waits_in_call(self._buffer.raw[:size].decode(), interpreter)

    def close(self) -> None:
        """Look no more."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def waits_in_call(text: str, interpreter: range) -> bool:
    """What `/proc/PID/syscall` says (proc(5)): "running", or number and arguments; -1 is no call.

    Args:
        text: what it says.
        interpreter: the addresses of the interpreter's state; its lock is there.
    """
    number, *arguments = text.split()
    if not arguments or number == "-1":
        return False
    return int(arguments[0], 16) not in interpreter


def handled(ident: int) -> BaseException | None:
    """What a thread is inside an `except`, a `finally` or an `__exit__` for."""
    current: object = sys._current_exceptions().get(ident)
    if isinstance(current, tuple):  # before 3.12
        current = current[1]
    return current if isinstance(current, BaseException) else None
