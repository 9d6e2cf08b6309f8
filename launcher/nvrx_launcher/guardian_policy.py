"""When the guardians of a launcher are asked for a sign of life, and when one is replaced. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from nvrx_core.backoff import RestartBackoff
from nvrx_core.liveness.answers import AnswerWatch, Demand

__all__ = ["AskGuardian", "EndGuardian", "GuardianAction", "GuardianPolicy", "StartGuardian"]

ASKED_EVERY: Final = 5.0
ANSWER_TIMEOUT: Final = 5.0


@dataclass(frozen=True)
class AskGuardian:
    """Ask a guardian for a sign of life."""

    number: int


@dataclass(frozen=True)
class EndGuardian:
    """Kill a guardian, which is stopped, and report that it is lost."""

    number: int
    reason: str


@dataclass(frozen=True)
class StartGuardian:
    """Start a guardian in the place of one that is lost."""

    number: int
    reason: str


GuardianAction = AskGuardian | EndGuardian | StartGuardian


@dataclass
class _Place:
    """One guardian.

    Attributes:
        watch: when it is asked; None while there is none.
        due: when the next one is started.
        starts: the pauses between their starts.
    """

    watch: AnswerWatch | None = None
    due: float = math.inf
    starts: RestartBackoff = field(default_factory=RestartBackoff)


@dataclass
class GuardianPolicy:
    """Decides about the guardians of one launcher, which are numbered.

    Args:
        count: how many there are.
    """

    count: int
    _places: list[_Place] = field(init=False)

    def __post_init__(self) -> None:
        self._places = [_Place() for _ in range(self.count)]

    @property
    def deadline(self) -> float:
        """When `tick` is due, monotonic seconds."""
        return min(place.due if place.watch is None else place.watch.deadline for place in self._places)

    def started(self, number: int, *, now: float) -> None:
        """Record the start of a guardian."""
        place = self._places[number]
        place.watch = AnswerWatch(ASKED_EVERY, ANSWER_TIMEOUT, now=now)
        place.due = math.inf
        place.starts.started(now=now)

    def answered(self, number: int, *, now: float) -> None:
        """Record a guardian's sign of life."""
        if (watch := self._places[number].watch) is not None:
            watch.answered(now=now)

    def lost(self, number: int, *, now: float) -> float:
        """Handle the end of a guardian, or that none could be started; return the seconds until the next start."""
        place = self._places[number]
        pause = place.starts.failed(now=now)
        place.watch, place.due = None, now + pause
        return pause

    def tick(self, *, now: float) -> tuple[GuardianAction, ...]:
        """Return what is due; `lost` follows an `EndGuardian`, `started` or `lost` a `StartGuardian`."""
        return tuple(filter(None, (self._due(number, now) for number in range(self.count))))

    def _due(self, number: int, now: float) -> GuardianAction | None:
        place = self._places[number]
        if place.watch is None:
            return StartGuardian(number, "the one before is lost") if now >= place.due else None
        match place.watch.tick(now=now):
            case Demand.ASK:
                return AskGuardian(number)
            case Demand.REPLACE:
                return EndGuardian(number, f"it has not answered for {ANSWER_TIMEOUT:g} s")
            case _:
                return None
