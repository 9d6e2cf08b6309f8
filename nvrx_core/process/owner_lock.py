"""A lock in shared memory that reports the death of the thread that holds it.

A pidfd becomes readable only after the kernel has freed the memory of the process: after 15 ms for a small training
process, later for one with much host memory. The kernel releases a robust mutex before that (`man 2 set_robust_list`):
0.2 ms after a SIGKILL, whatever the size. The pidfd is used where there is no robust mutex, and when the holder of the
lock is not the rank.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Final

from nvrx_core.process.libc import libc

__all__ = ["OwnerLock"]

ROBUST: Final = 1
SHARED: Final = 1
ATTRIBUTE_BYTES: Final = 64


class OwnerLock:
    """A robust mutex held by one thread, on which a process forked after its creation waits.

    Raises:
        OSError: when the C library has no robust mutexes.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self._bytes = (ctypes.c_char * mmap.PAGESIZE).from_buffer(self._memory)
        self._mutex = ctypes.c_void_p(ctypes.addressof(self._bytes))
        attributes = ctypes.create_string_buffer(ATTRIBUTE_BYTES)
        self._call("pthread_mutexattr_init", attributes)
        self._call("pthread_mutexattr_setrobust", attributes, ROBUST)
        self._call("pthread_mutexattr_setpshared", attributes, SHARED)
        self._call("pthread_mutex_init", self._mutex, attributes)

    def _call(self, name: str, *arguments: object) -> None:
        try:
            error = getattr(libc(), name)(*arguments)
        except AttributeError:
            raise OSError(f"the C library has no {name}") from None
        if error:
            raise OSError(error, f"{name} failed")

    def hold(self) -> None:
        """Acquire the lock, in the thread whose death it reports."""
        self._call("pthread_mutex_lock", self._mutex)

    def release(self) -> None:
        """Release the lock, in the same thread."""
        self._call("pthread_mutex_unlock", self._mutex)

    def wait(self) -> bool:
        """Block until the holder has released the lock or died; return True if it died, also to a second waiter."""
        return bool(libc().pthread_mutex_lock(self._mutex))

    def close(self) -> None:
        """Free the memory."""
        del self._bytes
        self._memory.close()
