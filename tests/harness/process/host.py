"""The machine under the tests, as seen from the test process: sweeping and reaping of processes.

The test process is a subreaper (`tests/conftest.py`), so no process of a job can escape it. Every process of a job
carries a tag in its environment, by which surviving ones are found.
"""

from __future__ import annotations

import fcntl
import functools
import itertools
import os
import random
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .template import TAG

__all__ = [
    "alive", "cpu_seconds", "eventually", "free_ports", "ignored", "listening", "memory_cgroup", "parent",
    "reap_orphans", "stop", "switches", "tagged", "threads",
]  # fmt: skip

PORTS, BLOCK = range(12_000, 31_000), 4
CLAIMS = os.open(Path(tempfile.gettempdir(), "nvrx-test-ports"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
"""A file with a byte for each port, which the process that has drawn it locks as long as it runs (fcntl(2))."""
LISTEN = "0A"  # the kernel's TCP_LISTEN, as /proc/net/tcp writes it


def tagged(tag: str, variable: str = TAG) -> dict[int, str]:
    """Every process, running or stopped, whose environment carries the tag: its pid, its state and command line."""
    mark = f"{variable}={tag}".encode()
    found = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with suppress(OSError):
            if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found[pid] = f"{_state(pid)} {Path(f'/proc/{pid}/cmdline').read_text().replace(chr(0), ' ')}"
    return found


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def ignored(pid: int) -> set[int]:
    """The signals that a process ignores (proc(5))."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    mask = int(fields["SigIgn"], 16)
    return {signum for signum in range(1, 65) if mask >> (signum - 1) & 1}


def alive(pid: int) -> bool:
    with suppress(OSError):
        return _state(pid) not in "ZX"
    return False


def stop(*pids: int) -> None:
    """Stop processes, and return when none of their threads runs: until then one may still answer somebody."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    tasks = itertools.chain.from_iterable(Path(f"/proc/{pid}/task").glob("*/stat") for pid in pids)
    assert all(eventually(functools.partial(_stands, task), 10.0) for task in tasks)


def _stands(stat: Path) -> bool:
    with suppress(OSError):
        return stat.read_text().rpartition(")")[2].split()[0] in "TZX"
    return True  # it has ended meanwhile


def reap_orphans(ours: Iterable[int]) -> None:
    """Reap exited adopted processes, except `ours`, which their starters wait for."""
    tasks = Path("/proc/self/task").iterdir()
    children = {int(pid) for task in tasks for pid in (task / "children").read_text().split()}
    for pid in children - set(ours):
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def listening() -> set[int]:
    """The TCP ports that somebody listens on, on any address of this machine."""
    tables = (Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6"))
    fields = [line.split() for table in tables for line in table]
    return {int(field[1].rpartition(":")[2], 16) for field in fields if field[3] == LISTEN}


def parent(pid: int) -> int:
    """The process that `pid` is a child of."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def switches(pid: int) -> int:
    """The number of voluntary context switches of a process's threads."""
    texts = ((task / "status").read_text() for task in Path(f"/proc/{pid}/task").iterdir())
    return sum(int(text.partition("\nvoluntary_ctxt_switches:")[2].split()[0]) for text in texts)


def threads(pid: int, name: str) -> int:
    """How many threads of a process have this name."""
    with suppress(OSError):
        return sum(each.read_text() == f"{name}\n" for each in Path(f"/proc/{pid}/task").glob("*/comm"))
    return 0


def cpu_seconds(pid: int) -> float:
    """The CPU time of a process's threads, without that of its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def eventually(truth: Callable[[], object], seconds: float) -> bool:
    """Whether `truth` becomes true within a timeout that only a hang exceeds."""
    end = time.monotonic() + seconds
    while not (held := bool(truth())) and time.monotonic() < end:
        time.sleep(0.02)
    return held


def free_ports(number: int = BLOCK) -> int:
    """The first of some consecutive unused ports below the kernel's ephemeral range.

    Calls take the ports in turn, so that jobs side by side do not take each other's; nor does another test process on
    this machine, between the draw and the first use.
    """
    while True:
        first = next(_firsts)
        if _claimed(first, number) and all(map(_free, range(first, first + number))):
            return first


def _claimed(first: int, number: int) -> bool:
    with suppress(OSError):
        fcntl.lockf(CLAIMS, fcntl.LOCK_EX | fcntl.LOCK_NB, number, first)
        return True
    return False


def _blocks() -> Iterator[int]:
    """The first ports of blocks, in turn, from one by chance on: other test processes take ports as well."""
    firsts = PORTS[::BLOCK]
    start = random.randrange(len(firsts))
    return itertools.cycle([*firsts[start:], *firsts[:start]])


_firsts = _blocks()


def _free(port: int) -> bool:
    with socket.socket() as probe, suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False


@contextmanager
def memory_cgroup(limit: int) -> Iterator[Path]:
    """A cgroup of either version, whose processes have so many bytes together; to be used as root."""
    first = Path("/sys/fs/cgroup/memory")
    folder = (first if first.is_dir() else first.parent) / f"nvrx-test-{os.getpid()}"
    folder.mkdir()
    try:
        (folder / ("memory.limit_in_bytes" if first.is_dir() else "memory.max")).write_text(str(limit))
        yield folder
    finally:
        folder.rmdir()


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Freeze a process, by a cgroup of either version: in version 1 a signal that is sent to it waits, SIGKILL too.

    In version 2 a frozen process can be killed: it does not stand for one in state D.
    """
    first = Path("/sys/fs/cgroup/freezer")
    folder = (first if first.is_dir() else first.parent) / f"nvrx-test-{os.getpid()}-{pid}"
    state, freeze, thaw = ("freezer.state", "FROZEN", "THAWED") if first.is_dir() else ("cgroup.freeze", "1", "0")
    folder.mkdir()
    try:
        (folder / "cgroup.procs").write_text(str(pid))
        (folder / state).write_text(freeze)
        yield
    finally:
        (folder / state).write_text(thaw)
        eventually(lambda: not alive(pid), 10.0)
        folder.rmdir()
