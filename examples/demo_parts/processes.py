"""The processes of a run. Invariant: whatever happens, none of them outlives `Processes.close`.

All of them, and what they start in turn, carry the run's name in their environment, by which they are found.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from demo_parts.signals import unsignalled

__all__ = ["Processes", "wait_for"]

EXAMPLES = Path(__file__).resolve().parents[1]


class Processes:
    """Starts processes, and finds and ends all that came of them.

    Args:
        folder: where their output goes.

    Attributes:
        name: the run's; no other run has it.
    """

    def __init__(self, folder: Path) -> None:
        self.name = f"demo-{secrets.token_hex(8)}"
        self._folder = folder
        self._started: list[subprocess.Popen[bytes]] = []

    def log_of(self, name: str) -> Path:
        """Where the output of a process goes."""
        return self._folder / f"{name}.log"

    def start(
        self,
        name: str,
        *arguments: str,
        environment: Mapping[str, str] = MappingProxyType({}),
        stdout: int | None = None,
    ) -> subprocess.Popen[bytes]:
        """Runs `python -m arguments` in a session of its own: Ctrl-C reaches only the demo, which ends the others."""
        path = os.pathsep.join(filter(None, (str(EXAMPLES), os.environ.get("PYTHONPATH"))))
        common = {"PYTHONPATH": path, "NVRX_JOB_ID": self.name, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        with self.log_of(name).open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "demo_parts.child", str(os.getpid()), *arguments],
                env={**os.environ, **common, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log if stdout is None else stdout,
                stderr=log,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def living(self) -> set[int]:
        """All processes of this run that live, wherever they come from."""
        return {int(path.name) for path in Path("/proc").glob("[0-9]*") if self._is_mine(path)}

    def kill(self, pid: int) -> bool:
        """Ends one process of this run; returns whether there was one of that number."""
        mine = self._is_mine(Path("/proc", str(pid)))
        if mine:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return mine

    def await_leaving(self, *, but: Iterable[int], seconds: float) -> set[int]:
        """Waits until all processes but those named are gone; returns which are not."""
        until = time.monotonic() + seconds
        while (staying := self.living().difference(but)) and time.monotonic() < until:
            wait_for([min(staying)], until - time.monotonic())
        return staying

    def close(self) -> None:
        """Ends all that is left; no signal interrupts it."""
        with unsignalled():
            while left := self.living():
                for pid in left:
                    self.kill(pid)
                wait_for(left, 1.0)
                for process in self._started:
                    process.poll()
            for process in self._started:
                process.wait()
                if process.stdout is not None:
                    process.stdout.close()

    def _is_mine(self, process: Path) -> bool:
        try:
            return f"NVRX_JOB_ID={self.name}".encode() in (process / "environ").read_bytes().split(b"\0")
        except OSError:  # it is gone, or another user's
            return False


def wait_for(pids: Iterable[int], seconds: float, until: int | None = None) -> bool:
    """Waits until one of the processes ends, `until` can be read, or the time is over; whether `until` can be read."""
    poll, opened = select.poll(), []
    for pid in pids:
        with suppress(ProcessLookupError):
            opened.append(os.pidfd_open(pid))
    for descriptor in (*opened, *(() if until is None else (until,))):
        poll.register(descriptor, select.POLLIN)
    try:
        return until in {descriptor for descriptor, _ in poll.poll(max(seconds, 0) * 1000)}
    finally:
        for descriptor in opened:
            os.close(descriptor)
