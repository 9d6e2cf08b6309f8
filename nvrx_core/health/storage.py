"""Checks of storage: Lustre's own health, the mounts of Lustre and NFS, and paths that a job needs.

Each may block for good, where a server is gone: `probes.py` runs them in processes that can be left behind.
"""

from __future__ import annotations

import itertools
import os
import stat
from pathlib import Path
from typing import Final

from nvrx_core.health.result import CheckResult, Status

__all__ = ["STORAGE", "check_lustre", "check_mount", "check_path", "mounts_in"]

STORAGE: Final = "storage"
DISTRIBUTED: Final = frozenset({"lustre", "nfs", "nfs4"})
MOUNT_TABLE: Final = Path("/proc/self/mountinfo")
LUSTRE: Final = Path("/sys/fs/lustre/health_check")
BLOCK: Final = 4096
"""Bytes of a file that are read, and entries of a directory that are listed."""


def mounts_in(table: str) -> list[str]:
    """Return where Lustre and NFS are mounted, from the text of /proc/<pid>/mountinfo (proc(5)); no mount is touched.

    A mount that another one hides is left out.
    """
    found = dict[str, str]()
    for line in table.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")[0]
        if len(fields) > 4 and kind:
            found[_unescaped(fields[4])] = kind
    return [path for path, kind in found.items() if kind in DISTRIBUTED]


def _unescaped(path: str) -> str:
    """Return a path in which blank, tab, newline and backslash are not written as octal numbers."""
    for code in ("\\040", "\\011", "\\012", "\\134"):
        path = path.replace(code, chr(int(code[1:], 8)))
    return path


def check_lustre(file: Path = LUSTRE) -> CheckResult:
    """Return what Lustre says of itself; a node without Lustre has no such file."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")[:BLOCK].strip()
    except FileNotFoundError:
        return CheckResult(STORAGE, "Lustre", Status.UNKNOWN, f"there is no {file}", is_absent=True)
    except OSError as error:
        return CheckResult(STORAGE, "Lustre", Status.UNKNOWN, f"{file}: {error.strerror}")
    is_healthy = text.lower() == "healthy"
    reason = f"{file} says {' '.join(text.split())!r}"
    return CheckResult(STORAGE, "Lustre", Status.HEALTHY if is_healthy else Status.UNHEALTHY, reason)


def check_mount(path: str) -> CheckResult:
    """Ask the server of a mount; one that denies the listing of the directory has answered."""
    try:
        os.statvfs(path)
        with os.scandir(path) as entries:
            next(entries, None)
    except PermissionError:
        pass
    except OSError as error:
        return CheckResult(STORAGE, path, Status.UNHEALTHY, str(error.strerror))
    return CheckResult(STORAGE, path, Status.HEALTHY, "the mount answers")


def check_path(path: str) -> CheckResult:
    """Read up to 4 KiB of a file, list a directory, ask for the status of anything else."""
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISREG(mode):
            with open(path, "rb", buffering=0) as file:
                reason = f"{len(file.read(BLOCK))} bytes of the file are read"
        elif stat.S_ISDIR(mode):
            with os.scandir(path) as entries:
                count = sum(1 for _ in itertools.islice(entries, BLOCK))
            reason = f"the directory is listed, {count} entries{' or more' if count == BLOCK else ''}"
        else:
            reason = "it is there"
    except OSError as error:
        return CheckResult(STORAGE, path, Status.UNHEALTHY, str(error.strerror))
    return CheckResult(STORAGE, path, Status.HEALTHY, reason)
