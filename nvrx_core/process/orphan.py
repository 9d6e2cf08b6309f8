"""Orphaning a process without copying its memory.

A child of vfork(2) runs in the memory of its parent, which the kernel suspends until the child has exited, called exec,
or the parent is killed. The child here kills its parent: it keeps the memory, has its own pid, and is adopted by init
or the nearest subreaper. A second fork instead would copy and free the page tables once more, which takes 12 ms of CPU
time in a process that has imported torch.

The parent never runs again, so the child may return from the function that called vfork. Its C library has the parent's
thread id, which the kernel would clear at the parent's end (CLONE_CHILD_CLEARTID): locks compare it with that of their
holder, so it must not change. A process that is forked later gets its own.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

from nvrx_core.process.lifeline import open_pidfd, send

__all__ = ["DeviceMappings", "Orphan", "mapped"]

_SET_TID_ADDRESS: Final = {"x86_64": 218, "aarch64": 96}
"""The number of set_tid_address(2), for which the C library has no function."""
_CHECK: Final = 0
"""The signal that only checks whether the process may be signalled, kill(2)."""
_MAPPING: Final = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) .* (/dev/nvidia\S*)$", re.MULTILINE)
DEVICES: Final = "/dev/nvidia"
CONTROL: Final = Path("/dev/nvidiactl")
"""The driver's control device, without which no process uses another of its devices."""
MAPS: Final = Path("/proc/self/maps")


class Orphan:
    """A handle to leave the process that forked this one; created before the fork.

    Creating it takes the dynamic loader's lock, to look up functions; another thread may hold the lock at the fork, and
    in the child it would never be released.
    """

    def __init__(self) -> None:
        library, self._call = ctypes.PyDLL(None), _SET_TID_ADDRESS.get(os.uname().machine)
        self._vfork, self._syscall = getattr(library, "vfork", None), library.syscall
        self._devices = DeviceMappings()

    def become(self) -> None:
        """Continue in a process whose parent has exited, without the devices; for a single-threaded process.

        Raises:
            OSError: when there can be no further process.
        """
        parent = open_pidfd(os.getpid())
        if self._is_in_child(parent):
            send(parent, [signal.SIGKILL])
        elif os.fork():
            os._exit(0)
        os.close(parent)
        self._devices.release()

    def _is_in_child(self, parent: int) -> bool:
        """Return True in a child that shares this process's memory; False in this process if vfork failed."""
        if self._vfork is None or self._call is None:
            return False
        with suppress(OSError):  # the parent cannot be killed and would run again
            signal.pidfd_send_signal(parent, _CHECK)
            return bool(self._syscall(self._call, None) > 0 and self._vfork() == 0)
        return False


class DeviceMappings:
    """A handle to remove the mappings of devices in a forked process; created before the fork: it takes a lock.

    A mapping keeps its device file open, and the driver keeps what the process has on the device until the file is
    closed: the memory of a killed process would remain in use for as long as a child of it lives.
    """

    def __init__(self) -> None:
        self._unmap = ctypes.PyDLL(None).munmap
        self._unmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)

    def release(self) -> None:
        """Remove the mappings of NVIDIA's devices; the process must not use a device from then on."""
        if not CONTROL.exists():
            return
        maps = MAPS.read_text(encoding="utf-8", errors="replace")
        for first, end in mapped(maps) if DEVICES in maps else ():
            self._unmap(first, end - first)


def mapped(maps: str) -> list[tuple[int, int]]:
    """Return the address ranges of the devices in the text of /proc/<pid>/maps, proc(5)."""
    return [(int(first, 16), int(end, 16)) for first, end, _ in _MAPPING.findall(maps)]
