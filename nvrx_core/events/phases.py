"""The phases of a restart, computed from the timestamps (marks) of a rank. Pure.

Invariant: the phases add up to the time from the first mark to the last, in whatever order the marks were taken. A mark
that is missing or before its predecessor counts as equal to the predecessor; a mark after the last one counts as equal
to the last.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Final

__all__ = ["MARKS", "PHASES", "phases_from_marks"]

MARKS: Final = (
    "occurred", "announced", "noticed", "aborted", "interrupted", "finalized",
    "health_checked", "decided", "assigned", "initialized", "entered",
)  # fmt: skip
"""The moments that a rank timestamps, in the order of a restart."""

PHASES: Final = (
    "detect", "notify", "abort", "interrupt", "finalize", "health_check", "barrier", "assign", "initialize", "enter",
)  # fmt: skip
"""PHASES[i] lasts from MARKS[i] to MARKS[i + 1]."""


def phases_from_marks(marks: Mapping[str, float]) -> dict[str, float]:
    """Return the duration of each phase.

    Args:
        marks: monotonic seconds of one clock, by name; marks may be missing, unknown names are ignored.

    Returns:
        Seconds by phase, all phases in order, none negative. Their sum is `entered` - `occurred` if both are given and
        in order.
    """
    known = [marks[name] for name in MARKS if name in marks]
    if not known:
        return dict.fromkeys(PHASES, 0.0)
    start, end = known[0], max(known[0], known[-1])
    times = [start]
    for name in MARKS[1:]:
        times.append(min(max(times[-1], marks.get(name, start)), end))
    return {phase: after - before for phase, (before, after) in zip(PHASES, pairwise(times), strict=True)}
