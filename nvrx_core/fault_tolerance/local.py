"""A rank monitor without a launcher of ours: started by the rank itself.

Under torchrun, SLURM or mpirun the monitor ends a hung rank, and the launcher reacts as to any dead rank. A thread of
the rank keeps the monitor running, and samples whether the main thread executes bytecode: a rank that sends no
heartbeats and uses no sections is monitored as well.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from nvrx_core.fault_tolerance.attachment import AttachedRank
from nvrx_core.fault_tolerance.client import RankMonitorClient
from nvrx_core.fault_tolerance.config import FaultToleranceConfig
from nvrx_core.fault_tolerance.peers import SUFFIX
from nvrx_core.fault_tolerance.server import RankMonitorProcess
from nvrx_core.fault_tolerance.wire import host_tag, private_directory
from nvrx_core.process.heartbeat import Heartbeat
from nvrx_core.process.helper_thread import HelperThread, HelperThreadError
from nvrx_core.process.waiting import readable
from nvrx_core.progress import monitored
from nvrx_core.progress.page import ProgressField
from nvrx_core.settings import environment

__all__ = ["LocalMonitor", "start_local_monitor"]

log = logging.getLogger("nvrx_core.fault_tolerance")
SAMPLES: Final = 20
"""Samples of the main thread in the time of the heartbeat timeout, at least."""
SAMPLED_EVERY: Final = 1.0
"""Seconds between two samples, at most."""
ALONE: Final = "alone-"
JOB_DIGITS: Final = 12
"""The folder of a process that is in no job: this, and its pid."""


class LocalMonitor:
    """Keeps the monitor of this process running, from a thread.

    Args:
        config: the configuration of the monitor.

    Attributes:
        path: the path of its socket.

    Raises:
        OSError: when there is no folder for its socket.
        ForkServerError: when no monitor can be started.
        HelperThreadError: when the thread has failed.
    """

    def __init__(self, config: FaultToleranceConfig) -> None:
        self.path, timeout = socket_path(), config.rank_heartbeat_timeout
        self._every = SAMPLED_EVERY if timeout is None else min(SAMPLED_EVERY, timeout / SAMPLES)
        self._process = RankMonitorProcess(config, self.path)
        self._wanted, self._is_over = True, False
        self._runs = False
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._answers = SimpleQueue[BaseException | None]()
        self._failure: HelperThreadError | None = None
        self._thread = HelperThread(self._run, name="nvrx-local-monitor", failed=self._fail)
        self._thread.start()
        if (error := self._answers.get()) is not None:
            self.end()
            raise error

    def pause(self) -> None:
        """End the monitor's process."""
        self._want(False)

    def resume(self) -> None:
        """Start another one."""
        if (error := self._want(True)) is not None:
            log.error("no rank monitor can be started, so this rank is not watched: %s", error)

    def end(self) -> None:
        """End the monitor permanently, and the thread."""
        self._is_over = True
        self._want(False)
        self._thread.join()
        os.close(self._wake)

    def _want(self, wanted: bool) -> BaseException | None:
        if self._failure is not None:
            return self._failure
        self._wanted = wanted
        os.eventfd_write(self._wake, 1)
        return self._answers.get()

    def _fail(self, error: HelperThreadError) -> None:
        """Handle that the thread has ended, and the monitor with it, which has the thread as its parent."""
        log.error("%s; this rank is not watched", error)
        self._failure = error
        self._answers.put(error)

    def _run(self) -> None:
        """Start, sample and end the monitor in this thread: it ends with the thread that has started it."""
        self._change()
        heartbeat = Heartbeat()
        while not self._is_over:
            watched = [self._wake, self._process.sentinel] if self._runs else [self._wake]
            ready = readable(watched, self._every if self._runs else None)
            if self._wake in ready:
                os.eventfd_read(self._wake)
                self._change()
                heartbeat = Heartbeat()  # the old one's answer is from before the pause
            elif ready:
                self._report(self._process.poll())
            elif answered := heartbeat.poll():
                self._process.page[ProgressField.SAMPLED_AT] = answered
            if self._runs and not self._process.tick(now=time.monotonic()):
                log.error("the fork server of the rank monitor does not answer, and was killed; both are restarted")
                self._restart()

    def _change(self) -> None:
        """Start or end the monitor, as requested, and report the result."""
        error = None
        try:
            if self._is_over:
                self._process.terminate()
            elif self._wanted:
                self._process.start()
            else:
                self._process.stop()
            self._runs = self._wanted
        except (OSError, RuntimeError) as failure:
            error, self._runs = failure, False
        self._answers.put(error)

    def _report(self, lost: str | None) -> None:
        if lost:
            log.warning("the rank monitor was replaced: %s", lost)
        elif lost is not None:
            log.error("the rank monitor is lost, and is restarted")
            self._restart()

    def _restart(self) -> None:
        self._process.stop()
        try:
            self._process.start()
        except (OSError, RuntimeError) as failure:
            self._runs = False
            log.error("no rank monitor can be started, so this rank is not watched: %s", failure)


def start_local_monitor(config: FaultToleranceConfig | str | os.PathLike[str] | None = None) -> RankMonitorClient:
    """Start a rank monitor for this process, under any launcher.

    A rank that hangs is ended by `rank_termination_signal`; its launcher then restarts or ends the job. A rank that
    uses neither heartbeats nor sections counts as hung when its main thread has executed no bytecode for
    `rank_heartbeat_timeout`. Where a launcher has started a monitor (`FT_RANK_MONITOR_IPC_SOCKET` is set), that one is
    used, with the launcher's configuration. A process without a launcher is rank 0. Another client of this process is
    shut down.

    Args:
        config: the configuration, or the path of a YAML file, whose values the `NVRX_FT_...` variables override; None:
            these variables, and the file that `NVRX_FT_CFG_PATH` names.

    Returns:
        A client, after `init_workload_monitoring`. The caller need not keep a reference to it.

    Raises:
        ConfigurationError: when the configuration is wrong.
        RankMonitorClientError: when a wrapped call is in progress that has started with another client, a name in
            `rank_section_timeouts` is not possible, or the launcher's monitor does not answer.
        OSError: when the folder of the monitor's socket cannot be created, or other users may enter it.
        ForkServerError: when no monitor can be started.
    """
    if config is None:
        config = FaultToleranceConfig.from_environment()
    elif not isinstance(config, FaultToleranceConfig):
        config = FaultToleranceConfig.from_yaml_file(config)
    if isinstance(earlier := monitored.current(), AttachedRank) and (local := earlier.supersede()) is not None:
        local.end()
    client = RankMonitorClient()
    if environment.rank_monitor_socket() is not None:
        client.init_workload_monitoring()
        return client
    with ExitStack() as failing:
        client.local_monitor = monitor = LocalMonitor(config)
        failing.callback(monitor.end)
        client.init_workload_monitoring()
        failing.pop_all()
    client.page[ProgressField.SAMPLED_AT] = time.monotonic_ns()
    return client


def socket_path() -> Path:
    """Return the socket path of this process's monitor, in the folder of the job's other ranks on this host.

    Raises:
        OSError: when the folder is another user's, or others can enter it.
    """
    runtime, job = private_directory(), f"{ALONE}{os.getpid()}"
    if environment.has_master():  # a name that all ranks of the job share; a socket's path must be short
        host, port = environment.master()
        job = hashlib.sha256(f"{environment.job_name()} {host} {port}".encode()).hexdigest()[:JOB_DIGITS]
    folder = runtime / f"{host_tag()}{job}"
    folder.mkdir(mode=0o700, exist_ok=True)
    _remove_dead(runtime)
    return folder / f"{os.getpid()}{SUFFIX}"


def _remove_dead(runtime: Path) -> None:
    """Remove the sockets of processes of this host that have exited, and folders that are then empty."""
    for path in runtime.glob(f"{host_tag()}*/*{SUFFIX}"):
        if path.stem.isdigit() and not Path(f"/proc/{path.stem}").exists():
            with suppress(OSError):
                path.unlink()
    alone = f"{host_tag()}{ALONE}"
    for folder in runtime.glob(f"{alone}*"):
        if folder.name != f"{alone}{os.getpid()}":
            with suppress(OSError):  # it is not empty, or gone
                folder.rmdir()
