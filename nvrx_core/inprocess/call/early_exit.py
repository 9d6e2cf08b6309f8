"""Early exit of a rank: the store is lost, or a part of the wrapper without which the rank must not continue.

The first reason counts. It interrupts the main thread in the function or in its wait for the others, and the call ends
with it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from nvrx_core.errors import RestartAbort, StoreLost
from nvrx_core.events.log import EventLog
from nvrx_core.fault.exceptions import text_of
from nvrx_core.inprocess.call.function_abort import FunctionAbort
from nvrx_core.inprocess.call.monitor_link import MonitorLink
from nvrx_core.inprocess.coordination.connections import Connections
from nvrx_core.inprocess.protocol.ports import StoreFailure
from nvrx_core.inprocess.state import State
from nvrx_core.parsing import endpoint_text

__all__ = ["EarlyExit"]

log = logging.getLogger("nvrx_core.inprocess")


class EarlyExit:
    """The reason for an early exit of this rank, if there is one, as reported by its threads.

    Args:
        state: the state of this rank.
        events: the event file, to which the loss is written.
        connections: the call's connections to the store; cut when the store is lost.
        monitor: this rank's monitor process.
        abort: gets the main thread out of the function, or of its wait for the others.

    Attributes:
        reason: creates the exception with which the call ends; None while the rank continues.
    """

    def __init__(
        self,
        state: State,
        events: EventLog,
        connections: Connections,
        *,
        monitor: MonitorLink,
        abort: FunctionAbort,
    ) -> None:
        self._state, self._events, self._connections, self._monitor = state, events, connections, monitor
        self._abort, self._deciding = abort, threading.Lock()
        self.reason: Callable[[], BaseException] | None = None

    def raise_if_due(self) -> None:
        """Exit early if there is a reason; called in the main thread.

        Raises:
            BaseException: the reason, if there is one.
        """
        if self.reason is not None:
            raise self.reason()

    def store_lost(self, why: str) -> StoreLost:
        """Record that the store is lost: the rank exits, or its monitor process kills it. Return the call's error."""
        if self._decide(self._connections.lost):
            self._monitor.store_lost()
            try:
                log.error("%s (%s)", self._connections.lost(), why)
                self._events.write(
                    "store_lost", self._state.iteration, endpoint=endpoint_text(*self._connections.endpoint)
                )
            finally:  # a handler of the user's may raise
                self._connections.cut()
                self._abort.leave_early(self._connections.lost)
        return self._connections.lost()

    def abandon(self, error: BaseException) -> None:
        """Let the monitor process notify the others that this rank leaves by `error`."""
        self._monitor.abandon(error)
        log.warning("initial rank %d leaves: %s", self._state.initial_rank, text_of(error))

    def watcher_failed(self, error: BaseException) -> None:
        """Record that the calling thread, one of the wrapper's own, ends with `error`."""
        if isinstance(error, StoreFailure):
            self.store_lost(str(error))
        else:
            self._part_lost(f"{threading.current_thread().name} failed: {error!r}", error)

    def connections_silent(self) -> None:
        """Open the connections to the store again: a round has ended, and nothing of it arrives; the rank continues."""
        if self._connections.renew():
            log.warning("the end of a round does not arrive: the connections to the control store are opened again")

    def monitor_replaced(self, why: str) -> None:
        """Record that the monitor process was lost and replaced; the rank continues."""
        self._events.write("monitor_replaced", self._state.iteration, reason=why)
        self._monitor.notify()

    def fork_server_lost(self) -> None:
        """Record that the monitor process can no longer be replaced; without one, the rank exits."""
        if self._monitor.is_running():
            log.warning("the fork server has exited: the monitor process will not be replaced if it is lost")
        else:
            reason = self._monitor.fork_server.reason
            why = f": {reason}" if reason else ""
            self._part_lost(f"no monitor process could be kept running{why}; see monitor_process_logfile")

    def _part_lost(self, why: str, error: BaseException | None = None) -> None:
        initial_rank = self._state.initial_rank

        def reason() -> RestartAbort:
            return RestartAbort(why, culprit=initial_rank)

        if self._decide(reason):
            try:
                log.error("initial rank %d leaves: %s", initial_rank, why, exc_info=error)
            finally:
                self._abort.leave_early(reason)

    def _decide(self, reason: Callable[[], BaseException]) -> bool:
        """Record the reason for the exit; return False if there is one already."""
        with self._deciding:
            first = self.reason is None
            if first:
                self.reason = reason
        return first
