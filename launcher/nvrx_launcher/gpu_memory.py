"""The memory of this node's GPUs, which is awaited before a restart: `--ft-gpu-memory-reclaim-timeout`.

NVML is asked by the program of the health checks, as a driver may not answer; the launcher waits for its descriptor.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from itertools import takewhile
from typing import Final

from nvrx_core.fault_tolerance.config import FaultToleranceConfig
from nvrx_core.health.gpu import MEMORY
from nvrx_core.health.nvml import has_driver
from nvrx_core.health.probes import DRIVER_TIMEOUT
from nvrx_core.health.result import HealthReport, Status
from nvrx_core.health.runner import HealthRunner
from nvrx_core.health.settings import HealthSettings
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.memory_reclaim import (
    MB,
    GpuMemory,
    MemoryAction,
    MemoryAwaited,
    MemoryFree,
    MemoryInUse,
    MemoryReclaim,
    MemoryUnknown,
    ReadMemory,
)
from nvrx_launcher.watched_checks import WatchedChecks

__all__ = ["NodeGpuMemory"]

log = logging.getLogger("nvrx_launcher")
DEVICES: Final = "CUDA_VISIBLE_DEVICES"
NOT_AWAITED: Final = "free GPU memory is not awaited before a restart: %s"
SETTINGS: Final = ("gpu_memory_reclaim_timeout", "gpu_memory_tolerance_mb", "gpu_memory_poll_interval")


class NodeGpuMemory:
    """Makes a node wait before a restart until the memory of its GPUs is free.

    Args:
        loop: the event loop that watches the readings.
        config: the timeout, the tolerance and the interval.
        environ: the environment of the workers, which may say which GPUs they see.
        workers: how many there are; each has one GPU.

    Attributes:
        timeout: seconds that a wait may take; 0 where there is none.
    """

    def __init__(self, loop: EventLoop, config: FaultToleranceConfig, environ: Mapping[str, str], workers: int) -> None:
        timeout, gpus = config.gpu_memory_reclaim_timeout, _visible(environ, workers)
        self._is_on = timeout > 0 and bool(gpus) and has_driver()
        self.timeout = timeout if self._is_on else 0.0
        self._policy = MemoryReclaim(
            timeout=timeout, tolerance=config.gpu_memory_tolerance_mb * MB, interval=config.gpu_memory_poll_interval
        )
        settings = HealthSettings(health_check_timeout=min(timeout or DRIVER_TIMEOUT, DRIVER_TIMEOUT))
        self._readings, self._is_reading = WatchedChecks(loop, HealthRunner(settings, gpus), self._measured), False
        is_missed = timeout > 0 and not has_driver() and not _is_default(config)
        self._notice = "this node has no NVIDIA driver" if is_missed else ""

    @property
    def is_waiting(self) -> bool:
        """Whether the node must wait."""
        return self._policy.is_waiting

    @property
    def deadline(self) -> float:
        """When `tick` is due, monotonic seconds."""
        return min(self._policy.deadline, self._readings.deadline)

    def begin(self, *, is_first: bool) -> None:
        """Handle that no worker runs; `is_first`: none has run on this node before."""
        if self._is_on:
            self._carry_out(self._policy.begin(is_first=is_first, now=time.monotonic()))
        elif self._notice and not is_first:
            log.warning(NOT_AWAITED, self._notice)
            self._notice = ""

    def tick(self, *, now: float) -> None:
        """Read again, or end the wait; `now` is what the loop's turn has returned."""
        self._readings.tick(now=now)
        self._carry_out(self._policy.tick(now=now))

    def close(self) -> None:
        """End the readings."""
        self._is_reading = False
        self._readings.close()

    def _carry_out(self, actions: tuple[MemoryAction, ...]) -> None:
        for action in actions:
            match action:
                case ReadMemory():
                    self._read()
                case MemoryAwaited(reason):
                    log.info("the restart waits for the memory of the GPUs: %s", reason)
                case MemoryFree(reason):
                    log.info("GPU memory is free %s", reason)
                case MemoryInUse(reason):
                    log.error("GPU memory is in use, and the node restarts all the same, %s", reason)
                case MemoryUnknown(reason):
                    if reason != self._notice:
                        log.warning(NOT_AWAITED, reason)
                    self._notice = reason
        if self._is_reading and not self._policy.is_waiting:  # the driver does not answer
            self.close()

    def _read(self) -> None:
        try:
            self._readings.start((MEMORY,))
        except OSError as error:
            problem = f"it cannot be read: {error.strerror}"
            self._carry_out(self._policy.measured((), problem, now=time.monotonic()))
        else:
            self._is_reading = True

    def _measured(self, report: HealthReport, now: float) -> None:
        self._is_reading = False
        self._carry_out(self._policy.measured(*_memory(report), now=now))


def _visible(environ: Mapping[str, str], workers: int) -> list[str]:
    """Return the numbers or UUIDs of the GPUs that the workers see; what follows -1 is hidden, as CUDA has it."""
    if (given := environ.get(DEVICES)) is None:
        return [str(number) for number in range(workers)]
    shown = takewhile(lambda each: each not in ("", "-1"), (each.strip() for each in given.split(",")))
    return list(shown)[:workers]


def _is_default(config: FaultToleranceConfig) -> bool:
    return all(getattr(config, name) == getattr(FaultToleranceConfig(), name) for name in SETTINGS)


def _memory(report: HealthReport) -> tuple[list[GpuMemory], str]:
    """Return the GPUs whose memory is known, and why that of others is not."""
    known = [each for each in report.results if each.status is Status.HEALTHY]
    gpus = [GpuMemory(each.subject, **dict(each.counters)) for each in known]
    return gpus, "; ".join(str(each) for each in report.results if each not in known)
