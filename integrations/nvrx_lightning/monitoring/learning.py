"""Learning the timeouts of a training together with the other ranks, and saving them for the next job."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Self

import torch.distributed as dist

from nvrx_core.fault_tolerance import FaultToleranceConfig, HeartbeatTimeouts, RankMonitorClient, SectionTimeouts
from nvrx_core.fault_tolerance.collective import maxima
from nvrx_core.fault_tolerance.data import RankMonitorClientError
from nvrx_core.fault_tolerance.timeouts import Measured
from nvrx_core.settings import environment
from nvrx_lightning.monitoring import files
from nvrx_lightning.monitoring.timeouts import TimeoutLearning, TrainingHistory, due

__all__ = ["Learner"]


class Learner:
    """Measures durations, learns timeouts from them, and writes the timeouts to a file.

    Args:
        client: the client of the rank monitor.
        path: the file of learned timeouts; None for no file.
        learns_all: learn the timeouts that are configured as well.
        log: logger for what goes wrong.
    """

    def __init__(self, client: RankMonitorClient, path: Path | None, *, learns_all: bool, log: logging.Logger) -> None:
        self._client, self._path, self._log = client, path, log
        self._batches, self._first_step, self._epochs = 0, 0, 0
        self._resumed = False
        config = client.cfg or FaultToleranceConfig()
        heartbeat, sections = _timeouts(config)
        default, _ = _timeouts(FaultToleranceConfig())
        self._safety_factor = config.safety_factor
        self._learning = TimeoutLearning(heartbeat, sections, default, learns_all=learns_all)

    @classmethod
    def begin(
        cls, trainer: Any, client: RankMonitorClient | None, path: Path | None, *, learns_all: bool, log: logging.Logger
    ) -> Self | None:
        """Load the timeouts of an earlier job. A collective call; None if not all ranks can take part."""
        if client is None and environment.launcher_socket() is None:
            return None
        able = client is not None and _can_exchange()
        if not trainer.strategy.reduce_boolean_decision(able, all=True) or client is None:
            log.warning("no timeouts are learned: a rank has no rank monitor, or no process group on gloo or nccl")
            return None
        learner = cls(client, path if trainer.is_global_zero else None, learns_all=learns_all, log=log)
        learner.load(trainer.strategy.broadcast(learner.read()))
        return learner

    def read(self) -> dict[str, Any] | None:
        """Return the content of the file; None if there is none."""
        if self._path is None:
            return None
        try:
            return files.read_timeouts(self._path)
        except (OSError, ValueError) as error:
            self._log.warning("%s is not used: %s", self._path, error)
            return None

    def load(self, state: dict[str, Any] | None) -> None:
        """Enforce the timeouts that an earlier job learned."""
        if state is not None:
            try:
                self._client.load_state_dict(self._learning.load(state))
            except RankMonitorClientError as error:
                self._log.warning("learned timeouts are not used: %s", error)

    def started(self, step: int) -> None:
        """Note that the training starts, and its number of optimizer steps so far."""
        self._first_step = step

    def resumed(self) -> None:
        """Note that the training resumes from a checkpoint."""
        self._resumed = True

    def epoch_ended(self) -> None:
        """Note the end of an epoch."""
        self._epochs += 1

    def batch_ended(self, trainer: Any) -> None:
        """Learn when due. All ranks have trained on the same number of batches."""
        self._batches += 1
        if due(self._batches):
            self.learn(trainer)

    def learn(self, trainer: Any) -> None:
        """Learn from the durations that all ranks measured. A collective call."""
        measured = maxima(self._client.timeouts_calc if self._client.is_initialized else Measured())
        evidence = TrainingHistory(
            steps=trainer.global_step - self._first_step,
            epochs=self._epochs,
            resumed=self._resumed,
            validates=trainer.enable_validation,
            saves=bool(trainer.checkpoint_callbacks),
        )
        state = self._learning.learn(measured, evidence, self._safety_factor)
        if self._client.is_initialized:
            self._client.load_state_dict(state)
        if self._path is not None and state["current_timeouts"]:
            self._write(self._path, state)

    def _write(self, path: Path, state: dict[str, Any]) -> None:
        try:
            files.write_timeouts(path, state)
        except OSError as error:
            self._path = None
            self._log.warning("learned timeouts are not kept for the next job: %s", error)


def _timeouts(config: FaultToleranceConfig) -> tuple[HeartbeatTimeouts, SectionTimeouts]:
    return (
        HeartbeatTimeouts(config.initial_rank_heartbeat_timeout, config.rank_heartbeat_timeout),
        SectionTimeouts(dict(config.rank_section_timeouts), config.rank_out_of_section_timeout),
    )


def _can_exchange() -> bool:
    """Whether the ranks can exchange their measurements."""
    if not dist.is_available() or not dist.is_initialized():
        return True
    backend = dist.get_backend()
    return "gloo" in backend or "nccl" in backend
