"""A cgroup for the processes of a job, where this process may make one: no process of the job can leave it unseen.

It needs version 2 of the cgroups with `cgroup.kill` (Linux 5.14), and the right to make a cgroup below the launcher's
own: root has it, also in a container whose `/sys/fs/cgroup` is writable, and so has the user of a delegated cgroup. The
launcher moves into it, and all that it starts is there from the beginning. It has no controllers: the limits are those
of the cgroup around it.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from nvrx_launcher.guardian_program import kill_cgroup, remove_cgroup

__all__ = ["JobCgroup"]

PREFIX: Final = "nvrx-"
EMPTY_FOR: Final = 60.0
"""Seconds since it was made after which an empty cgroup is a leftover; a launcher that starts has not moved in yet."""


class JobCgroup:
    """The cgroup of a job.

    Args:
        path: its folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, launch: str) -> JobCgroup | None:
        """Make one, for `enter`; return None where this process may not.

        Args:
            launch: the name of the launch.
        """
        own = own_cgroup()
        if own is None or not os.access(own / "cgroup.procs", os.W_OK):
            return None
        for left in own.glob(f"{PREFIX}*"):  # by a launcher that was killed with its guardians
            with suppress(OSError):
                if time.time() - left.stat().st_mtime > EMPTY_FOR:
                    left.rmdir()
        path = own / f"{PREFIX}{launch}"
        try:
            path.mkdir()
        except OSError:
            return None
        if not os.access(path / "cgroup.kill", os.W_OK):
            with suppress(OSError):
                path.rmdir()
            return None
        return cls(path)

    def enter(self) -> bool:
        """Move this process into it; return whether that was possible."""
        return _move_to(self.path)

    def end(self) -> None:
        """Move this process out of it, kill all others in it, and remove it."""
        if _move_to(self.path.parent):
            kill_cgroup(str(self.path))
        remove_cgroup(str(self.path))


def own_cgroup() -> Path | None:
    """Return the folder of this process's cgroup of version 2; None where none is mounted."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        path = next(line.removeprefix("0::") for line in lines if line.startswith("0::"))
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
            fields, _, kind = line.partition(" - ")
            if kind.split()[0] == "cgroup2":
                root, mounted = fields.split()[3:5]
                return Path(mounted) / Path(path).relative_to(root)
    return None


def _move_to(folder: Path) -> bool:
    try:
        (folder / "cgroup.procs").write_text("0", encoding="ascii")
    except OSError:
        return False
    return True
