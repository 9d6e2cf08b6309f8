"""The policy that interrupts the main thread until it has left the wrapped function. Pure.

An interrupt can be lost: the signal arrives just before a blocking call, or the exception is swallowed, or stored by
code that intends to raise it later. So it is fired again until it succeeds, with two rules. It is never fired while the
last raised exception unwinds, because `finally` blocks must complete. Where it would break an invariant (`landing`), it
is deferred for a bounded time; an import defers it without a bound. Mostly the thread then awaits the line that it may
land on (`next_line`), and is fired at only to find out whether it blocks meanwhile; else a growing and jittered backoff
has to find such a line. On a busy machine, time passes in which the thread cannot move on: it must have run meanwhile,
or have been seen to wait.

`InterruptPolicy` decides what to fire; the flows `begin` and `drive` put its decisions in order. The monitor thread
runs them on its main thread, the simulation and the checker on a simulated one.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, NamedTuple, Protocol, Self

from nvrx_core.inprocess.interruption.landing import Landing
from nvrx_core.values import value

__all__ = [
    "DeliveryPort",
    "Fire",
    "FireReason",
    "InterruptPolicy",
    "InterruptState",
    "ThreadSample",
    "Unblock",
    "begin",
    "drive",
]


REPEAT: Final = 0.001
"""Seconds after which an interrupt without effect is fired again; doubled each time, up to `MAX_REPEAT`."""
MAX_REPEAT: Final = 0.1
BLOCKED: Final = 0.02
"""Seconds without a reaction after which the main thread counts as blocked in a call that no signal ends."""
STORED: Final = 0.01
"""Seconds after which an exception that exists but is not handled counts as stored."""
OBSERVE_EVERY: Final = 0.003
"""Seconds between two observations of an exception that unwinds or is stored; more after a long unwinding."""
STEP: Final = 0.0001
"""Seconds of the first deferral; a tenth more each time, up to `MAX_STEP`."""
MAX_STEP: Final = 0.001
MAX_AWAITED: Final = 0.005
"""Seconds from a deferral to the next interrupt, at most, while the thread awaits the line that it may land on."""
FRAGILE: Final = 0.5
"""Seconds for which an interrupt is deferred in total where it would break an invariant."""
IMPATIENT: Final = 0.1
"""Seconds for which all library code defers it; after that, only code that is known to break, as asyncio is."""
RUNS: Final = 0.5
"""The share of these bounds for which the thread must have run."""
WAITS: Final = 30
"""Deferrals per second of these bounds in which it must have waited in a system call instead; there are 70 to 300."""
_GOLDEN: Final = 0.618034
"""The golden ratio: its multiples modulo 1 are evenly spread, which makes a deterministic jitter."""


class FireReason(enum.Enum):
    """The reason for which an interrupt is fired."""

    FIRST = "the round ends"
    UNSEEN = "the signal had no effect yet"
    SWALLOWED = "the exception was swallowed"
    STORED = "the exception was stored"
    STUCK = "cleanup takes too long"
    DEFERRED = "it was deferred for long"
    OVERDUE = "it was deferred for too long"

    @property
    def insists(self) -> bool:
        """Whether it is fired wherever it lands."""
        return self in (FireReason.STUCK, FireReason.OVERDUE)


@value
class Fire:
    """Interrupt the main thread."""

    why: FireReason

    @property
    def reason(self) -> str:
        """The reason as text."""
        return self.why.value


@value
class Unblock:
    """Close what the main thread blocks in: it does not react to signals."""

    reason: str = "the main thread does not react to signals"


class ThreadSample(NamedTuple):
    """One observation of the main thread.

    Attributes:
        out: the thread has left the wrapped function.
        masked: it is inside an atomic section, which is never interrupted; leaving the section raises.
        raised: how many exceptions have been raised for this request.
        alive: the last raised exception unwinds: it still exists, and the thread handles it.
        stored: the last raised exception still exists, and the thread does not handle it.
        deferred: how often the thread was reached where an interruption must not land.
        awaited: the thread awaits the line that it may land on.
        landing: the effect that the last deferred interruption would have had.
        waited: how many of the deferrals have reached it while it waited in a system call.
        ran: CPU seconds of the thread.
    """

    out: bool
    masked: bool
    raised: int
    alive: bool
    stored: bool = False
    deferred: int = 0
    awaited: bool = False
    landing: Landing = Landing.SAFE
    waited: int = 0
    ran: float = 0.0


@value
class Deferral:
    """Deferrals in a row.

    Attributes:
        since: when the first one was, or how long ago in an `InterruptState`; infinite for none.
        waited, ran: those of the thread, then.
        times: how many there are.
    """

    since: float = math.inf
    waited: int = 0
    ran: float = 0.0
    times: int = 0

    def exceeds(self, seconds: float, seen: ThreadSample, *, now: float) -> bool:
        """Whether they have lasted for so long, and the thread could move on meanwhile."""
        could = seen.ran >= self.ran + RUNS * seconds or seen.waited >= self.waited + WAITS * seconds
        return could and now >= self.since + seconds

    def once_more(self, seen: ThreadSample, *, now: float) -> Deferral:
        """One more of them, or the first one."""
        return replace(self, times=self.times + 1) if self.times else Deferral(now, seen.waited, seen.ran, 1)


NONE: Final = Deferral()


@value
class InterruptState:
    """The full state of a policy; times are relative to now, and infinite for what has not happened.

    Attributes:
        deadline: time until the next observation.
        fired: time since the last interrupt or deferral.
        pause: time between two interrupts without effect.
        alive: time since the last raised exception began to unwind.
        stored: time since it exists without being handled.
        unblock: time until the main thread counts as blocked.
        deferring: the deferrals.
        there: those for the same reason as the last one.
        landing: that reason.
    """

    deadline: float
    fired: float
    pause: float
    alive: float
    stored: float
    unblock: float
    deferring: Deferral
    there: Deferral
    landing: Landing


class InterruptPolicy:
    """The machine that fires until the main thread has left the function.

    Args:
        unwind: seconds that cleanup may take before it is interrupted as well.
        hold: seconds for which anything but an import may defer the interrupt in total.
    """

    def __init__(self, unwind: float, hold: float = 0.0) -> None:
        self.unwind, self.hold = unwind, max(unwind, hold)
        self.deadline = math.inf
        self.swallowed = 0
        self._fired_at = -math.inf
        self._raised = self._deferred = 0
        self._pause = REPEAT
        self._alive_since = self._stored_since = self._unblocked_at = math.inf
        self._deferring = self._there = NONE
        self._landing = Landing.SAFE

    @classmethod
    def from_state(
        cls, unwind: float, state: InterruptState, *, seen: ThreadSample, now: float, hold: float = 0.0
    ) -> Self:
        """Restore a policy from its state and the counts of its last observation, `seen`."""
        machine = cls(unwind, hold)
        machine.deadline, machine._fired_at, machine._pause = now + state.deadline, now - state.fired, state.pause
        machine._alive_since, machine._stored_since = now - state.alive, now - state.stored
        machine._unblocked_at, machine._landing = now + state.unblock, state.landing
        machine._deferring, machine._there = (
            replace(each, since=now - each.since) for each in (state.deferring, state.there)
        )
        machine._raised, machine._deferred = seen.raised, seen.deferred
        return machine

    def state(self, *, now: float) -> InterruptState:
        """Return everything that later decisions depend on, without the counts."""
        return InterruptState(
            deadline=self.deadline - now, fired=now - self._fired_at, pause=self._pause,
            alive=now - self._alive_since, stored=now - self._stored_since, unblock=self._unblocked_at - now,
            deferring=replace(self._deferring, since=now - self._deferring.since),
            there=replace(self._there, since=now - self._there.since), landing=self._landing,
        )  # fmt: skip

    def check(self) -> None:
        """Raise AssertionError when the invariant does not hold: after each interrupt there is a deadline."""
        assert STEP / 2 <= self._pause <= MAX_REPEAT
        assert self._fired_at <= min(self.deadline, self._unblocked_at)

    def tick(self, seen: ThreadSample, *, now: float) -> tuple[Fire | Unblock, ...]:
        """Return the actions for one observation; `deadline` is the latest time for the next one."""
        if seen.out or seen.masked:
            self.deadline = math.inf
            return ()
        if seen.raised and seen.alive:
            return self._unwinding(now)
        if seen.deferred > self._deferred:
            return self._defer(seen, now)
        if seen.raised and seen.stored:
            return self._stored(seen, now)
        if seen.raised > self._raised:
            return self._lost(FireReason.SWALLOWED, seen, now)
        return self._unseen(seen, now)

    @property
    def deferring(self) -> bool:
        """Whether the interrupt is being deferred."""
        return self._deferring.since < math.inf

    def deferred_for(self, *, now: float) -> float:
        """Return for how many seconds the interrupt has been deferred."""
        return max(0.0, now - self._deferring.since)

    def _unwinding(self, now: float) -> tuple[Fire, ...]:
        self._stored_since = self._unblocked_at = math.inf
        self._alive_since = min(self._alive_since, now)
        if now >= self._alive_since + self.unwind:
            return self._fire(FireReason.STUCK, now)
        interval = min(max(OBSERVE_EVERY, (now - self._alive_since) / 2), MAX_REPEAT)
        self.deadline = min(now + interval, self._alive_since + self.unwind)
        return ()

    def _defer(self, seen: ThreadSample, now: float) -> tuple[Fire, ...]:
        """Retry soon, because the interrupt must not land where it reached the thread; when overdue, fire anyway."""
        self._deferred = seen.deferred
        imported = self._landing is Landing.IMPORT and seen.landing is not Landing.IMPORT
        there = self._there if seen.landing is self._landing else NONE
        self._deferring = (NONE if imported else self._deferring).once_more(seen, now=now)
        self._there, self._landing = there.once_more(seen, now=now), seen.landing
        if self._is_overdue(seen, now):
            return self._fire(FireReason.OVERDUE, now)
        if seen.awaited:
            self._pause = min(self._pause, MAX_AWAITED)
        else:
            steps = self._deferring.times
            spread = 0.5 + steps * _GOLDEN % 1.0
            self._pause = min(STEP * 1.1 ** min(steps - 1, 30), MAX_STEP) * spread
        self._fired_at, self.deadline = now, now + self._pause
        self._unblocked_at = now + BLOCKED
        return ()

    def _is_overdue(self, seen: ThreadSample, now: float) -> bool:
        if seen.landing is Landing.IMPORT:  # a partial import breaks every later iteration
            return False
        if now >= self._deferring.since + self.hold:
            return True
        if seen.landing in (Landing.CLEANUP, Landing.BATCH):
            return now >= self._there.since + self.unwind
        return self._there.exceeds(FRAGILE, seen, now=now)

    def _stored(self, seen: ThreadSample, now: float) -> tuple[Fire, ...]:
        self._stored_since = min(self._stored_since, now)
        if now >= self._stored_since + STORED:
            return self._lost(FireReason.STORED, seen, now)
        self.deadline = max(min(now + OBSERVE_EVERY, self._stored_since + STORED), math.nextafter(now, math.inf))
        self._unblocked_at = max(self._unblocked_at, self.deadline)
        return ()

    def _lost(self, why: FireReason, seen: ThreadSample, now: float) -> tuple[Fire, ...]:
        """Fire again: the exception was lost; the thread runs, so it will receive the next one."""
        if seen.raised > self._raised:
            self.swallowed += 1
            self._deferring = self._there = NONE
        self._raised = seen.raised
        self._unblocked_at = now + BLOCKED
        return self._fire(why, now)

    def _unseen(self, seen: ThreadSample, now: float) -> tuple[Fire | Unblock, ...]:
        if self._fired_at == -math.inf:
            self._unblocked_at = now + BLOCKED
            return self._fire(FireReason.FIRST, now)
        actions: tuple[Fire | Unblock, ...] = ()
        if now >= self._unblocked_at:
            self._unblocked_at = now + BLOCKED
            actions = (Unblock(),)
        if now >= self._fired_at + self._pause:
            why = FireReason.DEFERRED if self._deferring.exceeds(IMPATIENT, seen, now=now) else FireReason.UNSEEN
            actions += self._fire(why, now, pause=min(2 * self._pause, MAX_REPEAT))
        self.deadline = min(self._fired_at + self._pause, self._unblocked_at)
        return actions

    def _fire(self, why: FireReason, now: float, *, pause: float = REPEAT) -> tuple[Fire]:
        self._pause = pause
        self._fired_at, self.deadline = now, now + pause
        self._alive_since = self._stored_since = math.inf
        self._unblocked_at = min(self._unblocked_at, now + BLOCKED)
        return (Fire(why),)


WARN_DEFERRED_AFTER: Final = 0.2
FIRST_WITHIN: Final = 0.05
"""Seconds for which the abort waits for a function that the signal reaches but must not interrupt yet."""
HANDLED_WITHIN: Final = 0.0003
"""Seconds within which a busy function handles the signal."""


class DeliveryPort(Protocol):
    """The main thread, as those see it who interrupt it."""

    def observe(self) -> Awaitable[ThreadSample]:
        """Return what is `ThreadSample` of the main thread."""

    def fire(self, why: FireReason) -> Awaitable[None]:
        """Interrupt the main thread."""

    def close_blocked(self) -> Awaitable[None]:
        """Close what the main thread blocks in, where no signal reaches it."""

    def await_left(self, deadline: float) -> Awaitable[bool]:
        """Wait until the main thread has left the function, or until the deadline; return whether it has left."""

    def await_unmasked(self) -> Awaitable[bool]:
        """Wait until no atomic section is open; return whether the main thread has left the function."""

    def report_stored(self) -> Awaitable[None]:
        """The function has caught the interruption and stored it."""

    def report_swallowed(self, count: int) -> Awaitable[None]:
        """The function has swallowed that many interruptions."""

    def report_deferred(self) -> Awaitable[None]:
        """The interruption is deferred for long."""


async def begin(machine: InterruptPolicy, delivery: DeliveryPort, now: Callable[[], float]) -> None:
    """Interrupt, and repeat while that is deferred: a busy function ends before the abort begins.

    A thread that does not react is not waited for, also not one that has deferred the interruption and blocks since:
    it may be in a collective that only the abort ends. `drive` continues from here, with the same machine.
    """
    end = now() + FIRST_WITHIN
    seen = await delivery.observe()
    while not (seen.out or seen.masked):
        before, fired = seen, await _act(machine, seen, delivery, now)
        if await delivery.await_left(machine.deadline if machine.deferring else now() + HANDLED_WITHIN):
            return
        seen = await delivery.observe()
        blocks = fired and (seen.deferred, seen.raised) == (before.deferred, before.raised)
        if blocks or not seen.deferred or now() > end:
            return


async def drive(machine: InterruptPolicy, delivery: DeliveryPort, now: Callable[[], float]) -> None:
    """Interrupt until the main thread has left the function; a thread that is outside of it is left alone."""
    warned = False
    left = await delivery.await_left(now())
    while not left:
        seen = await delivery.observe()
        await _act(machine, seen, delivery, now)
        if not warned and machine.deferred_for(now=now()) > WARN_DEFERRED_AFTER:
            warned = True
            await delivery.report_deferred()
        left = await (delivery.await_unmasked() if seen.masked else delivery.await_left(machine.deadline))


async def _act(machine: InterruptPolicy, seen: ThreadSample, delivery: DeliveryPort, now: Callable[[], float]) -> bool:
    """Carry out what is due; return whether it has interrupted."""
    swallowed, actions = machine.swallowed, machine.tick(seen, now=now())
    for action in actions:
        if isinstance(action, Fire) and action.why is FireReason.STORED:
            await delivery.report_stored()
        await (delivery.close_blocked() if isinstance(action, Unblock) else delivery.fire(action.why))
    if machine.swallowed > swallowed:
        await delivery.report_swallowed(machine.swallowed)
    return any(isinstance(action, Fire) for action in actions)
