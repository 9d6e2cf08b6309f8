"""When a node is ready for a cycle: it is healthy, the memory of its GPUs is free, and its last checkpoint is known."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass

from nvrx_core.fault_tolerance.config import FaultToleranceConfig
from nvrx_core.health.policy import Exclude, MayJoin
from nvrx_launcher.checkpoint_iteration import CheckpointIteration
from nvrx_launcher.gpu_memory import NodeGpuMemory
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.node_health import NodeHealth
from nvrx_launcher.options import LaunchOptions
from nvrx_launcher.rendezvous_settings import OURS

__all__ = ["Readiness", "Ready"]

log = logging.getLogger("nvrx_launcher")


@dataclass(frozen=True)
class Ready:
    """The node is ready, and the coordinator is told so.

    Attributes:
        cycle: the cycle that it has left.
        reason: why it joins again; "" for no particular reason.
    """

    cycle: int
    reason: str


class Readiness:
    """Checks what a node needs before it takes part in a cycle, and its health meanwhile.

    Args:
        health: the health of the node.
        memory: the memory of its GPUs.
        checkpoint: the iteration of the last checkpoint.
    """

    def __init__(self, health: NodeHealth, memory: NodeGpuMemory, checkpoint: CheckpointIteration) -> None:
        self._health, self._memory, self._checkpoint = health, memory, checkpoint
        self._pending: Ready | None = None
        self._may_join = False

    @classmethod
    def of(
        cls, loop: EventLoop, options: LaunchOptions, config: FaultToleranceConfig, environ: Mapping[str, str]
    ) -> Readiness:
        """Return that of a launcher; a rendezvous that is not ours counts no progress, and needs no checkpoint.

        Raises:
            ConfigurationError: when a setting cannot be carried out.
        """
        is_tracked = config.is_progress_tracking_enabled and options.rdzv_backend in OURS
        return cls(
            NodeHealth(loop, config, environ),
            NodeGpuMemory(loop, config, environ, options.workers),
            CheckpointIteration(loop, config.checkpoint_iteration_file if is_tracked else None),
        )

    @property
    def timeout(self) -> float:
        """Seconds that it may take until a node is ready, or is known not to be."""
        return max(self._health.timeout, self._memory.timeout)

    @property
    def deadline(self) -> float:
        """When `tick` is due, monotonic seconds."""
        if self._is_ready:
            return -math.inf
        return min(self._health.deadline, self._memory.deadline, self._checkpoint.deadline)

    @property
    def iteration(self) -> int:
        """The iteration of the last checkpoint; -1 for unknown."""
        return self._checkpoint.iteration

    @property
    def is_excluding(self) -> bool:
        """Whether the command runs that is run when the node is excluded."""
        return self._health.is_excluding

    def begin(self, cycle: int, reason: str, *, is_first: bool) -> None:
        """Begin to check what the node needs, as it has no workers; `is_first`: it has had none before."""
        if reason:
            log.warning("%s: this node joins again", reason)
        self._may_join = not self._health.begin()
        self._memory.begin(is_first=is_first)
        self._checkpoint.begin()
        self._pending = Ready(cycle, reason)

    def left(self) -> None:
        """Handle that the node leaves the job: it will not be ready."""
        self._pending = None

    def excluded(self, reason: str) -> None:
        """Run the command that is run when the node is excluded."""
        self._health.excluded(reason)

    def tick(self, *, now: float) -> None:
        """Check again, or give up, what is due; `now` is what the loop's turn has returned."""
        self._health.tick(now=now)
        self._memory.tick(now=now)
        self._checkpoint.tick(now=now)

    def events(self) -> list[Ready | Exclude]:
        """Return what has become of the node since the last call: it is ready, once, or unhealthy."""
        found = list[Ready | Exclude]()
        for event in self._health.events():
            match event:
                case MayJoin():
                    self._may_join = True
                case Exclude():
                    found.append(event)
        if self._is_ready and self._pending is not None and not found:
            found.append(self._pending)
            self._pending = None
        return found

    @property
    def _is_ready(self) -> bool:
        is_waiting = self._memory.is_waiting or self._checkpoint.is_reading
        return self._pending is not None and self._may_join and not is_waiting

    def close(self) -> None:
        """End what is under way."""
        self._checkpoint.close()
        self._memory.close()
        self._health.close()
