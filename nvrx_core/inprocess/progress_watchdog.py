"""The progress watchdog: a thread that asks the main thread, once an interval, whether it still runs bytecode.

The answer is a time on the progress page, which the monitor process reads. The same thread runs deferred work, which
must not delay a restart, and notices when the monitor process is lost or the store does not answer.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from nvrx_core.inprocess.groups.observer import GroupObserver
from nvrx_core.inprocess.interruption.interrupt import FunctionThread
from nvrx_core.liveness.awake_clock import AwakeClock
from nvrx_core.process.descriptors import notify
from nvrx_core.process.fork_server import ForkServer
from nvrx_core.process.heartbeat import heartbeat_of_this_thread
from nvrx_core.process.waiting import readable
from nvrx_core.progress.page import Page, ProgressField
from nvrx_core.progress.stage import Stage

__all__ = ["MainThreadWatchdog"]

log = logging.getLogger("nvrx_core.inprocess")
SILENT_STORE: Final = 10.0
"""Seconds without an answer from the store after which it counts as lost."""

IDLE: Final = 1.0
"""Seconds for which no idle work was given before it is done: then no restart is in progress, most likely."""
MAX_IDLE_WORK: Final = 16
"""Of more, the first are left out."""
ENDS_WITHIN: Final = 10.0


class Losses(Protocol):
    """The receiver of losses of what the rank needs."""

    def monitor_replaced(self, why: str) -> None:
        """Record that the monitor process was lost and replaced."""

    def fork_server_lost(self) -> None:
        """Record that the fork server has ended: a lost monitor process can no longer be replaced."""

    def store_lost(self, why: str) -> object:
        """Record that the store does not answer."""

    def connections_silent(self) -> None:
        """Record that nothing arrives on the rank's connections to the store, which runs."""

    def watcher_failed(self, error: BaseException) -> None:
        """Record that the calling thread ends with `error`, a `StoreFailure` or another one."""


class MainThreadWatchdog:
    """Asks the main thread every `interval` seconds, and runs deferred work.

    Args:
        page: the rank's page.
        interval: seconds between two questions.
        fork_server: forks the monitor process.
        function_thread: knows how many atomic sections are open, which is noted on the page.
        observer: notes there how many collectives have begun.
        losses: told what the rank has lost.
    """

    def __init__(
        self,
        page: Page,
        interval: float,
        fork_server: ForkServer,
        *,
        function_thread: FunctionThread,
        observer: GroupObserver,
        losses: Losses,
    ) -> None:
        self.page, self.interval, self.fork_server = page, interval, fork_server
        self._function_thread, self._observer, self._losses = function_thread, observer, losses
        self._work: deque[Callable[[], None]] = deque()
        self._idle_work: deque[Callable[[], None]] = deque(maxlen=MAX_IDLE_WORK)
        self._idle_at = 0.0
        self._heartbeat = heartbeat_of_this_thread()
        self._ending = self._store_reported = False
        self._awake, self._began = AwakeClock(), 0.0
        self._monitor, self._monitored_since, self._unheard_at = 0, 0.0, page[ProgressField.UNHEARD_AT]
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="nvrx-progress-watchdog", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def defer(self, work: Callable[[], None]) -> None:
        """Run `work` soon, in this thread."""
        self._work.append(work)
        notify(self._wake)

    def defer_idle(self, work: Callable[[], None]) -> None:
        """Run `work` in this thread once nothing was given here for `IDLE`; not at all if the call ends before."""
        self._idle_at = time.monotonic() + IDLE
        self._idle_work.append(work)

    def stop(self) -> None:
        """Finish the deferred work and end the thread, within a bound: deferred work may block for good."""
        self._ending = True
        with suppress(OSError):  # the function has closed it: the thread looks once an interval
            notify(self._wake)
        self._thread.join(ENDS_WITHIN)
        if self._thread.is_alive():
            log.warning("the progress watchdog does not end within %g s; the rank leaves without it", ENDS_WITHIN)
        else:
            os.close(self._wake)

    def _run(self) -> None:
        try:
            self._watch()
        except BaseException as error:  # boundary: the thread ends, and with it the rank's part in the job
            if not self._ending:
                self._losses.watcher_failed(error)

    def _watch(self) -> None:
        due = self._began = time.monotonic()
        watched: list[socket.socket | int] = [self.fork_server.channel, self._wake]
        while not self._ending:
            now = time.monotonic()
            if now >= due:
                due = now + min(self.interval, SILENT_STORE / 4)
                self._tick(now)
                if now >= self._idle_at:
                    self._do_work(self._idle_work)
            ready = readable(watched, due - time.monotonic())
            self._awake.woke(due, now=time.monotonic())
            if self._wake in ready:
                os.eventfd_read(self._wake)
                self._do_work(self._work)
            if self.fork_server.channel in ready:
                self._poll_fork_server()
                if self.fork_server.ended:
                    watched = [self._wake]
        self._do_work(self._work)

    def _tick(self, now: float) -> None:
        """Sign the page, ask the main thread, and report what the rank has lost."""
        page, awake = self.page, self._awake
        page[ProgressField.WATCHDOG_HEARTBEAT] = time.monotonic_ns()
        if heartbeat := self._heartbeat.poll():
            page[ProgressField.MAIN_THREAD_HEARTBEAT] = heartbeat
        self._observer.count_collectives()
        page[ProgressField.ATOMIC] = self._function_thread.depth
        # After the rank has left, its monitor process does not use the store any more.
        if not self._store_reported and page[ProgressField.STAGE] not in (Stage.LEFT, Stage.EXITED_ABNORMALLY):
            if page[ProgressField.MONITOR_PID] != self._monitor:  # it has as long for its first request
                self._monitor, self._monitored_since = page[ProgressField.MONITOR_PID], now
            answered = page[ProgressField.MONITOR_BEAT] / 1e9 or self._monitored_since
            is_lost = bool(page[ProgressField.STORE_LOST])  # the monitor process does not try it again
            if is_lost or (self._monitor and awake.at(now) - awake.at(answered) > SILENT_STORE):
                self._store_reported = True
                why = "the monitor process has lost it" if is_lost else f"no answer for {SILENT_STORE:g} s"
                self._losses.store_lost(why)
        unheard_at = page[ProgressField.UNHEARD_AT]
        if unheard_at != self._unheard_at:  # the monitor process finds that the end of a round does not arrive
            self._unheard_at = unheard_at
            self._losses.connections_silent()
        if self.fork_server.is_overdue(awake.at(now) - self._began):
            self._losses.fork_server_lost()

    def _poll_fork_server(self) -> None:
        poll = self.fork_server.poll()
        if self.fork_server.late:
            log.warning("no monitor process can be forked so far, it is tried again: %s", self.fork_server.reason)
        if poll:
            log.warning("the monitor process was replaced: %s", poll)
            self._losses.monitor_replaced(poll)
        if poll == "" and not self._ending:
            self._losses.fork_server_lost()

    def _do_work(self, work: deque[Callable[[], None]]) -> None:
        while work:
            try:
                work.popleft()()
            except Exception:  # boundary: deferred work must not end the watchdog
                log.exception("deferred work failed")
