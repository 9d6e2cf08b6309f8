"""Schedules of faults, at a step of the training or at a failpoint of the wrapper.

A place consists of the initial rank, which never changes, and the iteration, so that a fault is not injected again
after the restart that it has caused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from nvrx_core.failpoint import LAUNCHER_NAMES, NAMES, THREAD_NAMES
from nvrx_core.testing.faults import Call, Delay, FaultKind, Kind, Stamp, Store, inject, kind_of

__all__ = ["FailpointTrigger", "Place", "Point", "Schedule"]


class Point(NamedTuple):
    """A step of the training.

    Attributes:
        initial_rank: the initial rank.
        iteration: how often the function was restarted.
        step: the step within the iteration.
    """

    initial_rank: int
    iteration: int
    step: int

    def __str__(self) -> str:
        return f"{self.initial_rank}:{self.iteration}:{self.step}"


class FailpointTrigger(NamedTuple):
    """The n-th hit of a failpoint in an iteration.

    Attributes:
        initial_rank: the initial rank; failpoints that begin with `monitor-` are those of its monitor process.
        iteration: how often the function was restarted; -1 before the first iteration.
        failpoint: one of `nvrx_core.failpoint.NAMES`, of `LAUNCHER_NAMES`, where the iteration is the cycle, or of
            `THREAD_NAMES`, where it is -1.
        nth: the number of the hit in that iteration, from 1; a replaced monitor process continues the count.
    """

    initial_rank: int
    iteration: int
    failpoint: str
    nth: int = 1

    def __str__(self) -> str:
        return f"{self.initial_rank}:{self.iteration}@{self.failpoint}" + (f"#{self.nth}" if self.nth > 1 else "")


Place = Point | FailpointTrigger
"""A place at which a fault is injected."""


@dataclass(frozen=True)
class Schedule:
    """The faults to inject, by place.

    Example:
        >>> schedule = Schedule.parse("1:0:3=kill, 2:1@barrier-before=stop")
        >>> schedule.due(Point(initial_rank=1, iteration=0, step=3))
        <FaultKind.KILL: 'kill'>
    """

    faults: Mapping[Place, Kind] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Parse entries separated by commas; the reverse of `str`.

        An entry is `initial_rank:iteration:step=kind` or `initial_rank:iteration@failpoint=kind`, the latter with `#n`
        after the failpoint for its n-th hit. A kind is the value of a `FaultKind`, or `delay:seconds`.

        Raises:
            ValueError: when an entry is malformed, names an unknown kind or failpoint, or repeats a place; the message
                quotes the entry.
        """
        faults: dict[Place, Kind] = {}
        for entry in filter(None, map(str.strip, text.split(","))):
            place, kind = _parse_entry(entry)
            if place in faults:
                raise ValueError(f"{entry!r}: a fault is already scheduled at this point")
            faults[place] = kind
        return cls(faults)

    def __str__(self) -> str:
        return ", ".join(sorted(f"{place}={kind.value}" for place, kind in self))

    def __iter__(self) -> Iterator[tuple[Place, Kind]]:
        return iter(self.faults.items())

    def __len__(self) -> int:
        return len(self.faults)

    def due(self, place: Place) -> Kind | None:
        """Return the fault scheduled at `place`, if any."""
        return self.faults.get(place)

    def of_iteration(self, iteration: int) -> dict[Place, Kind]:
        """Return the faults of one iteration."""
        return {place: kind for place, kind in self if place.iteration == iteration}

    def hits(self, initial_rank: int) -> dict[FailpointTrigger, Kind]:
        """Return the faults at failpoints of one rank and its monitor process."""
        return {
            place: kind
            for place, kind in self
            if isinstance(place, FailpointTrigger) and place.initial_rank == initial_rank
        }

    def inject(
        self, point: Point, *, stamp: Stamp | None = None, call: Call | None = None, store: Store | None = None
    ) -> None:
        """Inject the fault that is due at `point`, if any. The parameters are those of the function `inject`."""
        if (kind := self.due(point)) is not None:
            inject(kind, stamp=stamp, call=call, store=store)


def _parse_entry(entry: str) -> tuple[Place, Kind]:
    where, _, kind = entry.partition("=")
    try:
        return _parse_place(where.strip()), kind_of(kind.strip())
    except ValueError as error:
        known = ", ".join((*(fault.value for fault in FaultKind), Delay(0.5).value))
        form = "initial_rank:iteration:step=kind or initial_rank:iteration@failpoint=kind"
        raise ValueError(f"{entry!r} is not {form} with a kind of {known}: {error}") from error


def _parse_place(where: str) -> Place:
    numbers, at, point = where.partition("@")
    if not at:
        initial_rank, iteration, step = map(int, numbers.split(":"))
        return Point(initial_rank, iteration, step)
    initial_rank, iteration = map(int, numbers.split(":"))
    name, _, nth = point.partition("#")
    if name not in (known := (*NAMES, *LAUNCHER_NAMES, *THREAD_NAMES)):
        raise ValueError(f"the failpoints are {', '.join(known)}")
    return FailpointTrigger(initial_rank, iteration, name, int(nth or 1))
