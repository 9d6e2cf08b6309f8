"""The processes of a run: the store, outside the ranks so that any rank may be lost, and the ranks.

Invariant: whatever happens, no process of a run outlives `Run.close`. All of them, and what they start in turn, carry
the run's name in their environment, by which they are found.
"""

from __future__ import annotations

import os
import random
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Self

from demo_parts.settings import Settings

__all__ = ["ENDING", "Run", "StartError"]

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that end a run early."""
LOOPBACK = "127.0.0.1"
LEAVE_WITHIN = 5.0
"""Seconds that the processes of a run have to be gone once its ranks are."""

EXAMPLES = Path(__file__).resolve().parents[1]


class StartError(RuntimeError):
    """A run could not be started."""


class Run:
    """Starts a store and the ranks; a context manager that ends them.

    Args:
        settings: what the ranks are told.
        ranks: how many ranks are started.

    Attributes:
        left_behind: after the end, the processes that were there when none should have been.
    """

    def __init__(self, settings: Settings, ranks: int) -> None:
        self.name = f"demo-{secrets.token_hex(8)}"
        self.left_behind: list[int] = []
        self._settings = settings
        self._count = ranks
        self._ranks: list[subprocess.Popen[bytes]] = []
        self._store: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def exit_codes(self) -> list[int | None]:
        """The exit code of each rank, None while it runs."""
        return [rank.poll() for rank in self._ranks]

    def wait(self, seconds: float) -> bool:
        """Waits until a rank has ended, or the time is over; returns whether ranks are running."""
        poll = select.poll()
        running = [os.pidfd_open(rank.pid) for rank in self._ranks if rank.poll() is None]
        for pidfd in running:
            poll.register(pidfd, select.POLLIN)
        poll.poll(seconds * 1000)
        for pidfd in running:
            os.close(pidfd)
        return any(code is None for code in self.exit_codes)

    def log_of(self, name: str) -> Path:
        """Where the output of `store` or `rank-<initial rank>` goes."""
        return Path(self._settings.folder) / f"{name}.log"

    def close(self) -> None:
        """Ends what still runs; no signal interrupts it."""
        with _undisturbed():
            for rank in self._ranks:
                rank.kill()
                rank.wait()
            self._await_leaving()
            if self._store is not None:
                self._store.terminate()
                self._store.communicate()
            for pid in self._processes():
                self.left_behind.append(pid)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _start(self) -> None:
        self._store = self._spawn("store", "nvrx_core.store", "--host", LOOPBACK, "--port", "0", stdout=subprocess.PIPE)
        assert self._store.stdout is not None
        endpoint = self._store.stdout.readline().decode().strip()
        if not endpoint:
            raise StartError(f"the store did not start; see {self.log_of('store')}")
        meeting = {
            "MASTER_ADDR": LOOPBACK,
            "MASTER_PORT": str(_free_port()),
            "WORLD_SIZE": str(self._count),
            "NVRX_STORE_ENDPOINT": endpoint,
        }
        for rank in map(str, range(self._count)):
            place = {**meeting, "RANK": rank, "LOCAL_RANK": rank}
            self._ranks.append(
                self._spawn(f"rank-{rank}", "demo_parts.train", self._settings.to_json(), environment=place)
            )

    def _spawn(
        self,
        name: str,
        module: str,
        *arguments: str,
        environment: Mapping[str, str] = MappingProxyType({}),
        stdout: int | None = None,
    ) -> subprocess.Popen[bytes]:
        """Runs a module in a session of its own: Ctrl-C reaches only the demo, which ends the others."""
        path = os.pathsep.join(filter(None, (str(EXAMPLES), os.environ.get("PYTHONPATH"))))
        common = {"PYTHONPATH": path, "NVRX_JOB_ID": self.name, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        with self.log_of(name).open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", module, *arguments],
                env={**os.environ, **common, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log if stdout is None else stdout,
                stderr=log,
                start_new_session=True,
            )

    def _await_leaving(self) -> None:
        """Waits until all processes but the store are gone, within bounds."""
        until = time.monotonic() + LEAVE_WITHIN
        store = set() if self._store is None else {self._store.pid}
        while (staying := self._processes() - store) and time.monotonic() < until:
            _wait_for_end(min(staying), until - time.monotonic())

    def _processes(self) -> set[int]:
        """All processes of this run that live, wherever they come from."""
        mark = f"NVRX_JOB_ID={self.name}".encode()
        return {
            int(path.parent.name)
            for path in Path("/proc").glob("[0-9]*/environ")
            if mark in _content(path).split(b"\0")
        }


@contextmanager
def _undisturbed() -> Iterator[None]:
    """The signals that end the demo wait."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _content(path: Path) -> bytes:
    """The file's content; nothing when its process is gone or another user's."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _wait_for_end(pid: int, seconds: float) -> None:
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    select.select([pidfd], [], [], seconds)
    os.close(pidfd)


def _free_port() -> int:
    """Below the range from which outgoing connections get their ports: one of them could take it meanwhile."""
    while True:
        port = random.randrange(12_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind((LOOPBACK, port))
            return port
