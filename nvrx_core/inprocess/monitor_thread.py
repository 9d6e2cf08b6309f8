"""The monitor thread, which runs the flow of `nvrx_core.inprocess.protocol.monitor_thread`.

It lives as long as the call and blocks in the store, on a connection of its own: a fault reaches it as a push. The main
thread waits for it on a local condition only, so that nothing but its own function can block the main thread where no
signal reaches.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from nvrx_core.failpoint import hit
from nvrx_core.flow import operation, run
from nvrx_core.inprocess.interruption.interrupt import Interrupt, RankShouldRestart
from nvrx_core.inprocess.interruption.switch_interval import ShortTurns
from nvrx_core.inprocess.progress_watchdog import Losses
from nvrx_core.inprocess.protocol.monitor_thread import MonitorThreadFlow
from nvrx_core.inprocess.protocol.round import Rounds, RoundStore
from nvrx_core.process.signal_safe import SignalSafeCondition
from nvrx_core.progress.page import Page, ProgressField

__all__ = ["MonitorThread", "RankShouldRestart"]

log = logging.getLogger("nvrx_core.inprocess")
ENDS_WITHIN: Final = 8.0
"""Seconds; it may be connecting to a store that is lost, which torch tries for up to 5 s."""


class Function(Protocol):
    """The wrapped function, as seen from the thread that ends it."""

    def notice(self, iteration: int) -> None:
        """Record that the round has its event; called before anything is done about it."""

    def begin(self, iteration: int) -> None:
        """Abort the calls in which the function waits."""

    def unblock(self) -> None:
        """Close the connection in which the main thread waits, where no signal reaches it."""

    def release(self) -> None:
        """Release what the function has left: the round is decided, and the main thread continues."""


class MonitorThread:
    """Runs the rounds of one call.

    Args:
        store: the keys of the rounds, on a connection of this thread alone.
        page: the rank's page.
        interrupt: gets the main thread out of the function.
        rounds: shared with the main thread.
        changed: its lock is held during a step of either thread's flow; notified after each.
        function: what the thread ends.
        losses: told what has ended the thread.

    Attributes:
        marks: monotonic seconds of the round that ends, by the names of `nvrx_core.events.phases.MARKS`.
    """

    def __init__(
        self,
        *,
        store: RoundStore,
        page: Page,
        interrupt: Interrupt,
        rounds: Rounds,
        changed: SignalSafeCondition,
        function: Function,
        losses: Losses,
    ) -> None:
        self.store, self.page, self.interrupt, self.rounds = store, page, interrupt, rounds
        self.changed, self._function, self._losses = changed, function, losses
        self.marks = dict[str, float]()
        self._turns = ShortTurns()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="nvrx-monitor-thread", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, cut: Callable[[], None]) -> None:
        """End the thread; `cut` ends its wait on the store."""
        self._stopping = True
        self.interrupt.out.set()
        self.interrupt.free.set()
        self.changed.notify_all()
        if self._thread.is_alive():
            cut()
        self._thread.join(ENDS_WITHIN)
        if self._thread.is_alive():
            log.warning("the monitor thread does not end within %g s; the rank leaves without it", ENDS_WITHIN)

    def _run(self) -> None:
        try:
            flow = MonitorThreadFlow(self.rounds, self.store, self, time.monotonic)
            run(flow.run(), self.changed.lock, self.changed.notify_all)
        except BaseException as error:  # boundary: the thread ends, and with it the rank's part in the job
            if not self._stopping:
                self._losses.watcher_failed(error)
        finally:
            self._turns.end()

    @operation
    def event_received(self, iteration: int) -> None:
        """Record that the round has its event."""
        self.page[ProgressField.NOTICED] = iteration + 1
        self.marks = {"noticed": time.monotonic()}

    @operation
    def decision_received(self, iteration: int) -> None:
        """The round has its decision."""
        hit("decision-after", iteration)

    @operation
    def notice(self, iteration: int) -> None:
        """The round restarts: record the progress of this rank."""
        self._turns.begin()
        self._function.notice(iteration)

    @operation
    def last_call(self, seconds: float) -> None:
        """Wait for late faults, for so many seconds."""
        self.changed.wait_for(lambda: self._stopping, seconds)

    @operation
    def interrupt_function(self, reason: str) -> None:
        """Ask the main thread to leave the function, and wait until it is in no atomic section."""
        self.interrupt.request(lambda: RankShouldRestart(reason))
        self.interrupt.fire()
        self.interrupt.wait_unmasked()

    @operation
    def abort_function(self, iteration: int) -> None:
        """Abort the calls in which the function blocks."""
        self.page[ProgressField.INTERRUPTING] = iteration + 1
        hit("abort-before", iteration)
        self._function.begin(iteration)
        self.marks["aborted"] = time.monotonic()

    @operation
    def await_out(self) -> None:
        """Interrupt the main thread until it has left the function."""
        self.interrupt.drive(self._function.unblock)

    @operation
    def reset_interrupt(self) -> None:
        """The next round starts: discard the request to leave the function."""
        self.interrupt.reset()

    @operation
    def round_decided(self) -> None:
        """The round is decided: the main thread continues, or leaves the job."""
        self._turns.end()
        self._function.release()
