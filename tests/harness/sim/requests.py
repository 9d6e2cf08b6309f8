"""What a checked member asks for: each happens when the checker lets it.

The operations on the keys of a round are `world.Operation` and `world.AwaitKey`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nvrx_core.inprocess.protocol.round import RoundView
from nvrx_core.rank_assignment.identity import InitialRank

from .world import Wish

__all__ = [
    "Await", "AwaitClients", "AwaitHostClosed", "AwaitOut", "BeginCall", "BeginIteration", "CountOut", "DeleteIfOver",
    "HostRendezvous", "InterruptFunction", "JoinForDead", "JoinOperation", "LoseMembers", "MarkLeft", "ReportFailure",
    "RunFunction", "Sleep",
]  # fmt: skip


# The store


@dataclass(slots=True)
class MarkLeft(Wish):
    """Write that a member no longer needs the store."""

    member: InitialRank
    silent: bool


@dataclass(slots=True)
class CountOut(Wish):
    """Count this member out of the completed call."""

    iteration: int
    living: int


@dataclass(slots=True)
class DeleteIfOver(Wish):
    """Delete the call's keys if it is completed and all other members have left."""


@dataclass(slots=True)
class BeginCall(Wish):
    """Enter the call: until then the process is between two calls, and nobody watches it."""


@dataclass(slots=True)
class JoinOperation(Wish):
    """Carry out an operation of `JoinStore`, or wait for a verdict; resumed with the answer."""

    name: str
    args: tuple[Any, ...]


@dataclass(slots=True)
class JoinForDead(Wish):
    """Complete the joining of a dead rank; resumed with whether there is a generation to report its death in."""


# The main thread


@dataclass(slots=True)
class Await(Wish):
    """Wait until the predicate holds for the round, or until the deadline."""

    view: RoundView
    until: Callable[[RoundView], bool]
    deadline: float


@dataclass(slots=True)
class LoseMembers(Wish):
    """Write the lost members to the page."""

    members: tuple[int, ...]


@dataclass(slots=True)
class BeginIteration(Wish):
    """Write the iteration in the member's state to the page."""


@dataclass(slots=True)
class HostRendezvous(Wish):
    """Host the rendezvous of the next process group; resumed with its `host:port`."""


@dataclass(slots=True)
class RunFunction(Wish):
    """Run the function; resumed with its result."""


@dataclass(slots=True)
class ReportFailure(Wish):
    """Log the failure of this rank."""


@dataclass(slots=True)
class AwaitClients(Wish):
    """Host the store until the members no longer need it."""

    members: frozenset[int]
    completed: bool


@dataclass(slots=True)
class AwaitHostClosed(Wish):
    """Wait until the host has closed the store."""


# The monitor thread, and the monitor process


@dataclass(slots=True)
class InterruptFunction(Wish):
    """Ask the main thread to leave the function, and wait until it is in no atomic section."""

    reason: str


@dataclass(slots=True)
class AwaitOut(Wish):
    """Interrupt the main thread until it has left the function."""


@dataclass(slots=True)
class Sleep(Wish):
    """Wait until the rank's process ends, or its page changes, or for the time; resumed with whether it has ended."""

    until: float
