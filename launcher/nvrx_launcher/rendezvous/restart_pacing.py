"""The pace of restarts: backoff after cycles without a step, and a limit within a window. Pure.

A cycle is fruitless if it ended before its first step. After the first fruitless cycle the next one starts at once,
after further ones in a row it starts 1, 2, 4 ... 60 s later, until a cycle has taken a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["PacingRules", "RestartPacing"]

LONGEST_PAUSE: Final = 60.0


@dataclass(frozen=True)
class PacingRules:
    """The limits of the pace.

    Attributes:
        window: seconds in which restarts are counted.
        max_in_window: how many restarts there may be in them; None: any number.
        backoff: seconds before each restart at least; None: there is no pause at all.
    """

    window: float = 600.0
    max_in_window: int | None = None
    backoff: float | None = 0.0


class RestartPacing:
    """Counts restarts.

    Args:
        rules: the limits.
        ages: seconds since earlier restarts.
        fruitless: the number of fruitless cycles in a row, up to now.
        now: the time.
    """

    def __init__(
        self, rules: PacingRules, *, ages: tuple[float, ...] = (), fruitless: int = 0, now: float = 0.0
    ) -> None:
        self._rules, self.fruitless = rules, fruitless
        self._restarts = [now - age for age in ages]

    def ages(self, *, now: float) -> tuple[float, ...]:
        """Return the seconds since the restarts that still count."""
        self._forget(now)
        return tuple(now - each for each in self._restarts)

    def exceeded(self, *, now: float) -> str:
        """Return why no further restart is allowed, "" if one is."""
        self._forget(now)
        limit = self._rules.max_in_window
        if limit is None or len(self._restarts) < limit:
            return ""
        return f"after {len(self._restarts)} restarts within {self._rules.window:g} s"

    def pause(self, *, is_fruitless: bool) -> float:
        """Return the number of seconds before the next cycle."""
        if self._rules.backoff is None:
            return 0.0
        if not is_fruitless or not self.fruitless:
            return self._rules.backoff
        return max(self._rules.backoff, min(LONGEST_PAUSE, 2.0 ** min(self.fruitless - 1, 10)))

    def restarted(self, *, is_fruitless: bool, now: float) -> None:
        """Record a restart."""
        self.fruitless = self.fruitless + 1 if is_fruitless else 0
        if self._rules.max_in_window is not None:
            self._restarts.append(now)

    def _forget(self, now: float) -> None:
        self._restarts = [each for each in self._restarts if now - each < self._rules.window]
