"""One training, as reported to its rank monitor and its wrapped call."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from nvrx_core.fault_tolerance import RankMonitorClient
from nvrx_lightning.monitoring import sections
from nvrx_lightning.monitoring.profiler import ActionListener, PhaseProfiler
from nvrx_lightning.monitoring.progress_reporter import ProgressReporter

if TYPE_CHECKING:
    from nvrx_core.inprocess import CallWrapper
    from nvrx_lightning.monitoring.faults import SimulatedFaults
    from nvrx_lightning.monitoring.learning import Learner

__all__ = ["Training"]


class Training:
    """One run of `Trainer.fit`, or one iteration of it in a strategy with in-process restart.

    Args:
        trainer: the trainer.
        client: the client of the rank monitor; None for none.
        call: the wrapped call; None for none.
        heartbeats: whether to send them.
        log: logger for what goes wrong.

    Attributes:
        learner: learns timeouts; None for none.
    """

    def __init__(
        self,
        trainer: Any,
        client: RankMonitorClient | None,
        call: CallWrapper | None,
        *,
        heartbeats: bool,
        log: logging.Logger,
    ) -> None:
        self._trainer, self._call = trainer, call
        config = None if client is None else client.cfg
        configured = {} if config is None else config.rank_section_timeouts
        out_of_section = None if config is None else config.rank_out_of_section_timeout
        in_use = sections.sections_in_use(configured, out_of_section)
        self._batch_section = "" if sections.VALIDATION in in_use else sections.STEP
        self._reporter = ProgressReporter(client, call, in_use, heartbeats=heartbeats, log=log)
        self._fault_in: Callable[[str], Callable[[], None] | None] = lambda phase: None
        self.learner: Learner | None = None

    def begin(self, faults: SimulatedFaults | None) -> None:
        """Start to report: `fit` is being set up."""
        trainer = self._trainer
        if faults is not None:
            faults.begin(trainer.global_rank, trainer.world_size)
            self._fault_in = faults.finder(trainer.global_rank, lambda: trainer.global_step, self._call)
        trainer.profiler = PhaseProfiler(trainer.profiler, self._listener)
        self._enter(sections.SETUP)

    def started(self) -> None:
        """Note that the setup has ended."""
        self._reporter.leave(sections.SETUP)
        if self.learner is not None:
            self.learner.started(self._trainer.global_step)

    def batch_ended(self) -> None:
        """Note that a batch was trained on."""
        self._reporter.progress(self._trainer.global_step)
        if self.learner is not None:
            self.learner.batch_ended(self._trainer)

    def validation_begins(self) -> None:
        """Note that a validation run begins."""
        self._enter(sections.VALIDATION)

    def validation_batch_begins(self) -> None:
        """Note that a batch of a validation run begins."""
        self._reporter.beat()
        if self._batch_section:
            self._reporter.enter(self._batch_section)

    def validation_batch_ended(self) -> None:
        """Note that a batch of a validation run has ended."""
        if self._batch_section:
            self._reporter.leave(self._batch_section)

    def validation_ended(self) -> None:
        """Note that a validation run has ended."""
        self._reporter.leave(sections.VALIDATION)

    def finished(self) -> None:
        """Note that the training has ended and that `fit` is about to be torn down. A collective call."""
        self._reporter.leave_all()
        if self.learner is not None:
            self.learner.learn(self._trainer)
        self._enter(sections.TEARDOWN)

    def end(self) -> None:
        """Stop reporting, also after an exception."""
        if isinstance(self._trainer.profiler, PhaseProfiler):
            self._trainer.profiler = self._trainer.profiler.unwrap()
        self._reporter.end()

    def _enter(self, section: str) -> None:
        self._reporter.enter(section)
        if (inject := self._fault_in(section)) is not None:
            inject()

    def _listener(self, action: str) -> ActionListener | None:
        reporter, section = self._reporter, sections.section_of(action)
        inject = self._fault_in(sections.phase_of(action))
        if not section:
            return None if inject is None else ActionListener(inject, _nothing, _nothing)
        leave, abandon = partial(reporter.leave, section), partial(reporter.abandon, section)
        if inject is None:
            return ActionListener(partial(reporter.enter, section), leave, abandon)

        def enter_and_inject() -> None:
            reporter.enter(section)
            inject()

        return ActionListener(enter_and_inject, leave, abandon)


def _nothing() -> None:
    """Do nothing."""
