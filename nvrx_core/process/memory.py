"""Memory of a machine and of a process's cgroup: what is free, and whether the kernel's OOM killer has killed."""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["MemoryKills", "available_bytes"]

MOUNT: Final = Path("/sys/fs/cgroup")
COUNT: Final = "oom_kill"
MEMINFO: Final = Path("/proc/meminfo")
LIMITS: Final = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
"""Files of a cgroup, v2 and v1."""


def available_bytes(meminfo: Path = MEMINFO, mount: Path = MOUNT) -> int:
    """Return the memory that this process can have: of the machine, and within the limit of its container.

    Args:
        meminfo: the kernel's account of the machine.
        mount: the mount point of the cgroups.
    """
    lines = meminfo.read_text().splitlines()
    free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    for folder in (mount, mount / "memory"):
        for limit, usage in LIMITS:
            try:
                used = int((folder / usage).read_text()) - _reclaimable(folder / "memory.stat")
                free = min(free, int((folder / limit).read_text()) - used)
            except (OSError, ValueError):  # there is no such file, or the limit is "max"
                continue
    return max(0, free)


class MemoryKills:
    """The OOM kill counter of a process's cgroup: `memory.events`, or `memory.oom_control` of cgroup v1.

    The cgroup is looked up on creation, because that of an exited process is not available.

    Args:
        pid: the process.
        mount: the mount point of the cgroups.
    """

    def __init__(self, pid: int, mount: Path = MOUNT) -> None:
        self._file = next((file for file in _candidates(pid, mount) if _count(file) is not None), None)
        self.note()

    def count(self) -> int:
        """Return how many processes of the cgroup the OOM killer has killed; 0 where the kernel does not report it."""
        return (self._file and _count(self._file)) or 0

    def note(self) -> None:
        """Store the present count."""
        self._before = self.count()

    def rose(self) -> bool:
        """Return whether a process was killed since the last `note`."""
        return self.count() > self._before


def _reclaimable(file: Path) -> int:
    """Return the pages of files in a cgroup that the kernel gives back when they are needed."""
    pairs = dict(line.split() for line in file.read_text().splitlines())
    return int(pairs.get("total_inactive_file", pairs.get("inactive_file", 0)))


def _candidates(pid: int, mount: Path) -> list[Path]:
    """Return the possible counter files: below the path that the kernel reports, or at the mount in a namespace.

    A cgroup of version 2 without the memory controller counts in the next one above it that has it.
    """
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found = list[Path]()
    for _, controllers, path in (line.split(":", 2) for line in lines):
        for place in (path.lstrip("/"), ""):
            if "memory" in controllers.split(","):
                found.append(mount / "memory" / place / "memory.oom_control")
            elif not controllers:
                found += [mount / above / "memory.events" for above in (Path(place), *Path(place).parents)]
    return found


def _count(file: Path) -> int | None:
    try:
        pairs = dict(line.split() for line in file.read_text(encoding="utf-8", errors="replace").splitlines())
        return int(pairs[COUNT])
    except (OSError, KeyError, ValueError):
        return None
