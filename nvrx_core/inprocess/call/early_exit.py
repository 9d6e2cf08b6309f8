"""Leaving out of turn: the store is lost, or a part of the wrapper that a rank must not go on without.

The first reason counts. The main thread is got out of the function, or out of its wait for the others, and the call
ends with the reason.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from nvrx_core.errors import RestartAbort, StoreLost
from nvrx_core.events.log import EventLog
from nvrx_core.inprocess.call.function_abort import FunctionAbort
from nvrx_core.inprocess.call.monitor_link import MonitorLink
from nvrx_core.inprocess.coordination.connections import Connections
from nvrx_core.inprocess.interruption.interrupt import Interrupt
from nvrx_core.inprocess.protocol.effects import StoreFailure
from nvrx_core.inprocess.state import State

__all__ = ["EarlyExit"]

log = logging.getLogger("nvrx_core.inprocess")


class EarlyExit:
    """Why this rank leaves out of turn, if it does; told by the rank's threads what has been lost.

    Args:
        state: this rank's.
        events: where the loss is written.
        links: the call's connections to the store; cut when the store is lost.
        monitor: this rank's monitor process.
        interrupt: gets the main thread out of the function.
        function: ends what the function waits in.
        changed: what the main thread waits on outside the function.

    Attributes:
        reason: makes the exception that the call ends with; None while the rank stays.
    """

    def __init__(
        self,
        state: State,
        events: EventLog,
        links: Connections,
        *,
        monitor: MonitorLink,
        interrupt: Interrupt,
        function: FunctionAbort,
        changed: threading.Condition,
    ) -> None:
        self._state, self._events, self._links, self._monitor = state, events, links, monitor
        self._interrupt, self._function, self._changed = interrupt, function, changed
        self._deciding = threading.Lock()
        self.reason: Callable[[], BaseException] | None = None

    def raise_if_due(self) -> None:
        """Leave, in the main thread.

        Raises:
            BaseException: the reason, if there is one.
        """
        if self.reason is not None:
            raise self.reason()

    def store_lost(self, why: str) -> StoreLost:
        """The store is gone: the rank leaves, or its monitor process ends it; returns what the call ends with."""
        lost = StoreLost(*self._links.endpoint)
        if self._decide(lambda: StoreLost(*self._links.endpoint)):
            self._monitor.store_lost()
            log.error("%s (%s)", lost, why)
            self._events.write("store_lost", self._state.iteration, endpoint="{}:{}".format(*self._links.endpoint))
            self._links.cut()
            self._get_main_thread_out()
        return lost

    def watcher_failed(self, error: BaseException) -> None:
        """The calling thread, one of the wrapper's own, ends by `error`."""
        if isinstance(error, StoreFailure):
            self.store_lost(str(error))
        else:
            self._part_lost(f"{threading.current_thread().name} failed: {error!r}", error)

    def monitor_replaced(self, why: str) -> None:
        """The monitor process was lost, and there is another one: the rank stays."""
        self._events.write("monitor_replaced", self._state.iteration, reason=why)
        self._monitor.notify()

    def fork_server_lost(self) -> None:
        """Nobody will replace the monitor process; without one, the rank does not go on."""
        if self._monitor.is_running():
            log.warning("the fork server is gone: the monitor process will not be replaced if it is lost")
        else:
            self._part_lost("no monitor process could be kept running; see monitor_process_logfile")

    def _part_lost(self, why: str, error: BaseException | None = None) -> None:
        member = self._state.initial_rank
        if self._decide(lambda: RestartAbort(why, culprit=member)):
            log.error("initial rank %d leaves: %s", member, why, exc_info=error)
            self._get_main_thread_out()

    def _decide(self, reason: Callable[[], BaseException]) -> bool:
        """Leave for this reason; False when there is one already."""
        with self._deciding:
            first = self.reason is None
            if first:
                self.reason = reason
        return first

    def _get_main_thread_out(self) -> None:
        """Get it out, wherever it is; in the main thread itself, only note that it has to leave."""
        assert self.reason is not None
        self._interrupt.request(self.reason)
        with self._changed:
            self._changed.notify_all()
        if threading.get_ident() != self._interrupt.thread:
            self._function.begin(self._state.iteration)
            self._interrupt.drive(self._function.unblock)
