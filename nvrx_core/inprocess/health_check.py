"""Health checks: each checks its own rank before the next iteration, and raises if the rank is unhealthy."""

from __future__ import annotations

import logging
import sys
from abc import ABC, abstractmethod
from datetime import timedelta
from typing import ClassVar

from nvrx_core.errors import FaultCounterExceeded, require
from nvrx_core.process.bounded import call_bounded, cuda_device
from nvrx_core.rank_assignment.base import FrozenState

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


class _NotImplementedCheck(HealthCheck):
    """A hardware check that this version does not implement; it logs one warning and passes.

    Args:
        device_index: the device to check, None for that of the local rank.
    """

    checked: ClassVar[str]

    def __init__(self, device_index: int | None = None) -> None:
        self.device_index = device_index
        self._warned = False

    def __call__(self, state: FrozenState) -> FrozenState:
        """Pass."""
        if not self._warned:
            log.warning("%s is disabled: this version cannot check %s", type(self).__name__, self.checked)
            self._warned = True
        return state


class ChainedGPUHealthCheck(_NotImplementedCheck):
    """A check of the GPU's recovery action; disabled in this version, with one warning."""

    checked = "a GPU's recovery action"


class ChainedNVLHealthCheck(_NotImplementedCheck):
    """A check of the NVLinks of a GPU; disabled in this version, with one warning."""

    checked = "the state of NVLinks"


class ChainedNicHealthCheck(_NotImplementedCheck):
    """A check for link losses of the network device next to a GPU; disabled in this version, with one warning."""

    checked = "a network device's link losses"
