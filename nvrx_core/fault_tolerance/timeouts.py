"""Timeouts that are learned from what was measured. Pure.

A learned timeout is the longest interval that any rank has measured, times the safety factor. One that replaces an
earlier learned one is the mean of the two; a configured one is replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from nvrx_core.fault_tolerance.data import HeartbeatTimeouts, SectionTimeouts

__all__ = ["Measured", "learn_heartbeat", "learn_sections"]

WEIGHT: Final = 0.5
"""Of the new value, where both the earlier one and the new one are learned."""


@dataclass(frozen=True)
class Measured:
    """The longest intervals so far, in seconds; 0 for what has not been measured.

    Attributes:
        initial: from the start of monitoring to the first heartbeat.
        subsequent: between two heartbeats.
        out_of_section: with no section open.
        sections: from opening to closing, by name.
    """

    initial: float = 0.0
    subsequent: float = 0.0
    out_of_section: float = 0.0
    sections: Mapping[str, float] = field(default_factory=dict)

    def has_heartbeats(self) -> bool:
        """Whether heartbeat timeouts can be learned from it."""
        return self.initial > 0 and self.subsequent > 0

    def has_sections(self, names: Iterable[str], *, out_of_section: bool) -> bool:
        """Whether the timeouts of these sections, and of none, can be learned from it."""
        measured = all(self.sections.get(name, 0.0) > 0 for name in names)
        return measured and (self.out_of_section > 0 or not out_of_section)


def learn_heartbeat(current: HeartbeatTimeouts, measured: Measured, safety_factor: float) -> HeartbeatTimeouts:
    """Return the heartbeat timeouts after a calculation."""
    earlier = current if current.were_calculated else HeartbeatTimeouts()
    return HeartbeatTimeouts(
        initial=_merged(earlier.initial, safety_factor * measured.initial),
        subsequent=_merged(earlier.subsequent, safety_factor * measured.subsequent),
        were_calculated=True,
    )


def learn_sections(
    current: SectionTimeouts, measured: Measured, safety_factor: float, names: Iterable[str], *, out_of_section: bool
) -> SectionTimeouts:
    """Return the section timeouts after a calculation for these sections; others keep theirs."""
    learned = {
        name: _merged(
            current.section[name] if name in current.calculated_sections else None,
            safety_factor * measured.sections[name],
        )
        for name in names
    }
    new = replace(
        current,
        section={**current.section, **learned},
        calculated_sections=current.calculated_sections | learned.keys(),
    )
    if not out_of_section:
        return new
    earlier = current.out_of_section if current.is_out_of_section_calculated else None
    merged = _merged(earlier, safety_factor * measured.out_of_section)
    return replace(new, out_of_section=merged, is_out_of_section_calculated=True)


def _merged(earlier: float | None, new: float) -> float:
    return new if earlier is None else (1 - WEIGHT) * earlier + WEIGHT * new
