"""Assigned rank and world size for Lightning's cluster environments; the only file that uses `os.environ`.

Lightning derives the rank from the local rank and the number of devices, which is wrong once a rank is lost. An
environment that follows the assignment returns the wrapper's rank and world size instead. The local rank never changes,
because it selects the device.

The assignment belongs to the process: a Trainer created after a fit that lost ranks starts with the remaining ranks.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from nvrx_lightning.subclassing import become

__all__ = [
    "assign",
    "assign_from_variables",
    "follow_assignment",
    "publish",
    "reserve_ports",
    "was_restarted",
]

_assignment: Final[dict[str, tuple[int, int]]] = {}


def _following(kind: Any) -> type[Any]:
    """A subclass of a `ClusterEnvironment` that returns the assigned rank and world size, once assigned."""

    class AssignedRanks(kind):  # type: ignore[misc]
        def global_rank(self) -> Any:
            return _assigned(0, super().global_rank)

        def world_size(self) -> Any:
            return _assigned(1, super().world_size)

        def set_global_rank(self, rank: int) -> None:
            _unless_assigned(super().set_global_rank, rank)

        def set_world_size(self, size: int) -> None:
            _unless_assigned(super().set_world_size, size)

        @property
        def main_address(self) -> Any:
            return _master("MASTER_ADDR") or super().main_address

        @property
        def main_port(self) -> Any:
            return int(_master("MASTER_PORT") or super().main_port)

        def teardown(self) -> None:
            """Keep WORLD_SIZE, which Lightning deletes: the next attempt reads it."""
            _unless_assigned(super().teardown)

    return AssignedRanks


def _assigned(which: int, otherwise: Callable[[], int]) -> int:
    return _assignment["ranks"][which] if _assignment else otherwise()


def _unless_assigned(act: Callable[..., None], *arguments: int) -> None:
    if not _assignment:
        act(*arguments)


def _master(name: str) -> str | None:
    """The master address and port of the attempt's process group; None before the first attempt."""
    return os.environ.get(name) if _assignment else None


def follow_assignment(environment: Any) -> Any:
    """Make a cluster environment follow the assignment, and return it."""
    return become(environment, _following)


def assign(rank: int, world_size: int) -> None:
    """Assign the ranks of an iteration."""
    _assignment["ranks"] = rank, world_size


def assign_from_variables() -> None:
    """Adopt the RANK and WORLD_SIZE that a wrapped call has left: the rank among the surviving ranks."""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        assign(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))


def publish(environment: Any) -> None:
    """Set the wrapper's variables from Lightning's cluster environment (SLURM, LSF, MPI or Lightning's own)."""
    rank, world_size = environment.global_rank(), environment.world_size()
    os.environ["MASTER_ADDR"] = str(environment.main_address)
    os.environ["MASTER_PORT"] = str(environment.main_port)
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank), str(world_size)


def reserve_ports() -> None:
    """Choose MASTER_PORT for ranks that Lightning starts itself: a free port whose successor is free, too."""
    if "MASTER_PORT" in os.environ:
        return
    for _ in range(100):
        with socket.socket() as first, socket.socket() as second, suppress(OSError, OverflowError):
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            second.bind(("127.0.0.1", port + 1))
            os.environ["MASTER_PORT"] = str(port)
            return
    raise RuntimeError("no two consecutive free ports: set MASTER_PORT")


def was_restarted() -> bool:
    """Return whether a launcher or a scheduler has started this job before."""
    counts = (os.environ.get(name, "") for name in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"))
    return any(count.isdigit() and int(count) > 0 for count in counts)
