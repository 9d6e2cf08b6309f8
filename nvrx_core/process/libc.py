"""The C library, for system calls that Python lacks."""

from __future__ import annotations

import ctypes
import functools

__all__ = ["libc"]


@functools.cache
def libc() -> ctypes.CDLL:
    """Return the C library; `ctypes.get_errno` has the error of the thread's last call."""
    return ctypes.CDLL(None, use_errno=True)
