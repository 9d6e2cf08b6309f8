"""Ends what a launcher that has died has left: `python guardian_program.py LAUNCHER FD LAUNCH FOLDER CGROUP`.

LAUNCHER is its pid, FD a socket to it, LAUNCH the name of the launch, FOLDER its runtime folder, and CGROUP the cgroup
of the job, "" for none. The kernel kills the launcher's own children with it (`start_guarded`). What these have started
may be in other sessions; it is in the cgroup, and it has the launch in its environment. A launcher in a worker of
another one adds its launch to that of the other, so that the outer one finds its processes as well.

A guardian answers each byte of the launcher by one: a process that is stopped does not. Where several guard a launcher,
the first that is done ends the others, which may be stopped.

This file is run by path and imports only the standard library.
"""

import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress

__all__ = [
    "KILL_TIMEOUT",
    "SENT_TO_ALL",
    "TAG",
    "await_ends",
    "descendants",
    "kill",
    "kill_cgroup",
    "main",
    "processes",
    "remove_cgroup",
    "sweep",
]

TAG = "NVRX_LAUNCH_ID"
"""The variable that all processes of a launch have: its name, after those of the launches around it."""
BETWEEN = ":"
SWEEP_TIMEOUT = 10.0
KILL_TIMEOUT = 0.05
"""Seconds that the processes killed in one pass have until the next pass looks for others."""
EMPTY_TIMEOUT = 1.0
SENT_TO_ALL = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Those of `nvrx_core.process.signals`."""


def main() -> None:
    """Wait for the end of the launcher, and end what it has left."""
    launcher, fd, launch, folder, cgroup = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
    for number in SENT_TO_ALL:
        signal.signal(number, signal.SIG_IGN)
    _leave(cgroup)
    _await_end(launcher, fd)
    kill_cgroup(cgroup)
    sweep(launch)
    _remove(folder)
    remove_cgroup(cgroup)
    for pid in _guardians(launch):
        kill(pid)


def _await_end(launcher: int, fd: int) -> None:
    """Answer the launcher until it has ended."""
    try:
        pidfd = os.pidfd_open(launcher)
    except ProcessLookupError:
        return
    waiting = select.poll()
    waiting.register(pidfd, select.POLLIN)
    waiting.register(fd, select.POLLIN)
    while os.getppid() == launcher:
        for ready, _ in waiting.poll():
            if ready == pidfd:
                return
            try:
                asked = os.read(fd, 64)
                os.write(fd, asked)
            except OSError:
                asked = b""
            if not asked:  # other code in the launcher's process has closed it
                waiting.unregister(fd)


def sweep(launch: str) -> None:
    """Kill all processes of a launch, and what these have started, but this process."""
    end, killed = time.monotonic() + SWEEP_TIMEOUT, set[int]()
    while (found := _family(_tagged(launch)) - killed) and time.monotonic() < end:
        pidfds = [kill(pid) for pid in found]
        killed |= found
        await_ends(pidfds, KILL_TIMEOUT)


def await_ends(pidfds: list[int], within: float) -> None:
    """Wait until processes have ended, and close their descriptors.

    Args:
        pidfds: the descriptors; -1 for a process that is gone.
        within: seconds.
    """
    end, waiting = time.monotonic() + within, select.poll()
    left = {pidfd for pidfd in pidfds if pidfd >= 0}
    for pidfd in left:
        waiting.register(pidfd, select.POLLIN)
    while left and (timeout := end - time.monotonic()) > 0:
        for pidfd, _ in waiting.poll(timeout * 1000):
            waiting.unregister(pidfd)
            os.close(pidfd)
            left.remove(pidfd)
    for pidfd in left:
        os.close(pidfd)


def kill(pid: int) -> int:
    """Kill a process; return a descriptor that is readable when it has ended, -1 if it is gone."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return -1
    with suppress(OSError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    return pidfd


def _tagged(launch: str) -> set[int]:
    """Return the running processes whose environment has a launch, but this process."""
    start, found = f"{TAG}=".encode(), set[int]()
    for pid in _pids():
        with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            for entry in file.read().split(b"\0"):
                if entry.startswith(start) and launch.encode() in entry[len(start) :].split(BETWEEN.encode()):
                    found.add(pid)
    return found - {os.getpid()}


def _guardians(launch: str) -> set[int]:
    """Return the other guardians of a launch."""
    found = set[int]()
    for pid in _pids():
        with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
            if launch.encode() in words and os.fsencode(__file__) in words:
                found.add(pid)
    return found - {os.getpid()}


def _family(found: set[int]) -> set[int]:
    """Return processes with all that they have started: these may have cleared their environment."""
    parents = processes() if found else {}
    return (descendants(found, parents) | found) - {os.getpid()}


def descendants(roots: set[int], parents: Mapping[int, int]) -> set[int]:
    """Return the processes below others.

    Args:
        roots: these.
        parents: by process, its parent.
    """
    below, found = dict[int, list[int]](), set[int]()
    for pid, parent in parents.items():
        below.setdefault(parent, []).append(pid)
    left = list(roots)
    while left:
        new = [pid for pid in below.get(left.pop(), ()) if pid not in found]
        found.update(new)
        left += new
    return found


def processes() -> dict[int, int]:
    """Return the parent of each process that has not ended, from /proc/<pid>/stat (proc(5))."""
    found = dict[int, int]()
    for pid in _pids():
        with suppress(OSError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
            state, parent = file.read().rpartition(b")")[2].split()[:2]
            if state not in (b"Z", b"X"):
                found[pid] = int(parent)
    return found


def _pids() -> Iterator[int]:
    return map(int, filter(str.isdigit, os.listdir("/proc")))


def _leave(cgroup: str) -> None:
    """Leave the job's cgroup, in which a guardian is that was started to replace another one."""
    with suppress(OSError), open("/proc/self/cgroup", encoding="utf-8") as file:
        if cgroup and os.path.basename(cgroup) in file.read():
            with open(os.path.join(os.path.dirname(cgroup), "cgroup.procs"), "w", encoding="utf-8") as procs:
                procs.write("0")


def kill_cgroup(cgroup: str) -> None:
    """Kill all processes of a cgroup and those below it, and wait for their end; "": do nothing."""
    if not cgroup:
        return
    with suppress(OSError), open(os.path.join(cgroup, "cgroup.events"), encoding="utf-8") as events:
        with open(os.path.join(cgroup, "cgroup.kill"), "w", encoding="utf-8") as file:
            file.write("1")
        end, waiting = time.monotonic() + EMPTY_TIMEOUT, select.poll()
        waiting.register(events, select.POLLPRI)
        while "populated 1" in events.read() and (timeout := end - time.monotonic()) > 0:
            waiting.poll(timeout * 1000)
            events.seek(0)


def remove_cgroup(cgroup: str) -> None:
    """Remove an empty cgroup, and those below it."""
    if cgroup:
        for folder, _, _ in os.walk(cgroup, topdown=False):
            with suppress(OSError):
                os.rmdir(folder)


def _remove(folder: str) -> None:
    import shutil

    if folder:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
