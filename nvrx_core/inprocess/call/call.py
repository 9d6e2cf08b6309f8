"""One call of a wrapped function, from entry to exit; the flow is in `nvrx_core.inprocess.protocol.main_thread`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from nvrx_core.errors import BarrierTimeout
from nvrx_core.flow import run
from nvrx_core.inprocess.call.handles import CallHandles, MonitorHandle
from nvrx_core.inprocess.call.ports import ArrivalReport, Leaving, PlugIns, RankStatus
from nvrx_core.inprocess.call.rendezvous import UserStores, leader_of
from nvrx_core.inprocess.call.resources import Resources, acquire
from nvrx_core.inprocess.call.wrapped_function import WrappedFunction
from nvrx_core.inprocess.configuration.parameters import Parameters
from nvrx_core.inprocess.coordination.connections import Connections
from nvrx_core.inprocess.coordination.control_store import CallStore
from nvrx_core.inprocess.coordination.presence import name_missing
from nvrx_core.inprocess.protocol.call_rules import CallRules
from nvrx_core.inprocess.protocol.main_thread import MainThread
from nvrx_core.inprocess.protocol.outcome import IterationResult
from nvrx_core.inprocess.protocol.ports import CallPorts
from nvrx_core.inprocess.restart_record import remember
from nvrx_core.inprocess.state import State
from nvrx_core.process.forks import CleanupStack, inert_in_children, keep_for_good, run_in_rank_only
from nvrx_core.settings.environment import has_master, set_ranks

__all__ = ["Call"]


class Call:
    """One call.

    Args:
        parameters: the parameters of the wrapper.
        number: the number of the call in this process.

    Attributes:
        handles: the parts that the function may use while it runs.
    """

    handles: CallHandles

    def __init__(self, parameters: Parameters, number: int) -> None:
        self._parameters, self._number = parameters, number
        self._state = State.from_env()
        self._cleanup, self._over = CleanupStack(), threading.Event()
        self._told = False

    def run(self, function: Callable[[], Any]) -> Any:
        """Run the function until all ranks have completed it.

        Raises:
            BaseException: the exception with which this rank or the job ends.
        """
        try:
            return run_in_rank_only(self._run, function)
        finally:
            self._over.set()

    def disown(self) -> None:
        """In a child of `os.fork`: undo nothing of this call; keep all of it alive and do not use it again."""
        self._over.set()
        keep_for_good(self)
        self._cleanup.disown()

    def _run(self, function: Callable[[], Any]) -> Any:
        remember(None)
        with self._cleanup as cleanup:
            resources = acquire(self._parameters, self._number, self._state, cleanup)
            with resources.monitor.reporting(lambda: self._told):
                ended = self._run_flow(resources, function)
        set_ranks(self._state.rank, self._state.world_size)
        if ended.error is not None:
            raise ended.error
        return ended.result

    def _run_flow(self, resources: Resources, function: Callable[[], Any]) -> IterationResult:
        watchers, monitor = resources.watchers, resources.monitor
        self.handles = CallHandles(
            self._state,
            monitor.page,
            resources.interrupt,
            stores=UserStores(resources.connections, resources.observer, self._state),
            watchdog=watchers.watchdog,
            monitor=MonitorHandle(monitor.pid),
            over=self._over,
        )
        self._cleanup.enter_context(inert_in_children(self))
        ports, rounds = self._ports(resources, function), watchers.thread.rounds
        flow = MainThread(rounds, self._state, self._call_rules(resources.connections), ports=ports, now=time.monotonic)
        try:
            return run(flow.run(), watchers.thread.step)
        except BarrierTimeout as error:
            late = rounds.view.round
            name_missing(error, resources.connections.control_store.rounds, late.iteration, late.members)
            raise
        finally:  # the error's traceback keeps this frame, which would keep the function's result
            self._told = flow.over
            del flow
            ports.release()

    def _call_rules(self, connections: Connections) -> CallRules:
        parameters = self._parameters
        return CallRules(
            leader=lambda world_size, terminated: leader_of(parameters, world_size, terminated),
            no_progress_limit=parameters.no_progress_limit,
            meets_on_entry=not connections.is_torch_store or not has_master(),
            hosts_store=connections.is_hosted_by(self._state.initial_rank),
            store_is_hosted=bool(connections.critical),
        )

    def _ports(self, resources: Resources, function: Callable[[], Any]) -> CallPorts:
        """Return the ports of the flow; each part gets only what it needs."""
        parameters, state, events, monitor = self._parameters, self._state, resources.events, resources.monitor
        connections, observer, watchers = resources.connections, resources.observer, resources.watchers
        control_store, early_exit, trace = connections.control_store, watchers.early_exit, watchers.trace
        store = CallStore(lambda: control_store, state.initial_world_size)
        plug_ins = PlugIns(parameters, state, events, stores=self.handles.stores, trace=trace, abort=watchers.abort)
        return CallPorts(
            rounds=store,
            farewell=store,
            status=RankStatus(
                state, control_store.survey, monitor=monitor, thread=watchers.thread, early_exit=early_exit, trace=trace
            ),
            arrivals=ArrivalReport(
                state, monitor.page, plug_ins, sample=watchers.sample, connections=connections, parameters=parameters
            ),
            plug_ins=plug_ins,
            function=WrappedFunction(
                function=function,
                state=state,
                plug_ins=plug_ins,
                interrupt=resources.interrupt,
                abort=watchers.abort,
                early_exit=early_exit,
                connections=connections,
                observer=observer,
                thread_faults=watchers.thread_faults,
                monitor=monitor,
                faults=watchers.faults,
                trace=trace,
            ),
            faults=watchers.faults,
            leaving=Leaving(
                state,
                events,
                parameters,
                connections=connections,
                housekeeping=watchers.housekeeping,
                monitor=monitor,
                groups=observer.held,
                early_exit=early_exit,
            ),
        )
