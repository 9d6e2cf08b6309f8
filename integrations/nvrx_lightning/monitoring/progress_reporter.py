"""Progress reports of a rank during a training: to its rank monitor, and to the wrapped call that it runs in."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Final, Protocol

from nvrx_core.fault_tolerance import RankMonitorClientError
from nvrx_lightning.monitoring.sections import SETUP, STEP

__all__ = ["Monitor", "ProgressReporter", "ReportedCall"]

WARMUP_STEPS: Final = 5
"""Initial steps of an iteration without `ping`, so that the soft timeout does not apply: they may compile."""


class Monitor(Protocol):
    """The methods used of a `RankMonitorClient`."""

    def send_heartbeat(self) -> None:
        """Send a heartbeat."""

    def start_section(self, section: str) -> None:
        """Open a section."""

    def end_section(self, section: str) -> None:
        """Close a section."""

    def abandon_section(self, section: str) -> None:
        """Close a section that was interrupted."""


class ReportedCall(Protocol):
    """The methods used of a `CallWrapper`."""

    def ping(self) -> None:
        """Report progress."""

    def suspend_pings(self) -> None:
        """Expect no ping until the next one."""

    def progress(self, step: int, *, watched: bool = True) -> None:
        """Report a completed step."""


class ProgressReporter:
    """Heartbeats and sections of one training. A failure to report never ends the training.

    The first heartbeat follows `setup`, so that the initial timeout applies to the setup. Opening an open section, or
    closing a closed one, does nothing, so a section that an exception left open does no harm.

    Args:
        monitor: the client of the rank monitor; None for none.
        call: the wrapped call; None for none.
        sections: those to open.
        heartbeats: whether to send heartbeats.
        log: logger for the loss of the monitor.
    """

    def __init__(
        self,
        monitor: Monitor | None,
        call: ReportedCall | None,
        sections: frozenset[str],
        *,
        heartbeats: bool = True,
        log: logging.Logger,
    ) -> None:
        self._monitor: Monitor = monitor or _NoMonitor()
        self._call, self._sections, self._log = call, sections, log
        self._heartbeats, self._is_set_up, self._steps = heartbeats, False, 0
        self._open = set[str]()

    def beat(self) -> None:
        """Send a heartbeat, once the setup has ended."""
        if self._heartbeats and self._is_set_up:
            try:
                self._monitor.send_heartbeat()
            except RankMonitorClientError as error:
                self._lose(error)

    def enter(self, section: str) -> None:
        """Open a section, if it is in use and closed."""
        if section == STEP:
            self._ping()
        if section in self._open or section not in self._sections:
            return
        self.beat()
        self._open.add(section)
        try:
            self._monitor.start_section(section)
        except RankMonitorClientError as error:
            self._lose(error)

    def leave(self, section: str) -> None:
        """Close a section, if it is open."""
        if section == STEP and self._call is not None:
            self._call.suspend_pings()  # what follows may be a validation run
        if section not in self._open:
            return
        self._open.remove(section)
        self._is_set_up = self._is_set_up or section == SETUP
        try:
            self._monitor.end_section(section)
        except RankMonitorClientError as error:
            self._lose(error)
        self.beat()

    def abandon(self, section: str) -> None:
        """Close a section that an exception has ended, if it is open: its duration does not count for learning."""
        if section == STEP and self._call is not None:
            self._call.suspend_pings()
        if section in self._open:
            self._open.remove(section)
            with suppress(RankMonitorClientError):  # another iteration of a wrapped call may have begun
                self._monitor.abandon_section(section)

    def leave_all(self) -> None:
        """Close all open sections."""
        for section in tuple(self._open):
            self.leave(section)

    def end(self) -> None:
        """Close all open sections after an exception."""
        for section in tuple(self._open):
            self.abandon(section)

    def progress(self, step: int) -> None:
        """Report how many steps are completed."""
        if self._call is not None:
            self._call.progress(step, watched=False)

    def _ping(self) -> None:
        if self._call is not None:
            self._steps += 1
            if self._steps > WARMUP_STEPS:
                self._call.ping()

    def _lose(self, error: RankMonitorClientError) -> None:
        """Continue without the monitor: another client has replaced this one, or opened the section."""
        self._log.warning("the progress of this training is no longer reported to the rank monitor: %s", error)
        self._monitor = _NoMonitor()


class _NoMonitor:
    """The client where there is no rank monitor."""

    def send_heartbeat(self, _: str = "") -> None:
        """Do nothing."""

    start_section = end_section = abandon_section = send_heartbeat
