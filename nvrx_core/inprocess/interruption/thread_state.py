"""The state of another thread: whether it waits inside a system call, and which exception it handles."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from typing import Final

__all__ = ["SystemCallProbe", "handled_exception", "waits_in_system_call"]

_BUFFER_BYTES: Final = 256
_RUNTIME_BYTES: Final = 1 << 20
_held = ctypes.PyDLL(None)  # its calls hold the GIL
_held.pread.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long]
_held.pread.restype = ctypes.c_ssize_t


class SystemCallProbe:
    """A probe that reads from `/proc` whether a thread of this process waits inside a system call.

    The probe holds the GIL, so a thread that waits for a Python lock still waits after it: no thread can have released
    the lock meanwhile. Where `/proc` is not available, no thread counts as waiting.

    Args:
        native_id: the kernel thread id.
    """

    def __init__(self, native_id: int) -> None:
        self._fd = -1
        with suppress(OSError):
            self._fd = os.open(f"/proc/self/task/{native_id}/syscall", os.O_RDONLY | os.O_CLOEXEC)
        self._buffer = ctypes.create_string_buffer(_BUFFER_BYTES)
        self._interpreter = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))

    def waits(self) -> bool:
        """Return whether the thread waits; a wait for the GIL does not count."""
        size = _held.pread(self._fd, self._buffer, _BUFFER_BYTES, 0) if self._fd >= 0 else 0
        interpreter = range(self._interpreter, self._interpreter + _RUNTIME_BYTES)
        return size > 0 and waits_in_system_call(self._buffer.raw[:size].decode(), interpreter)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def waits_in_system_call(text: str, interpreter: range) -> bool:
    """Return whether a thread waits in a system call: "running", or number and arguments; -1 is no call (proc(5)).

    Args:
        text: the content of `/proc/PID/syscall`.
        interpreter: the addresses of the interpreter's state, which contains the GIL.
    """
    number, *arguments = text.split()
    if not arguments or number == "-1":
        return False
    return int(arguments[0], 16) not in interpreter


def handled_exception(ident: int) -> BaseException | None:
    """Return the exception that a thread handles in an `except`, a `finally` or an `__exit__`."""
    current: object = sys._current_exceptions().get(ident)
    if isinstance(current, tuple):  # before 3.12
        current = current[1]
    return current if isinstance(current, BaseException) else None
