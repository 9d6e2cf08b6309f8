"""The wait for the memory of a node's GPUs before a restart. Pure.

The driver gives the memory of a process free some time after its end. Workers that are started meanwhile may find too
little. So the node is not ready before each of its GPUs has at most the tolerance in use, or the timeout is over, which
is logged and changes nothing else.

What other programs had in use before the first workers of the node is not waited for: on a GPU that they share with the
job, the tolerance counts from there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from nvrx_core.backoff import Backoff
from nvrx_core.values import value

__all__ = [
    "GpuMemory",
    "MemoryAction",
    "MemoryAwaited",
    "MemoryFree",
    "MemoryInUse",
    "MemoryReclaim",
    "MemoryUnknown",
    "ReadMemory",
]

FIRST_PAUSE: Final = 0.1
"""Seconds between the first two readings; each further pause is twice as long, up to the interval."""
MB: Final = 1 << 20


@value
class GpuMemory:
    """The memory of a GPU, in bytes.

    Attributes:
        name: which GPU, for people.
        used: what is in use.
        total: what there is.
    """

    name: str
    used: int
    total: int


@value
class ReadMemory:
    """Read the memory of all GPUs; answer with `measured`."""


@value
class MemoryAwaited:
    """The node has to wait; `reason` has the memory of each GPU."""

    reason: str


@value
class MemoryFree:
    """The node may restart; `reason` has the memory of each GPU."""

    reason: str


@value
class MemoryInUse:
    """The node may restart, though memory is in use; `reason` has that of each GPU."""

    reason: str


@value
class MemoryUnknown:
    """The node may restart; it is unknown how much memory is in use."""

    reason: str


MemoryAction = ReadMemory | MemoryAwaited | MemoryFree | MemoryInUse | MemoryUnknown


class MemoryReclaim:
    """Decides when a node may restart.

    Args:
        timeout: seconds after which it may in any case.
        tolerance: bytes of each GPU that may be in use.
        interval: seconds between two readings, at most.

    Attributes:
        is_waiting: the node must wait.
        deadline: when `tick` is due, monotonic seconds; `inf` while the node does not wait.
    """

    def __init__(self, *, timeout: float, tolerance: float, interval: float) -> None:
        self._timeout, self._tolerance, self._pauses = timeout, tolerance, Backoff(FIRST_PAUSE, interval)
        self.is_waiting, self._is_first = False, False
        self._began, self._reads_at, self._readings = math.inf, math.inf, 0
        self._of_others, self._at_first, self._last = dict[str, int](), dict[str, int](), list[GpuMemory]()

    @property
    def deadline(self) -> float:
        """When `tick` is due, monotonic seconds."""
        return min(self._began + self._timeout, self._reads_at) if self.is_waiting else math.inf

    def begin(self, *, is_first: bool, now: float) -> tuple[MemoryAction, ...]:
        """Handle that no worker runs; a wait that has begun goes on.

        Args:
            is_first: none has run before, so that all memory in use is that of other programs.
            now: monotonic seconds.
        """
        if self.is_waiting:
            return ()
        self.is_waiting, self._is_first = True, is_first
        self._began, self._reads_at, self._readings = now, math.inf, 0
        self._at_first.clear()
        self._last.clear()
        return (ReadMemory(),)

    def measured(self, gpus: Sequence[GpuMemory], problem: str = "", *, now: float) -> tuple[MemoryAction, ...]:
        """Handle a reading.

        Args:
            gpus: those whose memory is known.
            problem: why the others are not; "" if there are none.
            now: monotonic seconds.
        """
        if not self.is_waiting:
            return ()
        self._last = list(gpus)
        for each in gpus:
            others = self._of_others.get(each.name, each.used if self._is_first else 0)
            self._of_others[each.name] = min(others, each.used)
            self._at_first.setdefault(each.name, each.used)
        if not gpus:
            return self._end(MemoryUnknown(problem or "NVML finds none of them"))
        if all(each.used <= self._allowed(each) for each in gpus):
            waited = f"{now - self._began:.1f} s after the workers' end"
            return () if self._ends_first() else self._end(MemoryFree(f"{waited}: {self._statistics()}"))
        if now >= self._began + self._timeout:
            return self.tick(now=now)
        self._readings += 1
        self._reads_at = now + self._pauses.pause(self._readings)
        return (MemoryAwaited(self._statistics()),) if self._readings == 1 else ()

    def tick(self, *, now: float) -> tuple[MemoryAction, ...]:
        """Read again, or end the wait, if that is due."""
        if now < self.deadline:
            return ()
        if now < self._began + self._timeout:
            self._reads_at = math.inf
            return (ReadMemory(),)
        if not self._last:
            return self._end(MemoryUnknown(f"the driver has not answered within {self._timeout:g} s"))
        return self._end(MemoryInUse(f"{self._timeout:g} s after the workers' end: {self._statistics()}"))

    def _end(self, action: MemoryAction) -> tuple[MemoryAction, ...]:
        self.is_waiting = False
        return (action,)

    def _ends_first(self) -> bool:
        if self._is_first:
            self.is_waiting = False
        return self._is_first

    def _allowed(self, gpu: GpuMemory) -> float:
        others = self._of_others[gpu.name]
        return self._tolerance if others <= self._tolerance else others + self._tolerance

    def _statistics(self) -> str:
        """Return the memory of each GPU, at the first reading and now, and what may be in use where it is more."""
        return ", ".join(map(self._describe, self._last))

    def _describe(self, gpu: GpuMemory) -> str:
        first, allowed = self._at_first[gpu.name], self._allowed(gpu)
        was = f"{first // MB} MB, now " if first != gpu.used else ""
        more = f" ({allowed / MB:g} MB may be)" if gpu.used > allowed else ""
        return f"{gpu.name} {was}{gpu.used // MB} of {gpu.total // MB} MB{more}"
