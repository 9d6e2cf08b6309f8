"""All that a coordinator knows, as a value: for its successor, and for tests that go through all states. Pure."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from nvrx_core.parsing import integer, integers, number, string
from nvrx_launcher.rendezvous.messages import NodeDescription

__all__ = ["CoordinatorState", "Phase"]


class Phase(enum.Enum):
    """What the job is about."""

    GATHERING = "gathering"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(frozen=True)
class CoordinatorState:
    """What a coordinator knows; times in seconds ago, for two hosts have two clocks.

    Attributes:
        phase: what the job is about.
        cycle, restarts: as of the coordinator.
        nodes: the nodes that are in the job.
        active: those that take part in the cycle.
        busy: those of them that are not done, or have not stopped yet.
        unhealthy: those of them that have lost a worker.
        failure: the worker's failure by which the cycle is stopped.
        gathering_for: since nodes are gathered; `-inf` for not yet.
        enough_for: since enough of them are there; `-inf` for not yet.
        is_fruitless: the cycle that is stopped ended before its first step.
        fruitless: how many cycles before have, one after the other.
        restarted: when the workers were restarted, as far as it counts.
        begins_in: seconds until the next cycle may begin; `-inf` for at any time.
    """

    phase: Phase
    cycle: int
    restarts: int
    nodes: tuple[tuple[int, NodeDescription], ...]
    active: frozenset[int]
    busy: frozenset[int]
    unhealthy: frozenset[int]
    failure: str
    gathering_for: float
    enough_for: float
    is_fruitless: bool = False
    fruitless: int = 0
    restarted: tuple[float, ...] = ()
    begins_in: float = -math.inf

    def to_json(self) -> dict[str, Any]:
        """Return it for the wire."""
        return {
            "phase": self.phase.value, "cycle": self.cycle, "restarts": self.restarts,
            "nodes": [[node, description.to_json()] for node, description in self.nodes],
            "active": sorted(self.active), "busy": sorted(self.busy), "unhealthy": sorted(self.unhealthy),
            "failure": self.failure, "gathering_for": _finite(self.gathering_for),
            "enough_for": _finite(self.enough_for), "is_fruitless": int(self.is_fruitless),
            "fruitless": self.fruitless, "restarted": list(self.restarted), "begins_in": _finite(self.begins_in),
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read it.

        Raises:
            ValueError: when it is malformed.
        """
        nodes = tuple((integer(node, 0), NodeDescription.from_json(each)) for node, each in data.get("nodes", ()))
        active, busy, unhealthy = (frozenset(integers(data.get(key), 0)) for key in ("active", "busy", "unhealthy"))
        return cls(
            Phase(data.get("phase")), integer(data.get("cycle"), 0), integer(data.get("restarts"), 0), nodes, active,
            busy, unhealthy, string(data.get("failure")), _seconds(data.get("gathering_for")),
            _seconds(data.get("enough_for")), bool(integer(data.get("is_fruitless", 0), 0)),
            integer(data.get("fruitless", 0), 0), tuple(float(number(each)) for each in data.get("restarted", ())),
            _seconds(data.get("begins_in")),
        )  # fmt: skip


def _finite(seconds: float) -> float | None:
    return None if math.isinf(seconds) else seconds


def _seconds(value: object) -> float:
    return -math.inf if value is None else float(number(value))
