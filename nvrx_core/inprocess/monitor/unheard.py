"""A rank whose threads do not run when a round ends, as a pure machine: a call that keeps the interpreter's lock.

Its monitor thread cannot notice the round's event, so nobody interrupts the main thread, and all others wait for it.
The rank's watchdog thread is silent for the same reason. So when that has been silent for a moment, the monitor process
asks the store whether the round has its event, says so on the page and sends the signal: many calls look for signals
now and then, and the handler reads the page. A main thread that the signal does not reach either has as long to come
out as one that was interrupted after a soft timeout of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

__all__ = ["AskEvent", "RoundOver", "SendSignal", "Unheard", "UnheardState"]

ASK_EVERY: Final = 0.25
"""Seconds between two questions to the store, while the watchdog thread is silent."""
SIGNAL_EVERY: Final = 0.1
"""Seconds between two signals."""
LEAST: Final = 10.0
"""Seconds that a main thread has to come out at least, whatever the timeouts are."""


@dataclass(frozen=True)
class AskEvent:
    """Ask the store whether the round has its event; answer with `answered`."""


@dataclass(frozen=True)
class RoundOver:
    """Write on the page that the round is over."""


@dataclass(frozen=True)
class SendSignal:
    """Send the interrupt signal from outside."""


UnheardAction = AskEvent | RoundOver | SendSignal


@dataclass(frozen=True)
class UnheardState:
    """What decides its future; times are relative to now.

    Attributes:
        iteration: the round.
        ask: until the store may be asked again.
        signal: until the signal may be sent again.
        over: since the round is known to be over; infinite while it is not.
    """

    iteration: int
    ask: float
    signal: float
    over: float


class Unheard:
    """Watches for one rank whose threads do not run.

    Args:
        silent: seconds without a breath of the watchdog thread after which its rank's threads count as held up.
        confirm: seconds that the main thread has to come out, from the first signal.

    Attributes:
        deadline: when to look again at the latest.
    """

    def __init__(self, silent: float, confirm: float) -> None:
        self.silent, self.confirm = silent, max(confirm, LEAST)
        self.deadline = math.inf
        self._iteration = -2
        self._ask_at = self._signal_at = -math.inf
        self._over_at = math.inf

    @property
    def out_by(self) -> float:
        """When the main thread has to be out of the function; `inf` while nobody waits for it."""
        return self._over_at + self.confirm

    def state(self, *, now: float) -> UnheardState:
        """All that decides what it says next."""
        return UnheardState(self._iteration, self._ask_at - now, self._signal_at - now, now - self._over_at)

    def check(self) -> None:
        """Raise AssertionError when the invariant does not hold: who is signalled has a round that is over."""
        assert self._signal_at == -math.inf or self._over_at < math.inf

    def look(
        self, iteration: int, *, busy: bool, noticed: bool, breathing_at: float, now: float
    ) -> tuple[UnheardAction, ...]:
        """What to do now.

        Args:
            iteration: the round.
            busy: the main thread is in the function.
            noticed: a thread of the rank has seen the round's event; it may be held up since.
            breathing_at: when the watchdog thread last ran; `inf` when it is not there.
            now: monotonic seconds.
        """
        silent = busy and now >= breathing_at + self.silent
        if iteration != self._iteration or not silent:
            self._iteration = iteration
            self._ask_at = self._signal_at = -math.inf
            self._over_at = math.inf
        if not silent:
            self.deadline = breathing_at + self.silent if busy else math.inf
            return ()
        if self._over_at == math.inf:
            return self.answered(True, now=now) if noticed else self._ask(now)
        return self._signal(now)

    def answered(self, over: bool, *, now: float) -> tuple[UnheardAction, ...]:
        """The answer to `AskEvent`."""
        if not over:
            return ()
        self._over_at = now
        return (RoundOver(), *self._signal(now))

    def _ask(self, now: float) -> tuple[UnheardAction, ...]:
        due = now >= self._ask_at
        self._ask_at = now + ASK_EVERY if due else self._ask_at
        self.deadline = self._ask_at
        return (AskEvent(),) if due else ()

    def _signal(self, now: float) -> tuple[UnheardAction, ...]:
        due = now >= self._signal_at
        self._signal_at = now + SIGNAL_EVERY if due else self._signal_at
        self.deadline = self._signal_at
        return (SendSignal(),) if due else ()
