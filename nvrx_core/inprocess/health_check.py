"""Checks that a rank is fit for another iteration; each looks at its own rank only and raises when it is not."""

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
    """Checks this rank, before each iteration and after each interruption."""

    @abstractmethod
    def __call__(self, state: FrozenState) -> FrozenState:
        """Check.

        Raises:
            Exception: any, when the rank is unfit.
        """


class CudaHealthCheck(HealthCheck):
    """Waits until the current CUDA device has done all its work; does nothing in a process that has not used CUDA.

    It synchronises twice: in a thread, so that a device that hangs is noticed; then in the caller's, which meets the
    errors of kernels that failed in between.

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
            TimeoutError: nvrx's, when the device is not done within the timeout.
            RuntimeError: torch's, when the device or its context is broken.
        """
        if cuda_device() is not None:
            synchronize = sys.modules["torch"].cuda.synchronize
            call_bounded(synchronize, self.timeout, type(self).__name__)
            synchronize()
        return state


class FaultCounter(HealthCheck):
    """Counts the faults of this rank's own wrapped function; what other ranks caused does not count.

    Args:
        max_rank_faults: how many are allowed; None for any number.

    Attributes:
        faults: how many there were.

    Raises:
        ValueError: when the limit is negative.
    """

    def __init__(self, max_rank_faults: int | None = None) -> None:
        limit = max_rank_faults
        require(limit is None or limit >= 0, "max_rank_faults", limit, "at least 0, or None for no limit")
        self.max_rank_faults = limit
        self.faults = 0

    def __call__(self, state: FrozenState) -> FrozenState:
        """Count.

        Raises:
            FaultCounterExceeded: when there were more faults than allowed.
        """
        self.faults += state.fn_exception is not None
        limit = self.max_rank_faults
        if limit is not None and self.faults > limit:
            message = f"initial rank {state.initial_rank} has failed {self.faults} times, max_rank_faults={limit}"
            raise FaultCounterExceeded(message, faults=self.faults, limit=limit)
        return state


class _NotYet(HealthCheck):
    """A check of hardware that this version cannot look at; it says so once and finds nothing.

    Args:
        device_index: the device to check, None for that of the local rank.
    """

    looks_at: ClassVar[str]

    def __init__(self, device_index: int | None = None) -> None:
        self.device_index = device_index
        self._said = False

    def __call__(self, state: FrozenState) -> FrozenState:
        """Pass."""
        if not self._said:
            log.warning("%s is off: this version cannot ask for %s", type(self).__name__, self.looks_at)
            self._said = True
        return state


class ChainedGPUHealthCheck(_NotYet):
    """The GPU's own word on whether it must be reset; off in this version, with one warning."""

    looks_at = "a GPU's recovery action"


class ChainedNVLHealthCheck(_NotYet):
    """The state of a GPU's NVLinks; off in this version, with one warning."""

    looks_at = "the state of NVLinks"


class ChainedNicHealthCheck(_NotYet):
    """Link losses of the network device next to a GPU; off in this version, with one warning."""

    looks_at = "a network device's link losses"
