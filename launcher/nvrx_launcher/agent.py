"""The launcher of one node: an event loop that carries out what `RestartPolicy` decides."""

from __future__ import annotations

import logging
import math
import os
import shutil
import signal
import socket
import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from nvrx_core.fault_tolerance.config import FaultToleranceConfig
from nvrx_core.fault_tolerance.data import WorkloadAction, WorkloadControlRequest
from nvrx_core.settings import environment
from nvrx_launcher.command import worker_command
from nvrx_launcher.control import Control
from nvrx_launcher.failure_report import failure_report
from nvrx_launcher.guardian import TAG, start_guardian, sweep
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.monitors import Monitors
from nvrx_launcher.options import LaunchOptions
from nvrx_launcher.output import Logs, Tee
from nvrx_launcher.restart_policy import EndJob, JobAction, RestartPolicy, StartWorkers, StopWorkers
from nvrx_launcher.signals import signal_numbers, signals_as_events
from nvrx_launcher.store_host import StoreHost
from nvrx_launcher.worker import Worker
from nvrx_launcher.worker_environment import Placement, worker_environment

__all__ = ["Agent"]

log = logging.getLogger("nvrx_launcher")
REFUSED: Final = 93
"""Exit code when a rank has asked not to be started again."""


class Agent:
    """Starts the workers of this node, watches them, and restarts them.

    Args:
        options: the job.
        config: the settings of rank monitors.
        environ: what workers inherit.
    """

    def __init__(self, options: LaunchOptions, config: FaultToleranceConfig, environ: Mapping[str, str]) -> None:
        self.options, self.config = options, config
        self._launch = uuid.uuid4().hex
        self._environ = {**environ, TAG: self._launch}
        self._loop = EventLoop()
        self._workers = dict[int, Worker]()
        self._tees = dict[int, list[Tee]]()
        self._kill_at, self._code = math.inf, -1
        self._policy = RestartPolicy(
            options.workers, options.max_restarts,
            stop_signal=signal.SIGTERM, stop_grace=options.stop_timeout, signal_grace=options.term_timeout,
        )  # fmt: skip

    def run(self) -> int:
        """Run the job; returns the exit code."""
        with ExitStack() as cleanup:
            self._prepare(cleanup)
            self._carry_out(self._policy.start())
            self._monitors.start()
            while self._code < 0:
                self._loop.turn(self._kill_at)
                if time.monotonic() >= self._kill_at:
                    self._kill()
        return self._code

    def _prepare(self, cleanup: ExitStack) -> None:
        """Acquire what a launch holds; `cleanup` gives it back."""
        cleanup.callback(self._loop.close)
        folder = Path(environment.runtime_directory()) / f"launcher-{os.getpid()}"
        folder.mkdir(mode=0o700, parents=True)
        cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        cleanup.callback(os.close, start_guardian(self._launch))
        cleanup.callback(sweep, self._launch)
        self._logs = Logs(self.options, folder, self._environ)
        self._control = Control(self._loop, folder / "launcher.ipc", self._requested)
        cleanup.callback(self._control.close)
        self._store = StoreHost("127.0.0.1")
        cleanup.callback(self._store.close)
        self._loop.watch(self._store.fileno(), self._start_store)
        self._monitors = Monitors(
            self._loop, self.config, folder, self.options.workers, world_size=self.options.workers
        )
        cleanup.callback(self._monitors.close)
        reader, read = cleanup.enter_context(
            signals_as_events(
                signal_numbers(self.options.signals), lambda n: self._carry_out(self._policy.signalled(n))
            )
        )
        self._loop.watch(reader, read)

    def _carry_out(self, actions: tuple[JobAction, ...]) -> None:
        for action in actions:
            match action:
                case StartWorkers(cycle):
                    self._start(cycle)
                case StopWorkers(signum, grace, _, reason):
                    log.warning("%s: workers are sent %s", reason, signal.Signals(signum).name)
                    self._kill_at = time.monotonic() + grace
                    self._send(signum)
                case EndJob(code, _, reason):
                    log.log(logging.INFO if code == 0 else logging.ERROR, "the job ends with code %d: %s", code, reason)
                    self._code = code

    def _start(self, cycle: int) -> None:
        placement = self._place(cycle)
        self._kill_at = math.inf
        self._logs.begin(cycle)
        for local_rank in range(self.options.workers):
            self._start_worker(placement, local_rank)

    def _start_worker(self, placement: Placement, local_rank: int) -> None:
        options, rank = self.options, placement.first_rank + local_rank
        variables = {
            **self._environ,
            **worker_environment(
                placement, local_rank, role=options.role, run_id=options.run_id, max_restarts=options.max_restarts,
                inherited=self._environ,
            ),
            **self._monitors.environment(local_rank),
            **self._control.environment(),
            "NVRX_STORE_ENDPOINT": self._environ.get("NVRX_STORE_ENDPOINT", self._store.endpoint),
            "TORCHELASTIC_ERROR_FILE": str(self._logs.error_file(placement.cycle, local_rank)),
        }  # fmt: skip
        output = self._logs.open(placement.cycle, local_rank, rank, lambda tee: self._attach(local_rank, tee))
        command = worker_command(options, local_rank, self._environ.get("PYTHON_EXEC", sys.executable))
        worker = Worker.start((local_rank, rank), command, variables, output)
        output.close()
        self._workers[local_rank] = worker
        self._loop.watch(worker.pidfd, lambda: self._exited(worker))

    def _place(self, cycle: int) -> Placement:
        options = self.options
        return Placement(
            group_rank=0, group_world_size=1, first_rank=0,
            world_size=options.workers, local_world_size=options.workers,
            master_addr=options.master_addr, master_port=options.master_port or _free_port(), agent_store=False,
            cycle=cycle,
        )  # fmt: skip

    def _attach(self, local_rank: int, tee: Tee) -> None:
        self._tees.setdefault(local_rank, []).append(tee)
        self._loop.watch(tee.reader, tee.read)

    def _exited(self, worker: Worker) -> None:
        self._loop.forget(worker.pidfd)
        code = worker.reap()
        del self._workers[worker.local_rank]
        for tee in self._tees.pop(worker.local_rank, ()):
            self._loop.forget(tee.reader)
            tee.close()
        if code and self._kill_at == math.inf:
            error_file = self._logs.error_file(self._policy.cycle, worker.local_rank)
            log.error("%s", failure_report(worker, code, error_file))
        self._carry_out(self._policy.worker_exited(worker.local_rank, code))

    def _requested(self, rank: int, request: WorkloadControlRequest) -> None:
        log.warning("rank %d asks for %s: %s", rank, request.action.name, request.description)
        if request.action is not WorkloadAction.Continue:
            reason = f"rank {rank} has asked for {request.action.name}: {request.description}"
            self._carry_out(self._policy.requested(REFUSED, reason))

    def _start_store(self) -> None:
        self._loop.forget(self._store.fileno())
        self._store.start(os.getpid())

    def _send(self, signum: int) -> None:
        for worker in self._workers.values():
            worker.send(signum)

    def _kill(self) -> None:
        log.warning("local ranks %s did not end in time and are killed", sorted(self._workers))
        self._kill_at = math.inf
        self._send(signal.SIGKILL)


def _free_port() -> int:
    with socket.create_server(("", 0)) as probe:
        return int(probe.getsockname()[1])
