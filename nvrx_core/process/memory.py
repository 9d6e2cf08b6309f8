"""Whether the kernel killed a process for want of memory: the count of its cgroup rises with each such kill."""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["MemoryKills"]

MOUNT: Final = Path("/sys/fs/cgroup")
COUNT: Final = "oom_kill"


class MemoryKills:
    """The count of a process's cgroup, from `memory.events`, or `memory.oom_control` of the first version.

    It is the cgroup of now: that of a process which has ended cannot be asked for.

    Args:
        pid: the process.
        mount: where the cgroups are mounted.
    """

    def __init__(self, pid: int, mount: Path = MOUNT) -> None:
        self._file = next((file for file in _candidates(pid, mount) if _count(file) is not None), None)
        self.note()

    def count(self) -> int:
        """Processes of the cgroup that the kernel has killed; 0 where it does not say."""
        return (self._file and _count(self._file)) or 0

    def note(self) -> None:
        """Note the count of now."""
        self._before = self.count()

    def rose(self) -> bool:
        """Whether one was killed since the last note."""
        return self.count() > self._before


def _candidates(pid: int, mount: Path) -> list[Path]:
    """Where the count may be: below the path that the kernel tells, or at the mount where a namespace hides it."""
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
                found.append(mount / place / "memory.events")
    return found


def _count(file: Path) -> int | None:
    try:
        pairs = dict(line.split() for line in file.read_text(encoding="utf-8", errors="replace").splitlines())
        return int(pairs[COUNT])
    except (OSError, KeyError, ValueError):
        return None
