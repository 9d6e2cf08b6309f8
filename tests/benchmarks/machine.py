"""How busy the machine is with others, so that a disturbed figure can be told from a slow one."""

from __future__ import annotations

import os
import pathlib
import resource
import threading
import time

__all__ = ["Usage", "wait_calm"]

TICK = os.sysconf("SC_CLK_TCK")
CALM = 0.1
GLANCE = 0.5


class Usage:
    """CPU time from now on: the whole machine's, and that of our own children that have ended."""

    def __init__(self) -> None:
        self._begin, self._machine, self._own = time.monotonic(), machine_seconds(), own_seconds()

    def others(self) -> float:
        """Returns how many cores were in use by processes that are not ours, on average."""
        foreign = (machine_seconds() - self._machine) - (own_seconds() - self._own)
        return max(0.0, foreign / (time.monotonic() - self._begin))


def machine_seconds() -> float:
    """Returns the CPU seconds that all cores have spent on something: idle and iowait are left out."""
    words = pathlib.Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]
    user, nice, system, _idle, _iowait, interrupts, soft_interrupts, steal = (int(word) for word in words)
    return (user + nice + system + interrupts + soft_interrupts + steal) / TICK


def own_seconds() -> float:
    """Returns the CPU seconds of this process and of all children that were waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def wait_calm(limit: float) -> None:
    """Returns when others use less than a tenth of a core, or after `limit` seconds."""
    deadline, pause = time.monotonic() + limit, threading.Event()
    while time.monotonic() < deadline:
        usage = Usage()
        pause.wait(GLANCE)
        if usage.others() < CALM:
            return
