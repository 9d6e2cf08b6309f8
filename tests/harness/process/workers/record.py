"""The rank's own record of its events: one JSON line per event, written immediately.

It is independent of the wrapper's events; the oracle compares the two.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

__all__ = ["HELD", "Record", "descriptors", "settle", "usage", "usage_after"]

DIRECTORY = "NVRX_TEST_RECORDS"
HELD = ("threads", "files", "children")


class Record:
    """Appends lines to `rank-<initial rank>.jsonl`; a line is one write, so that a kill tears none."""

    def __init__(self, directory: str, initial_rank: int) -> None:
        self._path = Path(directory) / f"rank-{initial_rank}.jsonl"
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.call = 0

    @classmethod
    def of_environment(cls) -> Record:
        rank = os.environ.get("RANK", "0")
        return cls(os.environ[DIRECTORY], int(rank) if rank.isdigit() else 0)

    def __call__(self, what: str, *, at: float | None = None, **fields: object) -> None:
        moment = time.monotonic() if at is None else at
        line = {"what": what, "at": moment, "call": self.call, "pid": os.getpid(), **fields}
        os.write(self._file, (json.dumps(line) + "\n").encode())

    def await_others(self, others: int, what: str, **fields: object) -> None:
        """Wait until a number of other ranks have written such a line in this call, so that a fault finds them there.

        A restart interrupts it.
        """
        while self.others(what, **fields) < others:
            time.sleep(0.005)

    def others(self, what: str, **fields: object) -> int:
        """How many other ranks have written such a line in this call."""
        return sum(self._has(path, what, fields) for path in self._path.parent.iterdir() if path != self._path)

    def _has(self, path: Path, what: str, fields: Mapping[str, object]) -> bool:
        wanted = {"what": what, "call": self.call, **fields}
        texts = path.read_text().split("\n")[:-1]
        return any(wanted.items() <= json.loads(text).items() for text in texts if f'"{what}"' in text)


def settle() -> None:
    """Open what torch opens once and keeps, so that it does not count as the wrapper's."""
    import torch.distributed as dist

    dist.TCPStore("127.0.0.1", 0, is_master=True)


def usage_after(
    before: dict[str, int], seconds: float = 5.0, kept: Mapping[str, int] = MappingProxyType({})
) -> dict[str, int]:
    """The resources in use after pending cleanup, such as of threads that the kernel has not released yet.

    `kept` says how much more than before may remain.
    """
    most = {name: before[name] + kept.get(name, 0) for name in HELD}
    end = time.monotonic() + seconds
    while (now := usage()) and time.monotonic() < end and any(now[name] > most[name] for name in HELD):
        time.sleep(0.01)
    return now


def descriptors() -> list[str]:
    """The open files of this process, to report leaks; sockets with their addresses."""
    sockets = {line.split()[9]: " ".join(line.split()[1:4]) for line in _tcp()}
    found = []
    for number in sorted(map(int, os.listdir("/proc/self/fd"))):
        with suppress(OSError):  # the descriptor of the listing
            target = os.readlink(f"/proc/self/fd/{number}")
            inode = target.removeprefix("socket:[").removesuffix("]")
            found.append(f"{number} {target} {sockets.get(inode, '')}".strip())
    return found


def _tcp() -> list[str]:
    """The lines of /proc/net/tcp and tcp6: local and remote address, state, ..., inode."""
    files = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
    return [line for file in files if file.exists() for line in file.read_text().splitlines()[1:]]


def usage() -> dict[str, int]:
    """The resources of this process: threads, open files, children, and resident pages."""
    tasks = os.listdir("/proc/self/task")
    children = [_children(task) for task in tasks]
    return {
        "threads": len(tasks),
        "files": len(os.listdir("/proc/self/fd")) - 1,
        "children": sum(map(len, children)),
        "pages": int(Path("/proc/self/statm").read_text().split()[1]),
    }


def _children(task: str) -> list[str]:
    with suppress(OSError):  # a thread that has ended meanwhile
        return Path(f"/proc/self/task/{task}/children").read_text().split()
    return []
