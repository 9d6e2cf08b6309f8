"""The progress of this rank when a round ended, sampled as soon as the round's event is received.

Later the counters change: the abort clears torch's groups, and an interrupted function runs its cleanup.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from nvrx_core.fault.blame import Progress
from nvrx_core.progress.page import Page, ProgressField
from nvrx_core.progress.stage import Stage

__all__ = ["RoundProgress"]


class RoundProgress:
    """One sample per round, the first one.

    Args:
        page: the rank's page.
        soft: soft timeout, seconds.
        observe: updates the page's count of collectives, and returns the counts of the other groups.

    Attributes:
        progress: the progress of the rank.
        stalled: it had shown no sign of life for half the soft timeout, or was reported.
    """

    def __init__(self, page: Page, soft: float, observe: Callable[[], tuple[tuple[int, int], ...]]) -> None:
        self.page, self.soft, self._observe = page, soft, observe
        self.iteration = -1
        self.progress, self.stalled = Progress(), False

    def take(self, iteration: int) -> None:
        """Take the sample of this round; a rank that has not started the iteration has no progress."""
        if iteration == self.iteration:
            return
        page, self.progress, self.stalled = self.page, Progress(), False
        if page[ProgressField.ITERATION] == iteration:
            groups = self._observe()
            silent = page[ProgressField.STAGE] == Stage.RUNNING and time.monotonic() - page.alive_at() > self.soft / 2
            self.stalled = silent or page[ProgressField.STALLED] == iteration + 1
            self.progress = Progress(
                rendezvous=page[ProgressField.RENDEZVOUS_COUNT],
                inside=page[ProgressField.RENDEZVOUS_DEPTH],
                collectives=page[ProgressField.COLLECTIVES],
                step=page[ProgressField.STEP],
                groups=groups,
            )
        self.iteration = iteration
