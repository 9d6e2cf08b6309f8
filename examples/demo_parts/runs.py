"""How the training is started: as bare processes with a store beside them, or under torchrun."""

from __future__ import annotations

import shutil
import subprocess
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Self

from demo_parts.ports import LOOPBACK, free_port
from demo_parts.processes import Processes, wait_for
from demo_parts.settings import Settings
from demo_parts.signals import unsignalled

__all__ = ["NvrxRun", "Run", "StartError", "TorchrunRun"]

LEAVE_WITHIN = 5.0
"""Seconds that the monitors of the ranks have to be gone once the ranks are."""


class StartError(RuntimeError):
    """A run could not be started."""


class Run(ABC):
    """A training; a context manager that starts it, and ends it.

    Args:
        settings: what the ranks are told.

    Attributes:
        protected: whether the wrapper protects it.
        started: its processes: one for each rank, or the one that starts them all.
        left_behind: after the end, the processes that were there when none should have been.
    """

    protected: ClassVar[bool]

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.started: list[subprocess.Popen[bytes]] = []
        self.left_behind: set[int] = set()
        self._processes = Processes(Path(settings.folder))

    @abstractmethod
    def start(self) -> None:
        """Starts the processes.

        Raises:
            StartError: they cannot be started.
        """

    @abstractmethod
    def stop(self) -> None:
        """Ends what is to be ended in order; what is left after it is killed."""

    def __enter__(self) -> Self:
        for folder in (self.settings.records, self.settings.checkpoints):
            shutil.rmtree(folder, ignore_errors=True)  # of an earlier run
            folder.mkdir(parents=True)
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def exit_codes(self) -> list[int | None]:
        """The exit code of each started process, None while it runs."""
        return [process.poll() for process in self.started]

    def wait(self, seconds: float, until: int | None = None) -> bool:
        """Waits until a process ends, the descriptor `until` can be read, or the time is over.

        Returns:
            False when `until` can be read, or no process runs any more.
        """
        ended = wait_for([process.pid for process in self.started if process.poll() is None], seconds, until)
        return not ended and any(code is None for code in self.exit_codes)

    def kill(self, pid: int) -> bool:
        """Ends one process of this run; returns whether there was one of that number."""
        return self._processes.kill(pid)

    def close(self) -> None:
        """Ends what still runs; no signal interrupts it."""
        with unsignalled():
            try:
                self.stop()
            finally:
                self._processes.close()


class NvrxRun(Run):
    """Bare processes, and the store in one of its own, so that any rank may be lost.

    Args:
        settings: what the ranks are told.
        spares: how many processes wait in reserve.
    """

    protected = True

    def __init__(self, settings: Settings, spares: int) -> None:
        super().__init__(settings)
        self._count = settings.ranks + spares
        self._store: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """See `Run.start`."""
        command = ("nvrx_core.store", "--host", LOOPBACK, "--port", "0")
        self._store = self._processes.start("store", *command, stdout=subprocess.PIPE)
        assert self._store.stdout is not None
        endpoint = self._store.stdout.readline().decode().strip()
        if not endpoint:
            raise StartError(f"the store did not start; see {self._processes.log_of('store')}")
        job = {
            "MASTER_ADDR": LOOPBACK,
            "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": str(self._count),
            "NVRX_STORE_ENDPOINT": endpoint,
        }
        for rank in map(str, range(self._count)):
            environment = {**job, "RANK": rank, "LOCAL_RANK": rank}
            arguments = ("demo_parts.under_nvrx", self.settings.to_json())
            self.started.append(self._processes.start(f"rank-{rank}", *arguments, environment=environment))

    def stop(self) -> None:
        """See `Run.stop`: the monitors of the ranks leave by themselves."""
        for rank in self.started:
            rank.kill()
            rank.wait()
        store = [] if self._store is None else [self._store.pid]
        self.left_behind = self._processes.await_leaving(but=store, seconds=LEAVE_WITHIN)
        if self._store is not None:
            self._store.terminate()
            self._store.wait()


class TorchrunRun(Run):
    """The same ranks under torchrun, without the wrapper.

    With torch 2.13, torchrun shares one store between all attempts: after a restart ranks find the addresses of the
    attempt before, and often crash or hang. The variable gives each attempt a store of its own.
    """

    protected = False
    MAX_RESTARTS: ClassVar = 10
    VARIABLE: ClassVar = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"

    def start(self) -> None:
        """See `Run.start`."""
        command = (
            *("torch.distributed.run", "--standalone", "--local-addr", LOOPBACK),
            *("--nproc-per-node", str(self.settings.ranks), "--max-restarts", str(self.MAX_RESTARTS)),
            *("--log-dir", str(self.settings.records / "torchrun")),
            *("-m", "demo_parts.under_torchrun", self.settings.to_json()),
        )
        environment = {self.VARIABLE: "1"}
        self.started.append(self._processes.start("torchrun", *command, environment=environment))

    def stop(self) -> None:
        """See `Run.stop`: nothing has to be waited for."""
