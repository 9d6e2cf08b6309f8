"""What the flow of the monitor thread asks its shell to do. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from nvrx_core.inprocess.protocol.effects import Effect

__all__ = [
    "AbortFunction", "AwaitOut", "InterruptFunction", "LastCall", "NoticeEvent", "ResetInterrupt", "RoundDecided",
]  # fmt: skip


@dataclass(slots=True)
class NoticeEvent(Effect):
    """The round is over: note how far this rank has come."""

    iteration: int


@dataclass(slots=True)
class LastCall(Effect):
    """Leave late faults so many seconds."""

    seconds: float


@dataclass(slots=True)
class InterruptFunction(Effect):
    """Ask the main thread to leave the function, and wait until it is in no atomic section."""

    reason: str


@dataclass(slots=True)
class AbortFunction(Effect):
    """Abort what the function waits in."""

    iteration: int
    reason: str


@dataclass(slots=True)
class AwaitOut(Effect):
    """Interrupt the main thread until it is out of the function."""


@dataclass(slots=True)
class ResetInterrupt(Effect):
    """The next round begins: forget the request to leave the function."""


@dataclass(slots=True)
class RoundDecided(Effect):
    """The main thread goes on, by the decision or out of the job."""
