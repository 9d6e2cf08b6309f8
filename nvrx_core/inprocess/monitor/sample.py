"""Samples of a rank: its progress page and the state of its process, in awake time."""

from __future__ import annotations

import math

from nvrx_core.liveness.awake_clock import AwakeClock
from nvrx_core.liveness.hang_detector import ProgressSample
from nvrx_core.process.lifeline import is_stopped
from nvrx_core.progress import sampling
from nvrx_core.progress.limits import earliest
from nvrx_core.progress.page import Page, ProgressField
from nvrx_core.progress.stage import Stage

__all__ = ["take_sample"]


def take_sample(page: Page, rank_pid: int, awake: AwakeClock, out_by: float = math.inf) -> ProgressSample:
    """Sample the rank's progress.

    Args:
        page: the rank's progress page.
        rank_pid: its process.
        awake: the awake time of this process.
        out_by: when its main thread must have left a round that is over, awake seconds.
    """
    iteration, stage = page[ProgressField.ITERATION], Stage(page[ProgressField.STAGE])
    watched = page[ProgressField.ATTACHED_AT] and stage is Stage.RUNNING
    return ProgressSample(
        iteration=iteration,
        stage=stage,
        alive_at=awake.at(page.alive_at()),
        watchdog_alive_at=awake.at(page[ProgressField.WATCHDOG_HEARTBEAT] / 1e9 or math.inf),
        stopped=is_stopped(rank_pid),
        protected=page[ProgressField.UNPROTECTED] == 0,
        noticed=page[ProgressField.NOTICED] == iteration + 1,
        interrupting=page[ProgressField.INTERRUPTING] == iteration + 1,
        imported_at=awake.at(page[ProgressField.IMPORTED_AT] / 1e9),
        out_by=math.inf if page[ProgressField.ATOMIC] else out_by,
        limit=earliest(sampling.take_sample(page, awake.at)) if watched else None,
    )
