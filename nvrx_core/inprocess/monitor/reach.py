"""How the monitor process reaches a rank whose own threads do not run: by a word on the page and a signal."""

from __future__ import annotations

from collections.abc import Callable

from nvrx_core.inprocess.monitor.unheard import AskEvent, RoundOver, SendSignal, Unheard, UnheardAction
from nvrx_core.liveness.hang_detector import ProgressSample
from nvrx_core.process.lifeline import send
from nvrx_core.progress.page import Page, ProgressField
from nvrx_core.progress.stage import Stage

__all__ = ["Reach"]


class Reach:
    """The shell of `Unheard`.

    Args:
        unheard: decides.
        page: the rank's page.
        pidfd: names the rank's process.
        signum: the interrupt signal.
        is_over: whether a round has its event; asks the store.
    """

    def __init__(
        self, unheard: Unheard, page: Page, *, pidfd: int, signum: int, is_over: Callable[[int], bool]
    ) -> None:
        self.unheard, self.page, self._pidfd, self._signum, self._is_over = unheard, page, pidfd, signum, is_over

    def turn(self, reading: ProgressSample, *, now: float) -> None:
        """Do what is due; `unheard.deadline` says when the next turn is."""
        busy, breathing_at = reading.stage is Stage.RUNNING, reading.breathing_at
        for action in self.unheard.look(
            reading.iteration, busy=busy, noticed=reading.noticed, breathing_at=breathing_at, now=now
        ):
            self._perform(action, reading.iteration, now)

    def _perform(self, action: UnheardAction, iteration: int, now: float) -> None:
        match action:
            case AskEvent():
                for more in self.unheard.answered(self._is_over(iteration), now=now):
                    self._perform(more, iteration, now)
            case RoundOver():
                self.page[ProgressField.ROUND_OVER] = iteration + 1
            case SendSignal():
                send(self._pidfd, [self._signum])
