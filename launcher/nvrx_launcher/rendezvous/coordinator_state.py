"""The full state of a coordinator as a value: for its successor, and for tests that go through all states. Pure."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from nvrx_core.parsing import integer, integers, string
from nvrx_launcher.rendezvous.checkpoint_progress import ProgressState
from nvrx_launcher.rendezvous.messages import NodeDescription
from nvrx_launcher.rendezvous.restart_budget import BudgetState, finite, seconds

__all__ = ["CoordinatorState", "JobPhase"]

COMPARED: Final = ("command", "given")
"""What a node says of itself only to be compared when it says so. It is long: that of 1,500 nodes does not fit in a
request to etcd (1.5 MB)."""


class JobPhase(enum.Enum):
    """The phase of the job."""

    GATHERING = "gathering"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(frozen=True)
class CoordinatorState:
    """The state of a coordinator; times in seconds ago, because hosts do not share a clock.

    Attributes:
        phase: the phase of the job.
        cycle: the number of the present cycle, or of the next one.
        nodes: the nodes that are in the job.
        active: those that take part in the cycle.
        busy: those of them that are not done, or have not stopped yet.
        unhealthy: those of them that have lost a worker.
        budget: the restarts.
        gathering_for: for how long nodes have been gathered; `-inf` for not yet.
        enough_for: for how long enough of them have been ready; `-inf` for not yet.
        stopping_for: for how long the cycle has been stopping; `-inf` unless it is.
        failed: the nodes of the cycle all of whose workers have failed.
        misused: those all of whose workers refuse their command line.
        former: while nodes are gathered, those of the last cycle that are still in the job.
        left: hosts of the last cycle that are not, and why.
        progress: the iterations of the checkpoints.
    """

    phase: JobPhase
    cycle: int
    nodes: tuple[tuple[int, NodeDescription], ...]
    active: frozenset[int]
    busy: frozenset[int]
    unhealthy: frozenset[int]
    budget: BudgetState
    gathering_for: float
    enough_for: float
    stopping_for: float = -math.inf
    failed: frozenset[int] = frozenset()
    misused: frozenset[int] = frozenset()
    former: frozenset[int] = frozenset()
    left: tuple[tuple[str, str], ...] = ()
    progress: ProgressState = field(default_factory=ProgressState)

    def to_json(self) -> dict[str, Any]:
        """Return the wire format, without what is compared only when a node describes itself."""
        return {
            "phase": self.phase.value, "cycle": self.cycle,
            "nodes": [
                [node, {name: value for name, value in each.to_json().items() if name not in COMPARED}]
                for node, each in self.nodes
            ],
            "active": sorted(self.active), "busy": sorted(self.busy), "unhealthy": sorted(self.unhealthy),
            "budget": self.budget.to_json(), "gathering_for": finite(self.gathering_for),
            "enough_for": finite(self.enough_for), "stopping_for": finite(self.stopping_for),
            "failed": sorted(self.failed), "misused": sorted(self.misused), "former": sorted(self.former),
            "left": self.left, "progress": self.progress.to_json(),
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Parse the wire format.

        Raises:
            ValueError: when it is malformed.
        """
        nodes = tuple((integer(node, 0), NodeDescription.from_json(each)) for node, each in data.get("nodes", ()))
        active, busy, unhealthy = (frozenset(integers(data.get(key), 0)) for key in ("active", "busy", "unhealthy"))
        failed, misused, former = (frozenset(integers(data.get(key, []), 0)) for key in ("failed", "misused", "former"))
        return cls(
            JobPhase(data.get("phase")), integer(data.get("cycle"), 0), nodes, active, busy, unhealthy,
            BudgetState.from_json(data.get("budget", {})), seconds(data.get("gathering_for")),
            seconds(data.get("enough_for")), seconds(data.get("stopping_for")),
            failed, misused, former, tuple((string(host), string(reason)) for host, reason in data.get("left", ())),
            ProgressState.from_json(data.get("progress", {})),
        )  # fmt: skip
