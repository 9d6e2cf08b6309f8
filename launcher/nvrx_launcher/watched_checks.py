"""Checks of this node that the launcher's event loop waits for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from nvrx_core.health.result import HealthReport
from nvrx_core.health.runner import HealthRunner
from nvrx_launcher.loop import EventLoop

__all__ = ["WatchedChecks"]


class WatchedChecks:
    """Runs checks, one request at a time, and hands over the report of each.

    Args:
        loop: the event loop that watches the program of the checks.
        runner: the caller's end of that program.
        finished: called with each report and the time, monotonic seconds.
    """

    def __init__(self, loop: EventLoop, runner: HealthRunner, finished: Callable[[HealthReport, float], None]) -> None:
        self._loop, self._runner, self._finished = loop, runner, finished
        self._watched = -1

    @property
    def deadline(self) -> float:
        """When `tick` is due, monotonic seconds; `inf` when no checks run."""
        return self._runner.deadline

    def start(self, checks: Sequence[str]) -> None:
        """Begin checks.

        Raises:
            OSError: when their program cannot be started.
        """
        watched = self._runner.start(checks)
        if watched != self._watched:
            self._forget()
            self._watched = watched
            self._loop.watch(watched, self._poll)

    def tick(self, *, now: float) -> None:
        """Look after checks whose time is over."""
        if now >= self._runner.deadline:
            self._poll()

    def close(self) -> None:
        """End the program of the checks."""
        self._forget()
        self._runner.close()

    def _poll(self) -> None:
        report = self._runner.poll()
        if not self._runner.is_running:
            self._forget()
        if report is not None:
            self._finished(report, time.monotonic())

    def _forget(self) -> None:
        if self._watched >= 0:
            self._loop.forget(self._watched)
            self._watched = -1
