"""The monitor thread, which runs the flow of `nvrx_core.inprocess.protocol.flows`.

It lives as long as the call and blocks in the store, on a connection of its own: a fault reaches it as a push. The main
thread waits for it on a local condition only, so that nothing but its own function can block the main thread where no
signal reaches.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final, Protocol

from nvrx_core.flow import run
from nvrx_core.inprocess.progress_watchdog import Losses
from nvrx_core.inprocess.protocol.flows import MonitorThreadFlow
from nvrx_core.inprocess.protocol.outcome import RankShouldRestart
from nvrx_core.inprocess.protocol.ports import FunctionAbortPort
from nvrx_core.inprocess.protocol.round import Rounds, RoundStore
from nvrx_core.process.signal_safe import SignalSafeCondition

__all__ = ["MonitorThread", "RankShouldRestart"]

log = logging.getLogger("nvrx_core.inprocess")
ENDS_WITHIN: Final = 8.0
"""Seconds; it may be connecting to a store that is lost, which torch tries for up to 5 s."""


class StoppableAbort(FunctionAbortPort, Protocol):
    """The abort of the function, in this thread, which can be stopped."""

    def stop(self) -> None:
        """End the waits of the thread."""

    def thread_ended(self) -> None:
        """The thread has ended, whatever it was about to do."""


class MonitorThread:
    """Runs the rounds of one call.

    Args:
        store: the keys of the rounds, on a connection of this thread alone.
        rounds: shared with the main thread.
        changed: its lock is held during a step of either thread's flow; notified after each.
        abort: ends the function.
        losses: told what has ended the thread.
    """

    def __init__(
        self,
        *,
        store: RoundStore,
        rounds: Rounds,
        changed: SignalSafeCondition,
        abort: StoppableAbort,
        losses: Losses,
    ) -> None:
        self.store, self.rounds, self.changed = store, rounds, changed
        self._abort, self._losses, self._stopping = abort, losses, False
        self._thread = threading.Thread(target=self._run, name="nvrx-monitor-thread", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, cut: Callable[[], None]) -> None:
        """End the thread; `cut` ends its wait on the store."""
        self._stopping = True
        self._abort.stop()
        if self._thread.is_alive():
            cut()
        self._thread.join(ENDS_WITHIN)
        if self._thread.is_alive():
            log.warning("the monitor thread does not end within %g s; the rank leaves without it", ENDS_WITHIN)

    def _run(self) -> None:
        try:
            flow = MonitorThreadFlow(self.rounds, self.store, self._abort)
            run(flow.run(), self.changed.lock, self.changed.notify_all)
        except BaseException as error:  # boundary: the thread ends, and with it the rank's part in the job
            if not self._stopping:
                self._losses.watcher_failed(error)
        finally:
            self._abort.thread_ended()
