"""The effects of the monitor thread's flow. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from nvrx_core.inprocess.protocol.effects import Effect

__all__ = [
    "AbortFunction", "AwaitOut", "InterruptFunction", "LastCall", "NoticeEvent", "ResetInterrupt", "RoundDecided",
]  # fmt: skip


@dataclass(slots=True)
class NoticeEvent(Effect):
    """The round is over: record the progress of this rank."""

    iteration: int


@dataclass(slots=True)
class LastCall(Effect):
    """Wait for late faults, for so many seconds."""

    seconds: float


@dataclass(slots=True)
class InterruptFunction(Effect):
    """Ask the main thread to leave the function, and wait until it is in no atomic section."""

    reason: str


@dataclass(slots=True)
class AbortFunction(Effect):
    """Abort the calls in which the function blocks."""

    iteration: int
    reason: str


@dataclass(slots=True)
class AwaitOut(Effect):
    """Interrupt the main thread until it has left the function."""


@dataclass(slots=True)
class ResetInterrupt(Effect):
    """The next round starts: discard the request to leave the function."""


@dataclass(slots=True)
class RoundDecided(Effect):
    """The round is decided: the main thread continues, or leaves the job."""
