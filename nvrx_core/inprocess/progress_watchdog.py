"""The progress watchdog: a thread that asks the main thread, once an interval, whether it still runs bytecode.

The answer (`heartbeat`) is a time on the progress page, which the monitor process reads: that of the look before the
one that has found it. The same thread carries out small work that must not delay a restart, and notices what becomes of
the monitor process.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from nvrx_core.liveness.awake_clock import AwakeClock
from nvrx_core.process.fork_server import ForkServer
from nvrx_core.process.heartbeat import heartbeat_of_this_thread
from nvrx_core.process.waiting import readable
from nvrx_core.progress.page import Page, ProgressField
from nvrx_core.progress.stage import Stage

__all__ = ["ProgressWatchdog"]

log = logging.getLogger("nvrx_core.inprocess")
SILENT_STORE: Final = 10.0
"""Seconds without an answer from the store after which it counts as lost."""

ENDS_WITHIN: Final = 10.0


class ProgressWatchdog:
    """Asks at `interval`; `defer` runs work in its thread.

    Args:
        page: the rank's page.
        interval: seconds between two questions.
        template: the monitor's template process.
        replaced: called with the reason when the monitor process was replaced.
        gone: called when the template process has ended, and nothing will be replaced any more.
        observe: notes on the page what else shows how far the rank has come.
        silent: called once when the store has not answered for `SILENT_STORE` seconds.
        failed: called with what has ended the thread, if anything does.

    Attributes:
        depth: how many atomic sections are open; noted on the page.
    """

    def __init__(
        self,
        page: Page,
        interval: float,
        fork_server: ForkServer,
        replaced: Callable[[str], None],
        *,
        gone: Callable[[], None],
        observe: Callable[[], None],
        silent: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self.page, self.interval, self.fork_server = page, interval, fork_server
        self._replaced, self._gone, self._observe = replaced, gone, observe
        self._silent, self._failed = silent, failed
        self.depth: Callable[[], int] = lambda: 0
        self._work: deque[Callable[[], None]] = deque()
        self._heartbeat = heartbeat_of_this_thread()
        self._ending = self._told = False
        self._awake = AwakeClock()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="nvrx-progress-watchdog", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def defer(self, work: Callable[[], None]) -> None:
        """Run `work` soon, in this thread."""
        self._work.append(work)
        os.eventfd_write(self._wake, 1)

    def stop(self) -> None:
        """Finish the deferred work and end the thread; within a bound, for it may be held up in what no thread ends."""
        self._ending = True
        os.eventfd_write(self._wake, 1)
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
                self._failed(error)

    def _watch(self) -> None:
        due = time.monotonic()
        watched: list[Any] = [self.fork_server.channel, self._wake]
        while not self._ending:
            now = time.monotonic()
            if now >= due:
                due = now + min(self.interval, SILENT_STORE / 4)
                self._question(now)
            ready = readable(watched, due - time.monotonic())
            self._awake.woke(due, now=time.monotonic())
            if self._wake in ready:
                os.eventfd_read(self._wake)
                self._do_work()
            if self.fork_server.channel in ready:
                self._hear()
                if self.fork_server.ended:
                    watched = [self._wake]
        self._do_work()

    def _question(self, now: float) -> None:
        self.page[ProgressField.WATCHDOG_HEARTBEAT] = time.monotonic_ns()
        if answered := self._heartbeat.look():
            self.page[ProgressField.MAIN_THREAD_HEARTBEAT] = answered
        self._observe()
        self.page[ProgressField.ATOMIC] = self.depth()
        self._judge_store(now)

    def _judge_store(self, now: float) -> None:
        """Whether the store is silent; with the monitor process of a rank that has left, nobody asks it any more."""
        beat = self.page[ProgressField.MONITOR_BEAT] / 1e9
        asked = beat and self.page[ProgressField.STAGE] not in (Stage.LEFT, Stage.EXITED_ABNORMALLY)
        if asked and self._awake.at(now) - self._awake.at(beat) > SILENT_STORE and not self._told:
            self._told = True
            self._silent()

    def _hear(self) -> None:
        poll = self.fork_server.poll()
        if poll:
            log.warning("the monitor process was replaced: %s", poll)
            self._replaced(poll)
        if poll == "" and not self._ending:
            self._gone()

    def _do_work(self) -> None:
        while self._work:
            try:
                self._work.popleft()()
            except Exception:  # boundary: deferred work must not end the watchdog
                log.exception("deferred work failed")
