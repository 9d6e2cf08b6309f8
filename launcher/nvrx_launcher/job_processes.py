"""The processes of a job on its node: none of them outlives the launcher.

While the launcher lives, it adopts what its workers leave (PR_SET_CHILD_SUBREAPER), so that all processes of the job
are below it, whatever their session, user or environment; it reaps them. When it is killed, its guardians end what is
in the job's cgroup, where there is one, and what has the launch in its environment.

A process that calls `elastic_launch` is not the launcher's own: it adopts nothing, has no cgroup, and only what has the
launch in its environment is found.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from nvrx_core.process.children import adopted, become_subreaper, children_of, descendants_of, reap_adopted
from nvrx_core.process.lifeline import is_running
from nvrx_launcher.guardian import Guardians
from nvrx_launcher.guardian_program import KILL_TIMEOUT, TAG, await_ends, kill, sweep
from nvrx_launcher.job_cgroup import JobCgroup
from nvrx_launcher.loop import EventLoop

__all__ = ["JobProcesses", "tagged"]

log = logging.getLogger("nvrx_launcher")
INIT: Final = 1
PASSES: Final = 20
"""Looks for processes that others have started while these were killed; each waits for `KILL_TIMEOUT` at most."""


def tagged(environ: Mapping[str, str], launch: str) -> dict[str, str]:
    """Return the environment of the processes of a launch, which may be in a worker of another launch."""
    return {**environ, TAG: ":".join(filter(None, (environ.get(TAG), launch)))}


class JobProcesses:
    """The processes of a job on this node, and the guardians that end them when the launcher is killed.

    Args:
        loop: the event loop that watches the guardians.
        launch: the name of the launch.
        folder: its runtime folder, which the guardians remove.
        is_command: this process is a launcher and nothing else.
    """

    def __init__(self, loop: EventLoop, launch: str, folder: Path, *, is_command: bool) -> None:
        self._launch, self._is_command = launch, is_command
        self._inherited = set(children_of(os.getpid()))  # of a shell that was replaced by this program, such as a tee
        self._before = set[int]()
        self._cgroup = JobCgroup.create(launch) if is_command else None
        path = None if self._cgroup is None else self._cgroup.path
        self._guardians = Guardians(loop, launch, folder, cgroup=path)

    @property
    def deadline(self) -> float:
        """When `tick` is due, monotonic seconds."""
        return self._guardians.deadline

    def start(self) -> None:
        """Start the guardians, and adopt orphans from now on.

        Raises:
            OSError: when a guardian cannot be started.
        """
        self._guardians.start()
        if not self._is_command:
            return
        if self._cgroup is not None and not self._cgroup.enter():
            self._cgroup.end()
            self._cgroup = None
        with suppress(OSError):  # a kernel without it: what has the launch in its environment is found
            become_subreaper()

    def tick(self, *, now: float) -> None:
        """Watch the guardians; `now` is what the loop's turn has returned."""
        self._guardians.tick(now=now)

    def reap(self) -> None:
        """Reap the orphans that have ended, after SIGCHLD."""
        reap_adopted()

    def begin_cycle(self) -> None:
        """Handle that no worker runs: the children that there are now are not left by those of the next cycle."""
        self._before = adopted() if self._is_command else set()

    def left(self) -> set[int]:
        """Return the running processes that the workers have left, when all of them have ended."""
        if not self._is_command:
            return set()
        roots = adopted() - self._inherited - self._before
        if os.getpid() == INIT:
            roots = {pid for pid in roots if self._is_of_job(pid)}
        return {each for root in roots for each in (root, *descendants_of(root)) if is_running(each)}

    def kill_left(self) -> list[int]:
        """Kill what the workers have left, when all of them have ended; return it."""
        return self._kill_all(self.left)

    def close(self) -> None:
        """Kill all processes of the job, then the guardians."""
        if self._is_command:
            self._kill_all(lambda: descendants_of(os.getpid(), without=self._inherited | self._guardians.pids()))
        if self._cgroup is not None:
            self._cgroup.end()
        sweep(self._launch)
        if self._is_command:
            reap_adopted()
        self._guardians.close()

    def _is_of_job(self, pid: int) -> bool:
        """Whether an orphan is the job's: PID 1 adopts those of the whole container."""
        with suppress(OSError):
            if self._cgroup is not None and self._cgroup.path.name in Path(f"/proc/{pid}/cgroup").read_text():
                return True
            return self._launch.encode() in Path(f"/proc/{pid}/environ").read_bytes()
        return False

    @staticmethod
    def _kill_all(look: Callable[[], Iterable[int]]) -> list[int]:
        """Kill the processes that a function finds, until it finds no others."""
        killed = dict[int, None]()
        for _ in range(PASSES):
            found = [pid for pid in look() if pid not in killed]
            if not found:
                break
            pidfds = [kill(pid) for pid in found]
            killed.update(dict.fromkeys(found))
            await_ends(pidfds, KILL_TIMEOUT)
        return list(killed)
