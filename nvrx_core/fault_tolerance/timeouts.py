"""Timeouts learned from measured intervals. Pure.

A learned timeout is the longest interval that any rank has measured, times the safety factor. One that replaces an
earlier learned one is the mean of the two; a configured one is replaced. A checkpoint holds the learned timeouts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from nvrx_core.fault_tolerance.data import HeartbeatTimeouts, RankMonitorClientError, SectionTimeouts

__all__ = ["Measured", "from_state", "in_force", "learn_heartbeat", "learn_sections", "to_state"]

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


def in_force(timeout: float | None, *, learned: bool, least: float) -> float | None:
    """Return the timeout that is enforced where one is configured or learned.

    A learned one is at least `least`: a phase that has been short so far may last longer for a pause of the machine, of
    its file system or of its network, which must not end the rank.
    """
    return max(timeout, least) if learned and timeout is not None else timeout


def to_state(heartbeat: HeartbeatTimeouts, sections: SectionTimeouts) -> dict[str, Any]:
    """Return a state dict of the timeouts; a kind of which none was learned is left out."""
    current = dict[str, Any]()
    if heartbeat.were_calculated:
        current["heartbeat"] = asdict(heartbeat)
    if sections.calculated_sections or sections.is_out_of_section_calculated:
        calculated = {"calculated_sections": sorted(sections.calculated_sections)}
        current["section"] = {**asdict(sections), **calculated}
    return {"current_timeouts": current}


def from_state(
    state: Mapping[str, Any], heartbeat: HeartbeatTimeouts, sections: SectionTimeouts
) -> tuple[HeartbeatTimeouts, SectionTimeouts]:
    """Return the timeouts with the learned ones of a state; configured ones in the state are ignored.

    Raises:
        RankMonitorClientError: when it is not such a state dict.
    """
    try:
        learned = state["current_timeouts"]
        if (found := learned.get("heartbeat")) is not None and found["were_calculated"]:
            initial, subsequent = _seconds(found["initial"]), _seconds(found["subsequent"])
            heartbeat = HeartbeatTimeouts(initial, subsequent, were_calculated=True)
        if (found := learned.get("section")) is not None:
            by_name = {name: _seconds(found["section"][name]) for name in found["calculated_sections"]}
            sections = replace(
                sections,
                section={**sections.section, **by_name},
                calculated_sections=sections.calculated_sections | by_name.keys(),
            )
            if found["is_out_of_section_calculated"]:
                out_of_section = _seconds(found["out_of_section"])
                sections = replace(sections, out_of_section=out_of_section, is_out_of_section_calculated=True)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise RankMonitorClientError(f"load_state_dict(): not what state_dict() has returned ({why})") from None
    return heartbeat, sections


def _seconds(value: Any) -> float:
    if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
        raise ValueError(f"not a time in seconds: {value!r}")
    return float(value)


def _merged(earlier: float | None, new: float) -> float:
    return new if earlier is None else (1 - WEIGHT) * earlier + WEIGHT * new
