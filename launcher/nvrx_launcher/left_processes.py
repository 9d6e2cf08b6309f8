"""What the workers of a node have left: named and ended when they are done, killed at a restart."""

from __future__ import annotations

import functools
import logging
import os
import signal
import time
from contextlib import suppress

from nvrx_core.process.children import name_processes
from nvrx_core.process.lifeline import open_pidfd, send, survivor
from nvrx_launcher.job_processes import JobProcesses
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.stopping import Stopping, StopStep

__all__ = ["LeftProcesses"]

log = logging.getLogger("nvrx_launcher")


class LeftProcesses:
    """What workers have left.

    Args:
        loop: the event loop that watches it.
        processes: the processes of the job.
        workers_stop_timeout: seconds that it has to end when it is sent SIGTERM, as workers have.
        names: log what is killed, too.
    """

    def __init__(
        self, loop: EventLoop, processes: JobProcesses, workers_stop_timeout: float, *, names: bool = False
    ) -> None:
        self._loop, self._processes, self._timeout, self._names = loop, processes, workers_stop_timeout, names
        self._stopping = Stopping()
        self._watched, self._killed = dict[int, int](), set[int]()

    @property
    def deadline(self) -> float:
        """When `tick` is due, monotonic seconds."""
        return self._stopping.deadline

    @property
    def is_any(self) -> bool:
        """Whether the end of processes is awaited."""
        return bool(self._watched)

    def workers_done(self) -> None:
        """Handle that all workers of the node have exited with code 0."""
        self._look()
        if self._watched:
            self._stopping.left(self._timeout, now=time.monotonic())

    def tick(self, *, now: float) -> None:
        """Ask what is left to end, or kill it, if that is due."""
        match self._stopping.tick(now=now):
            case StopStep.ASK:
                self._look()
                text = "workers that are done have left processes, which are sent SIGTERM, and killed after %g s: %s"
                log.warning(text, self._timeout, name_processes(self._watched))
                for pidfd in self._watched.values():
                    send(pidfd, [signal.SIGTERM, signal.SIGCONT])
            case StopStep.KILL:
                log.warning(
                    "what workers have left did not end in time and is killed: %s", name_processes(self._watched)
                )
                self.kill()
            case _:
                pass

    def kill(self) -> None:
        """Kill what the workers have left; none of them runs."""
        while self._watched:
            self._forget(next(iter(self._watched)))
        self._stopping.ended()
        if self._names:
            self._name()
        if killed := self._processes.kill_left():
            log.debug("what the workers had left was killed: pids %s", killed)
        if self._names:
            self._killed.update(killed)

    def _name(self) -> None:
        """Log what is about to be killed; what was before, when its node became ready, survives that."""
        left = sorted(self._processes.left())
        if new := [pid for pid in left if pid not in self._killed]:
            log.warning("workers have left processes, which are killed: %s", name_processes(new))
        if survivors := [pid for pid in left if pid in self._killed]:
            log.error("of what workers have left, %s", "; ".join(map(survivor, survivors)))
        self._killed.clear()

    def _look(self) -> None:
        for pid in self._processes.left():
            if pid not in self._watched:
                with suppress(OSError):  # it has ended
                    self._watched[pid] = open_pidfd(pid)
                    self._loop.watch(self._watched[pid], functools.partial(self._ended, pid))

    def _ended(self, pid: int) -> None:
        self._forget(pid)
        if not self._watched:
            self._look()
        if not self._watched:
            self._stopping.ended()

    def _forget(self, pid: int) -> None:
        pidfd = self._watched.pop(pid)
        self._loop.forget(pidfd)
        os.close(pidfd)
