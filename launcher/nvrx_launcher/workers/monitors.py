"""The rank monitors of a node: one for each local rank, started once, kept running."""

from __future__ import annotations

import logging
from pathlib import Path

from nvrx_core import failpoint
from nvrx_core.fault_tolerance.config import FaultToleranceConfig
from nvrx_core.fault_tolerance.peers import SUFFIX, Progress
from nvrx_core.fault_tolerance.server import RankMonitorProcess
from nvrx_core.progress.page import ProgressField
from nvrx_core.progress.stage import Stage
from nvrx_launcher.history import History
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.options import LaunchOptions

__all__ = ["Monitors"]

log = logging.getLogger("nvrx_launcher")


class Monitors:
    """Starts a monitor for each worker, and another one when both it and what replaces it are lost.

    Args:
        loop: where their channels are watched.
        config: how to watch.
        launcher: where this launcher listens; they listen beside it.
        options: how many workers there are.
        history: told of monitors that are replaced.
    """

    def __init__(
        self, loop: EventLoop, config: FaultToleranceConfig, launcher: Path, options: LaunchOptions, *, history: History
    ) -> None:
        self._loop, self._history = loop, history
        self._paths = [launcher.with_name(f"rank-{local_rank}{SUFFIX}") for local_rank in range(options.workers)]
        self._monitors = [RankMonitorProcess(config, path, launcher=str(launcher)) for path in self._paths]

    def start(self) -> None:
        """Start all; a worker that connects to one that is not ready waits for it."""
        for local_rank in range(len(self._monitors)):
            self._start(local_rank)

    def environment(self, local_rank: int) -> dict[str, str]:
        """Return what a worker finds its monitor by."""
        return {"FT_RANK_MONITOR_IPC_SOCKET": str(self._paths[local_rank])}

    def begin_cycle(self) -> None:
        """Forget the ranks of the cycle before; their processes are gone."""
        for monitor in self._monitors:
            monitor.page.begin_rank()
            monitor.page[ProgressField.ATTACHED_PID] = monitor.page[ProgressField.DETACHED_PID] = 0

    def progress(self) -> list[Progress]:
        """Return how far those of the present cycle are that are monitored, and in no wrapped call; from any thread."""
        pages = [monitor.page for monitor in self._monitors]
        monitored = [page for page in pages if page[ProgressField.ATTACHED_PID]]
        return [Progress.of_page(page) for page in monitored if page[ProgressField.STAGE] == Stage.OUTSIDE]

    def is_monitored(self, local_rank: int, pid: int) -> bool:
        """Whether a process was monitored to its end: it has neither ended its monitoring, nor ended in order."""
        page = self._monitors[local_rank].page
        return page[ProgressField.ATTACHED_PID] == pid != page[ProgressField.DETACHED_PID]

    def close(self) -> None:
        """End all."""
        for monitor in self._monitors:
            if monitor.is_started:
                self._loop.forget(monitor.sentinel)
            monitor.terminate()

    def _start(self, local_rank: int) -> None:
        monitor = self._monitors[local_rank]
        failpoint.hit("monitor-spawn", -1)
        monitor.spawn()
        self._loop.watch(monitor.sentinel, lambda: self._poll(local_rank))

    def _poll(self, local_rank: int) -> None:
        monitor = self._monitors[local_rank]
        lost = monitor.poll()
        if lost:
            log.warning("the monitor of local rank %d was replaced: %s", local_rank, lost)
            self._history.monitor_replaced(local_rank, lost)
        elif lost is not None:
            log.warning("the monitor of local rank %d is lost, and is started anew", local_rank)
            self._loop.forget(monitor.sentinel)
            monitor.stop()
            self._start(local_rank)
