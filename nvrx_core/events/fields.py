"""The fields of events as files have them: any of them may be missing or malformed, and reads as empty then. Pure."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping

__all__ = ["Event", "clock_offsets", "mapping", "number", "one_line", "ranks", "seconds", "text", "time_of", "whole"]

Event = Mapping[str, object]
"""One line of an event file, by field."""


def seconds(value: object) -> float | None:
    """Return a finite number, None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def number(event: Event, name: str) -> float:
    """Return a number of an event, 0 for none."""
    return seconds(event.get(name)) or 0.0


def whole(event: Event, name: str) -> int:
    """Return a whole number of an event, 0 for none."""
    return int(number(event, name))


def text(event: Event, name: str) -> str:
    """Return a field as text of one line."""
    return one_line(event.get(name, ""))


def mapping(event: Event, name: str) -> Mapping[str, object]:
    """Return a mapping of an event."""
    value = event.get(name)
    return value if isinstance(value, Mapping) else {}


def ranks(event: Event, name: str) -> tuple[int, ...]:
    """Return the ranks in a list of an event."""
    value = event.get(name)
    return tuple(item for item in value if isinstance(item, int)) if isinstance(value, list | tuple) else ()


def one_line(value: object) -> str:
    """Return a value as text without line breaks."""
    return " ".join(str(value).split())


def clock_offsets(events: Iterable[Event]) -> dict[object, float]:
    """Return the offset from monotonic clock to wall clock, by host: the median over its events."""
    differences: dict[object, list[float]] = defaultdict(list)
    for event in events:
        differences[_clock(event)].append(number(event, "wall") - number(event, "monotonic"))
    return {clock: statistics.median(found) for clock, found in differences.items()}


def time_of(event: Event, offsets: Mapping[object, float], moment: float | None = None) -> float:
    """Return the wall time of an event, or of a moment by the monotonic clock of its host."""
    monotonic = number(event, "monotonic") if moment is None else moment
    return monotonic + offsets[_clock(event)]


def _clock(event: Event) -> str:
    return str(event.get("boot_id") or event.get("host"))
