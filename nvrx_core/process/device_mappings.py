"""The memory of devices that a process has mapped, which a child that it forks inherits.

A mapping keeps its device file open, and the driver keeps what the process has on the device until the file is closed:
the memory of a killed process would remain in use for as long as a child of it lives.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Final

__all__ = ["DeviceMappings"]

_MAPPING: Final = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) .* (/dev/nvidia\S*)$", re.MULTILINE)
DEVICES: Final = "/dev/nvidia"
CONTROL: Final = Path("/dev/nvidiactl")
"""The driver's control device, without which no process uses another of its devices."""
MAPS: Final = Path("/proc/self/maps")


class DeviceMappings:
    """A handle to remove them in a forked process; created before the fork, because it takes the loader's lock."""

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
