"""Health checks: each checks its own rank before the next iteration, and raises if the rank is unhealthy."""

from __future__ import annotations

import logging
import sys
from abc import ABC, abstractmethod
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

from nvrx_core.errors import FaultCounterExceeded, HealthCheckError, require
from nvrx_core.process.bounded import call_bounded, cuda_device
from nvrx_core.rank_assignment.base import FrozenState
from nvrx_core.settings import environment

if TYPE_CHECKING:
    from nvrx_core.health.settings import HealthSettings

__all__ = [
    "ChainedGPUHealthCheck", "ChainedNVLHealthCheck", "ChainedNicHealthCheck", "CudaHealthCheck", "FaultCounter",
    "FaultCounterExceeded", "HealthCheck",
]  # fmt: skip

log = logging.getLogger("nvrx_core.inprocess")


class HealthCheck(ABC):
    """A plug-in that checks this rank, before each iteration and after each interruption."""

    @abstractmethod
    def __call__(self, state: FrozenState) -> FrozenState:
        """Check.

        Raises:
            Exception: any exception, when the rank is unhealthy.
        """


class CudaHealthCheck(HealthCheck):
    """A check that synchronises the current CUDA device; it does nothing in a process that has not used CUDA.

    It synchronises twice: first in a thread with a timeout, to detect a device that hangs; then in the calling thread,
    which gets the errors of kernels that failed in between.

    Args:
        timeout: how long to wait for the device.

    Raises:
        ValueError: when the timeout is not positive.
    """

    def __init__(self, timeout: timedelta = timedelta(seconds=30)) -> None:
        require(timeout > timedelta(0), "timeout", timeout, "positive")
        self.timeout = timeout

    def __call__(self, state: FrozenState) -> FrozenState:
        """Synchronise.

        Raises:
            TimeoutError: nvrx's, when the device does not finish in time.
            RuntimeError: torch's, when the device or its context is broken.
        """
        if cuda_device() is not None:
            synchronize = sys.modules["torch"].cuda.synchronize
            call_bounded(synchronize, self.timeout, type(self).__name__)
            synchronize()
        return state


class FaultCounter(HealthCheck):
    """A check that counts the exceptions of the wrapped function on this rank; faults of other ranks do not count.

    Args:
        max_rank_faults: how many faults are allowed; None for no limit.

    Attributes:
        faults: how many faults have occurred.

    Raises:
        ValueError: when the limit is negative.
    """

    def __init__(self, max_rank_faults: int | None = None) -> None:
        limit = max_rank_faults
        require(limit is None or limit >= 0, "max_rank_faults", limit, "at least 0, or None for no limit")
        self.max_rank_faults = limit
        self.faults = 0

    def __call__(self, state: FrozenState) -> FrozenState:
        """Count a fault.

        Raises:
            FaultCounterExceeded: when there were more faults than allowed.
        """
        self.faults += state.fn_exception is not None
        limit = self.max_rank_faults
        if limit is not None and self.faults > limit:
            message = f"initial rank {state.initial_rank} has failed {self.faults} times, max_rank_faults={limit}"
            raise FaultCounterExceeded(message, faults=self.faults, limit=limit)
        return state


class _DeviceCheck(HealthCheck):
    """A check of hardware, by a process that may hang without holding up this one (`nvrx_core.health`).

    A check whose outcome is unknown, as on a node without NVML, passes, with one warning.

    Args:
        device_index: the number of the GPU in NVML; None for that of the local rank.
    """

    checked: ClassVar[str]

    def __init__(self, device_index: int | None = None) -> None:
        from nvrx_core.health.policy import Baseline  # of use to few ranks, as all of these imports

        self.device_index = device_index
        self._baseline, self._told = Baseline(), set[str]()

    def __call__(self, state: FrozenState) -> FrozenState:
        """Check.

        Raises:
            HealthCheckError: when the hardware is unhealthy.
            OSError: when no process can be started.
        """
        from nvrx_core.health.result import Status
        from nvrx_core.health.runner import check_node

        number = self.device_index
        device = environment.visible_gpu(environment.local_rank()) if number is None else str(number)
        report = self._baseline.judge(check_node(self._settings(), [self.checked], [device]))
        for each in report.results:
            if each.status is Status.UNKNOWN and str(each) not in self._told:
                log.warning("%s does not know: %s", type(self).__name__, each)
                self._told.add(str(each))
        if failures := report.failures(strict=False):
            raise HealthCheckError("; ".join(map(str, failures)), initial_rank=state.initial_rank)
        return state

    def _settings(self) -> HealthSettings:
        from nvrx_core.health.settings import HealthSettings

        return HealthSettings.from_environment(ignore_not_recognized=True)


class ChainedGPUHealthCheck(_DeviceCheck):
    """A check of the GPU by NVML: its recovery action, a lost GPU, failed row remapping, new serious Xids."""

    checked = "gpu"


class ChainedNVLHealthCheck(_DeviceCheck):
    """A check that the NVLinks of the GPU that were active in the first check still are."""

    checked = "nvlink"


class ChainedNicHealthCheck(_DeviceCheck):
    """A check that the NIC next to the GPU has not lost its link since the first check."""

    checked = "nic"

    def _settings(self) -> HealthSettings:
        settings = super()._settings()
        settings.enable_nic_healthcheck, settings.enable_nic_monitor = False, True
        return settings
