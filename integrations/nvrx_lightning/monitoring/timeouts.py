"""Which timeouts a training learns, when, and from what. Pure.

A timeout is learned only if it is not configured, and only after the training has done what takes longest: the duration
of a batch does not predict that of a checkpoint, a sanity check that of a validation run, or the setup of a new
training that of one which loads a checkpoint. Until then the default applies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from nvrx_core.fault_tolerance.data import HeartbeatTimeouts, SectionTimeouts
from nvrx_core.fault_tolerance.timeouts import Measured, from_state, learn_heartbeat, learn_sections, to_state
from nvrx_lightning.monitoring.sections import CHECKPOINTING, REPEATED, SETUP, VALIDATION

__all__ = ["TimeoutLearning", "TrainingHistory", "due"]

FIRST: Final = 16
"""Batches before anything is learned."""
REGULAR: Final = 1024
"""Batches between two calculations, after the first ones, whose intervals double."""
STEPS: Final = 2
"""Optimizer steps before anything is learned: gradients may be accumulated over many batches."""


@dataclass(frozen=True)
class TrainingHistory:
    """What a training has done so far, equal on all ranks.

    Attributes:
        steps: optimizer steps.
        epochs: epochs that have ended.
        resumed: a checkpoint was loaded.
        validates: it has validation runs.
        saves: it writes checkpoints.
    """

    steps: int = 0
    epochs: int = 0
    resumed: bool = False
    validates: bool = False
    saves: bool = False

    def is_complete(self, measured: Measured) -> bool:
        """Whether each kind of pause between two batches has occurred."""
        validated = VALIDATION in measured.sections and measured.sections[VALIDATION] > 0
        saved = CHECKPOINTING in measured.sections and measured.sections[CHECKPOINTING] > 0
        return self.epochs > 0 and (validated or not self.validates) and (saved or not self.saves)


def due(batches: int) -> bool:
    """Whether to learn after this number of batches: 16, 32, 64 ... 1024, then every 1024."""
    doubled = FIRST <= batches <= REGULAR and batches & (batches - 1) == 0
    return doubled or (batches > 0 and batches % REGULAR == 0)


class TimeoutLearning:
    """The timeouts of a training: configured ones, else learned ones, else the defaults.

    Args:
        heartbeat: the configured timeouts, or their defaults.
        sections: the configured timeouts.
        default: the defaults of heartbeats.
        learns_all: learn the configured timeouts as well.
    """

    def __init__(
        self,
        heartbeat: HeartbeatTimeouts,
        sections: SectionTimeouts,
        default: HeartbeatTimeouts,
        *,
        learns_all: bool = False,
    ) -> None:
        self._heartbeat, self._sections = heartbeat, sections
        self._fixed = frozenset[str]() if learns_all else frozenset(sections.section)
        self._out_is_free = learns_all or sections.out_of_section is None
        self._heartbeat_is_free = learns_all or heartbeat == default
        self._initial = heartbeat.initial or default.initial

    def load(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Load what an earlier training learned; return the timeouts to enforce.

        Raises:
            RankMonitorClientError: when it is not what `state` has returned.
        """
        heartbeat, sections = from_state(state, HeartbeatTimeouts(), SectionTimeouts())
        if self._heartbeat_is_free and heartbeat.were_calculated:
            self._heartbeat = heartbeat
        free = sections.calculated_sections - self._fixed
        self._sections = replace(
            self._sections,
            section={**self._sections.section, **{name: sections.section[name] for name in free}},
            calculated_sections=free,
        )
        if self._out_is_free and sections.is_out_of_section_calculated:
            self._sections = replace(
                self._sections, out_of_section=sections.out_of_section, is_out_of_section_calculated=True
            )
        return self.state()

    def learn(self, measured: Measured, evidence: TrainingHistory, safety_factor: float) -> dict[str, Any]:
        """Learn from the measurements of all ranks; return the timeouts to enforce."""
        if evidence.steps >= STEPS:
            complete = evidence.is_complete(measured)
            names = (*REPEATED, SETUP) if evidence.resumed else REPEATED
            known = [name for name in names if name not in self._fixed and measured.sections.get(name, 0.0) > 0]
            out = complete and self._out_is_free and measured.out_of_section > 0
            self._sections = learn_sections(self._sections, measured, safety_factor, known, out_of_section=out)
            if complete and self._heartbeat_is_free and measured.has_heartbeats():
                self._learn_heartbeat(measured, safety_factor, resumed=evidence.resumed)
        return self.state()

    def state(self) -> dict[str, Any]:
        """Return what was learned, in the form of `RankMonitorClient.state_dict`."""
        return to_state(self._heartbeat, self._sections)

    def _learn_heartbeat(self, measured: Measured, safety_factor: float, *, resumed: bool) -> None:
        """Learn the heartbeat timeouts; the initial one stays until a training has loaded a checkpoint."""
        earlier = self._heartbeat
        learned = learn_heartbeat(earlier, measured, safety_factor)
        if not resumed:
            learned = replace(learned, initial=earlier.initial or self._initial)
        if learned.initial is not None:
            self._heartbeat = learned
