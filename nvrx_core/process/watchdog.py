"""A progress watchdog without a wrapper: it reports when this process's main thread last ran bytecode.

It is for code that uses that of nvidia-resiliency-ext by itself. The wrapper has one of its own (`progress_watchdog`).
"""

from __future__ import annotations

import logging
import threading
import time
from datetime import timedelta
from typing import Final, Protocol

from nvrx_core.process.heartbeat import Heartbeat
from nvrx_core.process.helper_thread import HelperThread, HelperThreadError
from nvrx_core.values import value

__all__ = ["ProgressWatchdog", "Timestamp"]

log = logging.getLogger("nvrx_core.process")
END_TIMEOUT: Final = 5.0
"""Seconds that the thread has to end: the receiver may block."""


class Receiver(Protocol):
    """Gets the reports."""

    def send_timestamp(self, timestamp: Timestamp, /) -> object:
        """Take one; called in the watchdog's thread."""


@value
class Timestamp:
    """When this process was last seen to make progress, in monotonic seconds.

    Attributes:
        auto: its main thread ran bytecode; at first, when the watchdog was made.
        manual: it called `ping`; None before the first call.
    """

    auto: float
    manual: float | None = None


class ProgressWatchdog:
    """A thread that asks the main thread for a sign of life, once an interval, and reports it.

    Args:
        rank: the rank, for the name of the thread.
        receiver: gets a `Timestamp` for each interval.
        interval: the time between two reports.
    """

    def __init__(self, rank: int, receiver: Receiver, interval: timedelta) -> None:
        self._receiver, self._interval = receiver, interval.total_seconds()
        self._auto = time.monotonic()
        self._manual: float | None = None
        self._running, self._over = threading.Event(), threading.Event()
        self._reporting = threading.Lock()
        self._running.set()
        self._failure: HelperThreadError | None = None
        self._thread = HelperThread(self._run, name=f"nvrx-watchdog-{rank}", failed=self._fail)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def ping(self) -> None:
        """Report progress by hand.

        Raises:
            HelperThreadError: when the thread has failed, so that nothing is reported.
        """
        self._check()
        self._manual = time.monotonic()

    def pause_and_synchronize(self) -> None:
        """Stop reporting; no report is under way afterwards."""
        self._running.clear()
        with self._reporting:
            pass

    def resume(self) -> None:
        """Report again.

        Raises:
            RuntimeError: after `shutdown`.
            HelperThreadError: when the thread has failed.
        """
        self._check()
        if self._over.is_set():
            raise RuntimeError("resume() after shutdown(): make another ProgressWatchdog")
        self._running.set()

    def shutdown(self) -> None:
        """End the thread, and report once more; a second call does nothing else."""
        self._over.set()
        self._running.set()
        if self._thread.is_alive():
            self._thread.join(END_TIMEOUT)
        self._send()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _fail(self, error: HelperThreadError) -> None:
        log.error("%s; the progress of this process is not reported", error)
        self._failure = error

    def _run(self) -> None:
        heartbeat = Heartbeat()
        while not self._over.wait(self._interval):
            self._running.wait()
            with self._reporting:
                if self._running.is_set() and not self._over.is_set():
                    self._report(heartbeat)

    def _report(self, heartbeat: Heartbeat) -> None:
        if answered := heartbeat.poll():
            self._auto = answered / 1e9
        self._send()

    def _send(self) -> None:
        self._receiver.send_timestamp(Timestamp(self._auto, self._manual))
