"""Follows a run until it is over, by what its ranks write."""

from __future__ import annotations

import time
from collections.abc import Iterator

from demo_parts.journal import Follower
from demo_parts.run_history import Happening, RunHistory
from demo_parts.runs import Run
from demo_parts.schedule import CUT_OFF
from demo_parts.view import View

__all__ = ["Following"]

FRAME = 0.1
"""Seconds between two looks at what the ranks have written."""
SILENCE = 45.0
"""Seconds without a word from any rank after which a run is given up."""


class Following:
    """Takes in what happens in a run, and has it shown.

    Args:
        run: the run.
        history: what happened.
        view: shows it.
    """

    def __init__(self, run: Run, history: RunHistory, view: View) -> None:
        self._run, self._history, self._view = run, history, view
        self._follower = Follower(run.settings.records)
        self._heard = time.monotonic()

    def to_the_end(self) -> None:
        """Follows the run until it is over, or nothing is heard of it any more."""
        for _ in self.happenings():
            pass
        self._history.over, self._history.silent = time.monotonic(), any(code is None for code in self._run.exit_codes)
        self._view.end()

    def happenings(self, until: int | None = None) -> Iterator[Happening]:
        """What happens, once it is shown, until the run is over or the descriptor `until` can be read."""
        running = True
        while running and time.monotonic() < self._heard + SILENCE:
            running = self._run.wait(FRAME, until)
            lines = self._follower.lines()
            self._heard = time.monotonic() if lines else self._heard
            for happening in self._history.read(lines):
                self._view.show(happening)
                yield happening
            if not self._run.protected:
                self._end_hang()
            self._view.progress()

    def _end_hang(self) -> None:
        """What an operator does who finds a job standing still: the process that hangs is killed."""
        injection, now = self._history.pending, time.monotonic()
        if injection is None or injection in self._history.cut_off or now < injection.at + CUT_OFF:
            return
        if self._run.kill(injection.pid):
            self._history.cut_off[injection] = now
            self._view.cut_off(injection, now - injection.at)
