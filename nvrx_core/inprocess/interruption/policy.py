"""How the main thread is got out of the wrapped function, as a pure machine.

An interrupt can be lost: the signal lands just before a blocking call, or the exception is swallowed, or stored by what
means to raise it later. So it is fired again until it landed, with two rules: never while the exception raised last
unwinds, for `finally` blocks must complete; and where it would break what the function cannot see (`landing`), it is
put off, in growing steps with jitter, for a bounded time; an import, for as long as it takes.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Final, Self

from nvrx_core.inprocess.interruption.landing import Landing

__all__ = ["Fire", "InterruptPolicy", "InterruptState", "Seen", "Unblock", "Why"]

REPEAT: Final = 0.001
"""Seconds after which an interrupt without effect is fired again; doubled each time, up to `REPEAT_MOST`."""
REPEAT_MOST: Final = 0.1
BLOCKED: Final = 0.02
"""Seconds without a reaction after which the main thread counts as blocked in a call that no signal ends."""
STORED: Final = 0.01
"""Seconds that the exception lives, and nobody handles it, after which it counts as stored."""
LOOK: Final = 0.003
"""Seconds between two looks at an exception that unwinds or is kept; more when it has unwound for longer."""
STEP: Final = 0.0001
"""Seconds for which an interrupt is put off at first; a tenth more each time, up to `STEP_MOST`."""
STEP_MOST: Final = 0.001
FRAGILE: Final = 0.5
"""Seconds for which it is put off in all where it would break an invariant."""
IMPATIENT: Final = 0.1
"""Seconds for which all of the library counts as such a place; then only what is known to break."""
_GOLDEN: Final = 0.618034
"""Multiples of it modulo 1 are spread evenly: a jitter that repeats."""


class Why(enum.Enum):
    """Why an interrupt is fired."""

    FIRST = "the round ends"
    UNSEEN = "the signal had no effect yet"
    SWALLOWED = "the exception was swallowed"
    STORED = "the exception was stored"
    STUCK = "cleanup takes too long"
    PUT_OFF = "it was put off for long"
    OVERDUE = "it was put off for too long"

    @property
    def insists(self) -> bool:
        """Fire it wherever it lands."""
        return self in (Why.STUCK, Why.OVERDUE)


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
        alive: the one raised last is unwinding: it still exists, and the thread handles it.
        stored: it still exists, and the thread does not handle it.
        deferred: how often the thread was reached where an interruption must not land.
        landing: what it would have done there, the last time.
    """

    out: bool
    masked: bool
    raised: int
    alive: bool
    stored: bool = False
    deferred: int = 0
    landing: Landing = Landing.SAFE


@dataclass(frozen=True)
class InterruptState:
    """What decides the machine's future; times are relative to now, and infinite while nothing runs.

    Attributes:
        deadline: until it asks again.
        fired: since it fired, or was put off.
        pause: between two interrupts without effect.
        alive: since the exception raised last is unwinding.
        stored: since it is there and nobody handles it.
        unblock: until the main thread counts as blocked.
        put_off: since it is being put off.
        there: since it is being put off for the same reason.
        landing: that reason.
        steps: how often in a row it was put off.
    """

    deadline: float
    fired: float
    pause: float
    alive: float
    stored: float
    unblock: float
    put_off: float
    there: float
    landing: Landing
    steps: int


class InterruptPolicy:
    """Fires until the main thread is out of the function.

    Args:
        unwind: seconds that cleanup may take before it is interrupted as well.
        hold: seconds for which all but an import may hold it off in all.
    """

    def __init__(self, unwind: float, hold: float = 0.0) -> None:
        self.unwind, self.hold = unwind, max(unwind, hold)
        self.deadline = math.inf
        self.swallowed = 0
        self._fired_at = -math.inf
        self._raised = self._deferred = self._steps = 0
        self._pause = REPEAT
        self._alive_since = self._stored_since = self._unblocked_at = math.inf
        self._put_off_since = self._there_since = math.inf
        self._landing = Landing.SAFE

    @classmethod
    def from_state(cls, unwind: float, state: InterruptState, *, seen: Seen, now: float, hold: float = 0.0) -> Self:
        """The machine that had this state, when it was last told what `seen` counts."""
        machine = cls(unwind, hold)
        machine.deadline, machine._fired_at, machine._pause = now + state.deadline, now - state.fired, state.pause
        machine._alive_since, machine._stored_since = now - state.alive, now - state.stored
        machine._unblocked_at, machine._put_off_since = now + state.unblock, now - state.put_off
        machine._there_since, machine._landing, machine._steps = now - state.there, state.landing, state.steps
        machine._raised, machine._deferred = seen.raised, seen.deferred
        return machine

    def state(self, *, now: float) -> InterruptState:
        """All that decides its future; what was counted is left out."""
        return InterruptState(
            deadline=self.deadline - now, fired=now - self._fired_at, pause=self._pause,
            alive=now - self._alive_since, stored=now - self._stored_since, unblock=self._unblocked_at - now,
            put_off=now - self._put_off_since, there=now - self._there_since, landing=self._landing, steps=self._steps,
        )  # fmt: skip

    def check(self) -> None:
        """Raise AssertionError when the invariant does not hold: what was fired is looked at again."""
        assert STEP / 2 <= self._pause <= REPEAT_MOST
        assert self._fired_at <= min(self.deadline, self._unblocked_at)

    def tick(self, seen: Seen, *, now: float) -> tuple[Fire | Unblock, ...]:
        """What to do now; `deadline` says when to ask again at the latest."""
        if seen.out or seen.masked:
            self.deadline = math.inf
            return ()
        if seen.raised and seen.alive:
            return self._unwinding(now)
        if seen.deferred > self._deferred:
            return self._put_off(seen, now)
        if seen.raised and seen.stored:
            return self._stored(seen, now)
        if seen.raised > self._raised:
            return self._lost(Why.SWALLOWED, seen, now)
        return self._unseen(now)

    @property
    def put_off(self) -> bool:
        """Whether it is being put off."""
        return self._put_off_since < math.inf

    def held(self, *, now: float) -> float:
        """For how long it has been put off, seconds."""
        return max(0.0, now - self._put_off_since)

    def _unwinding(self, now: float) -> tuple[Fire, ...]:
        self._stored_since = self._unblocked_at = math.inf
        self._alive_since = min(self._alive_since, now)
        if now >= self._alive_since + self.unwind:
            return self._fire(Why.STUCK, now)
        look = min(max(LOOK, (now - self._alive_since) / 2), REPEAT_MOST)
        self.deadline = min(now + look, self._alive_since + self.unwind)
        return ()

    def _put_off(self, seen: Seen, now: float) -> tuple[Fire, ...]:
        """The thread was reached where it must not land: try again soon, in the end wherever it lands."""
        self._deferred = seen.deferred
        imported = self._landing is Landing.IMPORT and seen.landing is not Landing.IMPORT
        self._put_off_since = now if imported else min(self._put_off_since, now)
        self._there_since = min(self._there_since, now) if seen.landing is self._landing else now
        self._landing = seen.landing
        most = self.unwind if seen.landing is Landing.CLEANUP else FRAGILE
        overdue = now >= min(self._there_since + most, self._put_off_since + self.hold)
        if overdue and seen.landing is not Landing.IMPORT:  # half a package breaks each further iteration
            return self._fire(Why.OVERDUE, now)
        self._steps += 1
        spread = 0.5 + self._steps * _GOLDEN % 1.0
        self._pause = min(STEP * 1.1 ** min(self._steps - 1, 30), STEP_MOST) * spread
        self._fired_at, self.deadline = now, now + self._pause
        self._unblocked_at = now + BLOCKED
        return ()

    def _stored(self, seen: Seen, now: float) -> tuple[Fire, ...]:
        self._stored_since = min(self._stored_since, now)
        if now >= self._stored_since + STORED:
            return self._lost(Why.STORED, seen, now)
        self.deadline = max(min(now + LOOK, self._stored_since + STORED), math.nextafter(now, math.inf))
        self._unblocked_at = max(self._unblocked_at, self.deadline)
        return ()

    def _lost(self, why: Why, seen: Seen, now: float) -> tuple[Fire, ...]:
        """The exception will not get the thread out; the thread runs, so it will hear the next one."""
        if seen.raised > self._raised:
            self.swallowed += 1
            self._put_off_since = self._there_since = math.inf
            self._steps = 0
        self._raised = seen.raised
        self._unblocked_at = now + BLOCKED
        return self._fire(why, now)

    def _unseen(self, now: float) -> tuple[Fire | Unblock, ...]:
        if self._fired_at == -math.inf:
            self._unblocked_at = now + BLOCKED
            return self._fire(Why.FIRST, now)
        actions: tuple[Fire | Unblock, ...] = ()
        if now >= self._unblocked_at:
            self._unblocked_at = now + BLOCKED
            actions = (Unblock(),)
        if now >= self._fired_at + self._pause:
            why = Why.PUT_OFF if self.held(now=now) > IMPATIENT else Why.UNSEEN
            actions += self._fire(why, now, pause=min(2 * self._pause, REPEAT_MOST))
        self.deadline = min(self._fired_at + self._pause, self._unblocked_at)
        return actions

    def _fire(self, why: Why, now: float, *, pause: float = REPEAT) -> tuple[Fire]:
        self._pause = pause
        self._fired_at, self.deadline = now, now + pause
        self._alive_since = self._stored_since = math.inf
        self._unblocked_at = min(self._unblocked_at, now + BLOCKED)
        return (Fire(why),)
