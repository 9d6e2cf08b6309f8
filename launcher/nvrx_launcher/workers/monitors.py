"""The rank monitors of a node: one per local rank, started before the workers and kept running.

If the first monitors cannot be started, the launcher exits. A monitor that is lost later is restarted at once, and with
growing backoff if it fails again. The job continues meanwhile, and the log says that a rank is not monitored.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from nvrx_core import failpoint
from nvrx_core.backoff import RestartBackoff
from nvrx_core.fault_tolerance.config import FaultToleranceConfig
from nvrx_core.fault_tolerance.peers import SUFFIX, Progress
from nvrx_core.fault_tolerance.server import RankMonitorProcess
from nvrx_core.progress.page import Page, ProgressField, SectionField
from nvrx_core.progress.sampling import recent_runs
from nvrx_core.progress.stage import Stage
from nvrx_launcher.history import History
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.options import LaunchOptions

__all__ = ["RankMonitors"]

log = logging.getLogger("nvrx_launcher")
UNMONITORED_START: Final = 10.0
"""Seconds after which a worker without a monitor may have completed a step."""
MONITORED_START: Final = 60.0
"""The same for a monitored worker, which reports its steps if it reports at all."""


class RankMonitors:
    """Starts a monitor for each worker, and another one if both the monitor and its replacement are lost.

    Args:
        loop: the event loop that watches their channels.
        config: the settings of the monitors.
        launcher: the address of the launcher's socket; the monitors' sockets are in the same folder.
        options: the command line, for the number of workers.
        history: records replaced monitors.
        make: creates a monitor.
    """

    def __init__(
        self,
        loop: EventLoop,
        config: FaultToleranceConfig,
        launcher: Path,
        options: LaunchOptions,
        *,
        history: History,
        make: Callable[..., RankMonitorProcess] = RankMonitorProcess,
    ) -> None:
        self._loop, self._history = loop, history
        self._paths = [launcher.with_name(f"rank-{local_rank}{SUFFIX}") for local_rank in range(options.workers)]
        more: dict[str, Any] = {"job": options.run_id, "several_nodes": options.max_nodes > 1}
        self._monitors = [make(config, path, launcher=str(launcher), **more) for path in self._paths]
        self._starts, self._due = [RestartBackoff() for _ in self._paths], dict[int, float]()

    def start(self) -> None:
        """Start all monitors; a worker that connects to one that is not ready waits for it.

        Raises:
            OSError: when one cannot be started.
        """
        for local_rank in range(len(self._monitors)):
            self._start(local_rank, time.monotonic())

    @property
    def deadline(self) -> float:
        """When `tick` is due, monotonic seconds."""
        return min(min(self._due.values(), default=math.inf), *(monitor.deadline for monitor in self._monitors))

    def tick(self, *, now: float) -> None:
        """Start the monitors whose backoff has elapsed, and replace those whose fork servers are stopped."""
        for local_rank, monitor in enumerate(self._monitors):
            if now >= monitor.deadline and not monitor.tick(now=now):
                log.warning("the fork server of local rank %d's monitor does not answer, and was killed", local_rank)
                self._end_lost(local_rank, now)
        for local_rank in [each for each, at in self._due.items() if now >= at]:
            del self._due[local_rank]
            self._start_anew(local_rank, now)

    def environment(self, local_rank: int) -> dict[str, str]:
        """Return the variables with the address of a worker's monitor."""
        return {"FT_RANK_MONITOR_IPC_SOCKET": str(self._paths[local_rank])}

    @property
    def sockets(self) -> list[Path]:
        """The sockets of the monitors, by local rank."""
        return list(self._paths)

    def begin_cycle(self) -> None:
        """Discard the ranks of the previous cycle; their processes have exited."""
        for monitor in self._monitors:
            monitor.page.begin_rank()
            monitor.page[ProgressField.ATTACHED_PID] = monitor.page[ProgressField.DETACHED_PID] = 0

    def progress(self) -> list[Progress]:
        """Return the progress of the current cycle's ranks that are monitored and in no wrapped call; thread-safe."""
        pages = [monitor.page for monitor in self._monitors]
        monitored = [page for page in pages if page[ProgressField.ATTACHED_PID]]
        return [Progress.of_page(page) for page in monitored if page[ProgressField.STAGE] == Stage.OUTSIDE]

    def section_runs(self, section: str, most: int) -> list[tuple[int, int, list[float]]]:
        """Return the runs of a section of the monitored ranks, also of those in a wrapped call.

        Args:
            section: the name of the section.
            most: how many durations.

        Returns:
            Rank, completed runs, and the durations of the last ones in seconds.
        """
        pages = [monitor.page for monitor in self._monitors if monitor.page[ProgressField.ATTACHED_AT]]
        return [(page[ProgressField.RANK], *recent_runs(page, section, most)) for page in pages]

    def is_monitored(self, local_rank: int, pid: int) -> bool:
        """Whether a process was still monitored when it exited: it neither shut monitoring down nor exited normally."""
        page = self._monitors[local_rank].page
        return page[ProgressField.ATTACHED_PID] == pid != page[ProgressField.DETACHED_PID]

    def may_have_stepped(self, seconds: float) -> bool:
        """Whether a worker of a cycle may have completed a step, judged by heartbeats, steps, sections and time.

        Args:
            seconds: since the workers were started.
        """
        pages = [monitor.page for monitor in self._monitors]
        say_so = any(page[ProgressField.ATTACHED_PID] for page in pages)
        return seconds > (MONITORED_START if say_so else UNMONITORED_START) or any(map(_has_stepped, pages))

    def close(self) -> None:
        """End all."""
        for monitor in self._monitors:
            if monitor.is_started:
                self._loop.forget(monitor.sentinel)
            monitor.terminate()

    def _start(self, local_rank: int, now: float) -> None:
        monitor = self._monitors[local_rank]
        failpoint.hit("monitor-spawn", -1)
        monitor.spawn()
        self._starts[local_rank].started(now=now)
        self._loop.watch(monitor.sentinel, lambda: self._poll(local_rank, time.monotonic()))

    def _poll(self, local_rank: int, now: float) -> None:
        monitor = self._monitors[local_rank]
        lost = monitor.poll()
        if lost:
            log.warning("the monitor of local rank %d was replaced: %s", local_rank, lost)
            self._history.monitor_replaced(local_rank, lost)
        elif lost is not None:
            self._end_lost(local_rank, now)

    def _end_lost(self, local_rank: int, now: float) -> None:
        """End what is left of a monitor and its fork server, and start others: at once, if they ran long enough."""
        monitor = self._monitors[local_rank]
        self._loop.forget(monitor.sentinel)
        monitor.stop()
        if pause := self._starts[local_rank].failed(now=now):
            self._wait(local_rank, "the one before was lost at once", pause, now)
        else:
            log.warning("the monitor of local rank %d is lost, and is restarted", local_rank)
            self._start_anew(local_rank, now)

    def _start_anew(self, local_rank: int, now: float) -> None:
        try:
            self._start(local_rank, now)
        except OSError as error:
            self._wait(local_rank, str(error), self._starts[local_rank].failed(now=now), now)
        else:
            self._history.monitor_replaced(local_rank, "restarted")

    def _wait(self, local_rank: int, why: str, pause: float, now: float) -> None:
        text = "no rank monitor for local rank %d, which is not watched: %s; the next attempt is in %g s"
        log.error(text, local_rank, why, pause)
        self._due[local_rank] = now + pause


def _has_stepped(page: Page) -> bool:
    """Whether a rank has completed a step; a section of any name that was opened twice counts as one."""
    if page[ProgressField.HEARTBEATS] or page[ProgressField.STEP]:
        return True
    return any(page.words[slot + SectionField.COUNT] > 1 for slot in page.sections().values())
