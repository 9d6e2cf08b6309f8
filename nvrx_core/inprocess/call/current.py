"""The handle of the function that runs in this process, for code that does not get one as an argument.

A child of `os.fork` has a copy of the handle, but no call: a handle is valid only in the process that has set it.
"""

from __future__ import annotations

import os
from typing import Final

__all__ = ["clear", "held", "hold"]

_held: Final[dict[str, tuple[int, object]]] = {}


def hold(handle: object) -> None:
    """Record that the function is about to run with this handle."""
    _held["handle"] = os.getpid(), handle


def held() -> object | None:
    """Return the handle of the running function; None outside of one."""
    pid, handle = _held.get("handle", (0, None))
    return handle if pid == os.getpid() else None


def clear() -> None:
    """Record that the function has returned or raised."""
    _held.clear()
