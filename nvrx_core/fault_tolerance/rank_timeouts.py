"""The timeouts of a monitored rank: those of the configuration, of a checkpoint, and those it has learned. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nvrx_core.fault_tolerance.data import HeartbeatTimeouts, SectionTimeouts
from nvrx_core.fault_tolerance.timeouts import Measured, from_state, learn_heartbeat, learn_sections, to_state

__all__ = ["RankTimeouts"]


class RankTimeouts:
    """The timeouts of one rank.

    Attributes:
        heartbeat: the heartbeat timeouts, in seconds.
        sections: the section timeouts, in seconds.
    """

    def __init__(self) -> None:
        self.heartbeat, self.sections = HeartbeatTimeouts(), SectionTimeouts()
        self._safety_factor = 1.0
        self._loaded: Mapping[str, Any] | None = None

    def configure(self, heartbeat: HeartbeatTimeouts, sections: SectionTimeouts, *, safety_factor: float) -> None:
        """Set the configured timeouts; those of a state that was loaded before replace them.

        Args:
            heartbeat: the heartbeat timeouts.
            sections: the section timeouts.
            safety_factor: what a measured interval is multiplied by.
        """
        self.heartbeat, self.sections, self._safety_factor = heartbeat, sections, safety_factor
        if self._loaded is not None:
            self.load(self._loaded)

    def learn_heartbeat(self, measured: Measured) -> None:
        """Learn the heartbeat timeouts from measured intervals."""
        self.heartbeat = learn_heartbeat(self.heartbeat, measured, self._safety_factor)

    def learn_sections(self, measured: Measured, names: Sequence[str], *, out_of_section: bool) -> None:
        """Learn the timeouts of these sections, and of the time without an open one."""
        self.sections = learn_sections(
            self.sections, measured, self._safety_factor, names, out_of_section=out_of_section
        )

    def state(self) -> dict[str, Any]:
        """Return the learned timeouts as plain values."""
        return to_state(self.heartbeat, self.sections)

    def load(self, state: Mapping[str, Any]) -> None:
        """Load learned timeouts from a state.

        Raises:
            RankMonitorClientError: when it is no such state.
        """
        self.heartbeat, self.sections = from_state(state, self.heartbeat, self.sections)
        self._loaded = state
