"""How the main thread is got out of the wrapped function, as a pure machine.

An interrupt can be lost: the signal lands just before a blocking call, or the exception is swallowed. So it is fired
again until it landed, with one
rule: never while the exception raised last is still alive, for then it is unwinding through `finally` blocks, which
must complete.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Final, Self

__all__ = ["Fire", "InterruptionMachine", "InterruptionState", "Seen", "Unblock", "Why"]

REPEAT: Final = 0.005
"""Seconds after which an interrupt without effect is fired again; doubled each time, up to `REPEAT_MOST`."""
REPEAT_MOST: Final = 0.1
BLOCKED: Final = 0.02
"""Seconds without a reaction after which the main thread counts as blocked in a call that no signal ends."""


class Why(enum.Enum):
    """Why an interrupt is fired."""

    FIRST = "the round ends"
    UNSEEN = "the signal had no effect yet"
    SWALLOWED = "the exception was swallowed"
    STUCK = "cleanup takes too long"


@dataclass(frozen=True)
class Fire:
    """Interrupt the main thread."""

    why: Why

    @property
    def reason(self) -> str:
        """The cause, for people."""
        return self.why.value


@dataclass(frozen=True)
class Unblock:
    """Close what the main thread waits in: no signal has reached it."""

    reason: str = "the main thread does not react to signals"


@dataclass(frozen=True)
class Seen:
    """What the shell sees of the main thread.

    Attributes:
        out: it is out of the wrapped function.
        masked: it is inside an atomic section, which is never interrupted; leaving it raises by itself.
        raised: how many exceptions have been raised for this request.
        alive: the one raised last still exists.
    """

    out: bool
    masked: bool
    raised: int
    alive: bool


@dataclass(frozen=True)
class InterruptionState:
    """What decides the machine's future; times are relative to now, and infinite while nothing runs.

    Attributes:
        deadline: until it asks again.
        fired: since it fired.
        pause: between two interrupts without effect.
        alive: since the exception raised last is unwinding.
        unblock: until the main thread counts as blocked.
    """

    deadline: float
    fired: float
    pause: float
    alive: float
    unblock: float


class InterruptionMachine:
    """Fires until the main thread is out of the function.

    Args:
        unwind: seconds that cleanup may take before it is interrupted as well.
    """

    def __init__(self, unwind: float) -> None:
        self.unwind = unwind
        self.deadline = math.inf
        self.swallowed = 0
        self._fired_at = -math.inf
        self._raised = 0
        self._pause = REPEAT
        self._alive_since = math.inf
        self._unblocked_at = math.inf

    @classmethod
    def from_state(cls, unwind: float, state: InterruptionState, *, raised: int, now: float) -> Self:
        """The machine that had this state, when so many exceptions had been raised."""
        machine = cls(unwind)
        machine.deadline, machine._fired_at = now + state.deadline, now - state.fired
        machine._pause, machine._raised = state.pause, raised
        machine._alive_since, machine._unblocked_at = now - state.alive, now + state.unblock
        return machine

    def state(self, *, now: float) -> InterruptionState:
        """All that decides its future; what was counted is left out."""
        return InterruptionState(
            deadline=self.deadline - now, fired=now - self._fired_at, pause=self._pause,
            alive=now - self._alive_since, unblock=self._unblocked_at - now,
        )  # fmt: skip

    def check(self) -> None:
        """Raise AssertionError when the invariant does not hold: what was fired is looked at again."""
        assert REPEAT <= self._pause <= REPEAT_MOST
        assert self._fired_at <= min(self.deadline, self._unblocked_at)

    def tick(self, seen: Seen, *, now: float) -> tuple[Fire | Unblock, ...]:
        """What to do now; `deadline` says when to ask again at the latest."""
        if seen.out or seen.masked:
            self.deadline = math.inf
            return ()
        if seen.raised and seen.alive:
            return self._unwinding(now)
        if seen.raised > self._raised:
            self._raised = seen.raised
            self.swallowed += 1
            return self._fire(Why.SWALLOWED, now)
        return self._unseen(now)

    def _unwinding(self, now: float) -> tuple[Fire, ...]:
        self._alive_since = min(self._alive_since, now)
        self.deadline = self._alive_since + self.unwind
        self._unblocked_at = math.inf
        if now < self.deadline:
            return ()
        self._alive_since = math.inf
        return self._fire(Why.STUCK, now)

    def _unseen(self, now: float) -> tuple[Fire | Unblock, ...]:
        if self._fired_at == -math.inf:
            self._unblocked_at = now + BLOCKED
            return self._fire(Why.FIRST, now)
        actions: tuple[Fire | Unblock, ...] = ()
        if now >= self._unblocked_at:
            self._unblocked_at = now + BLOCKED
            actions = (Unblock(),)
        if now >= self._fired_at + self._pause:
            self._pause = min(2 * self._pause, REPEAT_MOST)
            actions += self._fire(Why.UNSEEN, now)
        self.deadline = min(self._fired_at + self._pause, self._unblocked_at)
        return actions

    def _fire(self, why: Why, now: float) -> tuple[Fire]:
        if why is Why.SWALLOWED:  # so it does react
            self._pause, self._unblocked_at = REPEAT, now + BLOCKED
        self._fired_at, self.deadline = now, now + self._pause
        self._alive_since = math.inf
        self._unblocked_at = min(self._unblocked_at, now + BLOCKED)
        return (Fire(why),)
