"""A process that becomes an orphan without a copy of its memory.

A child of vfork(2) runs in the memory of its parent, which the kernel suspends until the child has exited, called exec,
or the parent is killed. The child here kills its parent: it keeps the memory, has a pid of its own, and is adopted by
init or the nearest subreaper. With a second fork instead, the page tables would be copied and freed once more: 12 ms of
CPU time where torch is imported.

The parent never runs again, so the child may return from the function that called vfork. Its C library has the parent's
thread id, which the kernel would clear at the parent's end (CLONE_CHILD_CLEARTID): locks compare it with that of their
holder, so it must not change. A process that is forked later gets its own.
"""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress
from typing import Final

from nvrx_core.process.lifeline import open_pidfd, send

__all__ = ["Orphan"]

_SET_TID_ADDRESS: Final = {"x86_64": 218, "aarch64": 96}
"""The number of set_tid_address(2), which has no function in the C library."""
_CHECK: Final = 0
"""The signal that only checks whether the process may be signalled, kill(2)."""


class Orphan:
    """A request to be no child of the process that forked this one; created before the fork.

    The loader's lock, which this takes, may be held for ever in the child by a thread that the child lacks.
    """

    def __init__(self) -> None:
        self._library, self._call = ctypes.PyDLL(None), _SET_TID_ADDRESS.get(os.uname().machine)

    def become(self) -> None:
        """Continue in a process whose parent has exited; for a single-threaded process.

        Raises:
            OSError: when there can be no further process.
        """
        parent = open_pidfd(os.getpid())
        if self._is_in_child(parent):
            send(parent, [signal.SIGKILL])
        elif os.fork():
            os._exit(0)
        os.close(parent)

    def _is_in_child(self, parent: int) -> bool:
        """Return True in a child that has the memory of this process; False in this process where there can be none."""
        with suppress(OSError, AttributeError):  # one that cannot be killed would run again; no vfork in the C library
            signal.pidfd_send_signal(parent, _CHECK)
            vfork = self._library.vfork
            return self._call is not None and self._library.syscall(self._call, None) > 0 and bool(vfork() == 0)
        return False
