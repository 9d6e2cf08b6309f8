"""Starts rank monitors, each in a separate process."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from nvrx_core.fault_tolerance.config import FaultToleranceConfig
from nvrx_core.fault_tolerance.evidence import evidence_sockets
from nvrx_core.fault_tolerance.plan import RankMonitorPlan
from nvrx_core.fault_tolerance.wire import Listener, close_all
from nvrx_core.liveness.answers import AnswerWatch, Demand
from nvrx_core.parsing import MAX_RANKS
from nvrx_core.process.fork_server import STARTS_WITHIN, ForkServer
from nvrx_core.process.lifeline import is_running
from nvrx_core.process.signalled_stacks import stack_pipe
from nvrx_core.process.waiting import readable
from nvrx_core.progress.page import Page, ProgressField

__all__ = ["RankMonitorProcess", "RankMonitorServer"]

ASKED_EVERY: Final = 5.0
ANSWERS_WITHIN: Final = 5.0
"""Seconds that a fork server has to answer; it replaces a monitor that is stopped, and nothing replaces the server."""


class RankMonitorProcess:
    """A rank monitor, with the interface of `multiprocessing.Process`, as `RankMonitorServer` returns it.

    It monitors one rank after another. A monitor that is killed or stopped is replaced by its fork server; the page of
    its rank stays. Both processes end with the thread that has started them, or by `terminate`. Who starts it calls
    `poll` when `sentinel` is readable, and then `tick` when it is due: a fork server that is stopped is killed.

    Args:
        config: the configuration of the monitor.
        path: the socket that ranks connect to.
        is_restarter_logger: log the transitions of the monitor's state machine.
        env: the environment of the monitor; None: that of this process.
        launcher: the socket of the launcher, which answers for other nodes and gets hang reports; "" for none.
        job: the name of the job, for the monitor's log.
        several_nodes: the log names host and job in each line.

    Raises:
        ConfigurationError: when an entry of a mapping in `config` is wrong.
        OSError: when the socket cannot be created.

    Attributes:
        page: the page that its rank writes, also in a wrapped call.
    """

    def __init__(
        self,
        config: FaultToleranceConfig,
        path: Path,
        *,
        is_restarter_logger: bool = False,
        env: Mapping[str, str] | None = None,
        launcher: str = "",
        job: str = "",
        several_nodes: bool = False,
    ) -> None:
        config.check()
        self._listener, self._env = Listener(path), env
        self._stacks: tuple[int, ...] = stack_pipe()
        self._questions = evidence_sockets() if launcher and config.hang_verdict else ()
        self.page = Page.create(MAX_RANKS)
        self._fork_server: ForkServer | None = None
        self._watch: AnswerWatch | None = None
        self._plan = RankMonitorPlan(
            page=self.page.fileno(),
            listener=self._listener.fileno(),
            path=str(path),
            stacks=self._stacks,
            questions=self._questions,
            launcher=launcher,
            interval=config.workload_check_interval,
            termination_signal=int(config.rank_termination_signal),
            log_level=config.log_level,
            log_format=config.log_format,
            job=job,
            several_nodes=several_nodes,
            is_restarter_logger=is_restarter_logger,
            config=config.to_dict(),
        )

    def start(self) -> None:
        """Start it, and wait until ranks can connect.

        Raises:
            OSError: when the program cannot be started.
            ForkServerError: when no monitor is ready in time.
        """
        self.spawn()
        self.await_ready()

    def spawn(self) -> None:
        """Start it; ranks that connect before it is ready wait.

        Raises:
            OSError: when the program cannot be started.
        """
        command = [sys.executable, "-m", "nvrx_core.fault_tolerance", self._plan.to_json()]
        keep = (self.page.fileno(), self._listener.fileno(), *self._stacks, *self._questions)
        self._fork_server = ForkServer.spawn(command, keep, dies_with_caller=True, env=self._env)
        self._watch = AnswerWatch(ASKED_EVERY, ANSWERS_WITHIN, starts_within=STARTS_WITHIN, now=time.monotonic())

    def await_ready(self) -> None:
        """Wait until ranks can connect.

        Raises:
            ForkServerError: when no monitor is ready in time.
        """
        if self._fork_server is not None:
            self._fork_server.await_ready()

    def stop(self) -> None:
        """End it; `start` starts another one, which continues from the page."""
        if self._fork_server is not None:
            self._fork_server.end(0.0)
            self._fork_server = self._watch = None

    def poll(self) -> str | None:
        """Return why the monitor was replaced; "" when it can no longer be replaced, None if nothing has changed."""
        if self._fork_server is None:
            return None
        if self._watch is not None and readable([self._fork_server.channel], 0.0):
            self._watch.answered(now=time.monotonic())
        return self._fork_server.poll()

    @property
    def deadline(self) -> float:
        """When `tick` is due, monotonic seconds."""
        return math.inf if self._watch is None else self._watch.deadline

    def tick(self, *, now: float) -> bool:
        """Ask the fork server for a sign of life now and then; return False if it does not answer, and was killed.

        Nothing replaces the monitor then, which has ended with it: `stop` and `start`.
        """
        if self._watch is None or self._fork_server is None:
            return True
        match self._watch.tick(now=now):
            case Demand.ASK:
                self._fork_server.ask()
            case Demand.REPLACE:
                self._fork_server.kill()
                return False
            case _:
                pass
        return True

    @property
    def pid(self) -> int:
        """The pid of the present monitor; 0 for none. It changes when the monitor is replaced."""
        return 0 if self._fork_server is None else self.page[ProgressField.RANK_MONITOR_PID]

    @property
    def is_started(self) -> bool:
        """Whether it was started, and not stopped since."""
        return self._fork_server is not None

    @property
    def sentinel(self) -> int:
        """A descriptor that becomes readable when the monitor was replaced, or can no longer be replaced.

        Raises:
            ValueError: when it is not running.
        """
        if self._fork_server is None:
            raise ValueError("the rank monitor is not running")
        return self._fork_server.channel.fileno()

    @property
    def exitcode(self) -> int | None:
        """None while it runs, then 0, however it has ended."""
        return None if self.is_alive() else 0

    def is_alive(self) -> bool:
        """Whether the monitor runs."""
        return bool(self.pid) and is_running(self.pid)

    def join(self, timeout: float | None = None) -> None:
        """Wait until the monitor and its replacements have exited, for `timeout` seconds at most."""
        while self._fork_server is not None and not self._fork_server.ended:
            if not readable([self.sentinel], timeout):
                return
            self.poll()

    def terminate(self) -> None:
        """End the monitor permanently, and remove its socket; also `kill` and `close`."""
        self.stop()
        self._listener.close()
        self.page.close()
        close_all((*self._stacks, *self._questions))
        self._stacks = self._questions = ()

    kill = close = terminate


class RankMonitorServer:
    """Starts rank monitors, for a launcher: one for each local rank, before the rank."""

    @staticmethod
    def run_in_subprocess(  # noqa: PLR0917 - the documented signature
        cfg: FaultToleranceConfig,
        ipc_socket_path: str | os.PathLike[str],
        is_restarter_logger: bool = False,
        mp_ctx: Any = None,
        env: Mapping[str, str] | None = None,
    ) -> RankMonitorProcess:
        """Start a rank monitor, and wait until ranks can connect to it.

        The monitor ends with the calling thread, or by `terminate`. It monitors the process that connects and, after
        that one has exited, the next. Monitors with sockets in the same folder, with names that end in `.socket`, query
        each other for the rank that is behind.

        Args:
            cfg: the configuration of the monitor.
            ipc_socket_path: its socket, of at most 107 bytes. Set FT_RANK_MONITOR_IPC_SOCKET to it for the rank. A
                folder that does not exist is created, for this user only.
            is_restarter_logger: log the transitions of its state machine, on standard error.
            mp_ctx: accepted and not used: the monitor is started by exec and imports no torch.
            env: its environment; None: that of this process.

        Returns:
            The running monitor.

        Raises:
            ConfigurationError: when an entry of a mapping in `cfg` is wrong.
            OSError: when the socket cannot be created, another process listens there, or the program cannot be started.
            ForkServerError: when no monitor is ready in time.
        """
        monitor = RankMonitorProcess(cfg, Path(ipc_socket_path), is_restarter_logger=is_restarter_logger, env=env)
        monitor.start()
        return monitor
