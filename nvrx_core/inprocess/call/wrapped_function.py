"""One run of the wrapped function, and of `initialize` before it.

An exception of the function is an outcome: the flow decides what follows.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable

from nvrx_core.errors import StoreLost
from nvrx_core.failpoint import hit
from nvrx_core.flow import operation
from nvrx_core.inprocess.call import current
from nvrx_core.inprocess.call.early_exit import EarlyExit
from nvrx_core.inprocess.call.function_abort import FunctionAbort
from nvrx_core.inprocess.call.handles import CallHandles
from nvrx_core.inprocess.call.injection import BoundFunction
from nvrx_core.inprocess.call.monitor_link import MonitorLink
from nvrx_core.inprocess.call.own_faults import ThreadFaults
from nvrx_core.inprocess.call.plug_ins import PlugIns
from nvrx_core.inprocess.call.restart_trace import RestartTrace
from nvrx_core.inprocess.coordination.connections import Connections
from nvrx_core.inprocess.groups.observer import GroupObserver
from nvrx_core.inprocess.interruption.async_exception import Withdrawn
from nvrx_core.inprocess.protocol.outcome import (
    IterationResult,
    Outcome,
    RankShouldRestart,
    outcome_of,
    pending_exit,
)
from nvrx_core.process.forks import EndedInChild
from nvrx_core.process.signals import raised_by_handler
from nvrx_core.progress.stage import Stage
from nvrx_core.rank_assignment.base import Mode
from nvrx_core.settings.environment import has_master, set_master

__all__ = ["WrappedFunction"]

log = logging.getLogger("nvrx_core.inprocess")


class WrappedFunction:
    """Runs the wrapped function.

    Args:
        function: the wrapped function, with its arguments.
        handles: the parts that it may use while it runs, and the thread that it runs in.
        plug_ins: run `initialize`.
        abort: gets the main thread out of the function.
        early_exit: the reason for an early exit of this rank.
        connections: host the rendezvous of its process group.
        observer, thread_faults: observe the function.
        monitor: receives the stage of the main thread.
        trace: records the steps of a restart.
    """

    def __init__(  # noqa: PLR0913 - everything that one iteration meets
        self,
        function: BoundFunction,
        handles: CallHandles,
        plug_ins: PlugIns,
        *,
        abort: FunctionAbort,
        early_exit: EarlyExit,
        connections: Connections,
        observer: GroupObserver,
        thread_faults: ThreadFaults,
        monitor: MonitorLink,
        trace: RestartTrace,
    ) -> None:
        self._function, self._handles, self._plug_ins = function, handles, plug_ins
        self._state, self._thread = handles.state, handles.function_thread
        self._abort, self._early_exit, self._connections = abort, early_exit, connections
        self._observer, self._thread_faults = observer, thread_faults
        self._monitor, self._trace = monitor, trace

    @operation
    def host_rendezvous(self) -> str:
        """Host the rendezvous of the next process group; return its `host:port`."""
        return self._connections.host_rendezvous()

    @operation
    def use_rendezvous(self, endpoint: tuple[str, int] | None) -> None:
        """Use this endpoint for the next process group; None: there is none, or this rank is not in the group."""
        if endpoint is not None and (self._state.iteration > 0 or not has_master()):
            set_master(*endpoint)
        self._observer.rendezvous_endpoint = endpoint

    @operation
    def initialize(self) -> IterationResult | None:
        """Run the user's initialize and health check; return the iteration's result if they end it."""
        return self._guarded(self._initialize)

    @operation
    def run(self) -> IterationResult:
        """Run the function, interruptible."""
        ended = self._guarded(self._run)
        assert ended is not None
        return ended

    @operation
    def release_groups(self, ended: IterationResult) -> None:
        """The rank has completed by `SystemExit(0)`: unblock the ranks that wait for it in a collective."""
        self._abort.release_completed(ended.error)

    def _guarded(self, run: Callable[[], IterationResult | None]) -> IterationResult | None:
        """Convert every exit of the user's code to an outcome; None after `initialize`, when the function follows."""
        outside = sys.exception()
        try:
            ended = run()
        except EndedInChild:
            raise
        except BaseException as error:  # boundary: the wrapped function and its initialize
            if isinstance(error, StoreLost) and pending_exit(error, outside) is None:
                self._out()
                raise
            ended = self._ended_by(error, outside)
        finally:
            self._thread.armed = False
        if ended is not None:
            ended.occurred = time.monotonic()
            self._out()
        return ended

    def _out(self) -> None:
        current.clear()
        self._monitor.enter(Stage.UNWINDING)
        self._thread.leave()

    def _ended_by(self, error: BaseException, outside: BaseException | None) -> IterationResult:
        error = pending_exit(error, outside) or error
        behind_step = self._handles.votes.follows_commit(error.__traceback__)
        landed = self._abort.begun_in == self._state.iteration or self._thread.raised > 0
        by_signal = isinstance(error, SystemExit) and raised_by_handler(error)
        outcome = outcome_of(
            error, requested=self._thread.requested, landed=landed, by_signal=by_signal, outside=outside
        )
        if isinstance(error, RankShouldRestart):
            self._trace.report()
        if outcome is Outcome.INTERRUPTED:
            self._trace.mark("interrupted")
        return IterationResult(outcome, error=error, behind_step=behind_step)

    def _initialize(self) -> IterationResult | None:
        self._observer.clear_groups()
        if (unhealthy := self._plug_ins.initialize()) is not None:
            return IterationResult(Outcome.LEFT, error=unhealthy)
        if self._state.mode is not Mode.ACTIVE:
            self._trace.entered()
            return IterationResult(Outcome.RESERVE)
        return None

    def _run(self) -> IterationResult:
        self._observer.begin()
        self._thread_faults.begin(self._state.iteration)
        self._monitor.enter(Stage.RUNNING)
        hit("entry-before", self._state.iteration)
        try:
            self._thread.arm()
            self._early_exit.raise_if_due()
            self._trace.entered()
            return IterationResult(Outcome.RETURNED, result=self._function.enter(self._handles))
        finally:  # in this order, and nothing before them
            self._thread.armed = False
            try:
                self._thread.drop()
            except Withdrawn:
                log.debug("the function has ended: it is interrupted no more")
