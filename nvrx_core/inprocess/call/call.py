"""One call of a wrapped function: what it holds, and its run from entry to exit.

The flow is in `nvrx_core.inprocess.protocol.flows`. What a call holds is acquired in one order, and released in
reverse. The fork server is forked first, before any thread or connection of ours exists. When an acquisition fails, the
earlier ones are released.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import nvrx_core
from nvrx_core.errors import BarrierTimeout, JobMismatch, RankDiscarded
from nvrx_core.events.log import EventLog
from nvrx_core.failpoint import hit
from nvrx_core.flow import run
from nvrx_core.inprocess.call.early_exit import EarlyExit
from nvrx_core.inprocess.call.environment_checks import log_start, nccl_checks
from nvrx_core.inprocess.call.function_abort import FunctionAbort
from nvrx_core.inprocess.call.handles import CallHandles, MonitorHandle, PassedVotes, UserStores
from nvrx_core.inprocess.call.hang_reporter import HangReporter, RoundProgress
from nvrx_core.inprocess.call.injection import BoundFunction
from nvrx_core.inprocess.call.leaving import Leaving
from nvrx_core.inprocess.call.monitor_link import MonitorLink, start_monitor
from nvrx_core.inprocess.call.own_faults import FaultMaker, OwnFaults, SurvivedErrors, ThreadFaults
from nvrx_core.inprocess.call.parameters import Parameters, least_world_size
from nvrx_core.inprocess.call.plug_ins import PlugIns
from nvrx_core.inprocess.call.rank_status import ArrivalReport, RankStatus
from nvrx_core.inprocess.call.restart_trace import RestartTrace
from nvrx_core.inprocess.call.wrapped_function import WrappedFunction
from nvrx_core.inprocess.coordination.connections import Connections
from nvrx_core.inprocess.coordination.control_store import CallStore
from nvrx_core.inprocess.coordination.housekeeping import Housekeeping
from nvrx_core.inprocess.coordination.joining import Joining, JoinRequest
from nvrx_core.inprocess.coordination.presence import name_missing
from nvrx_core.inprocess.groups.observer import GroupObserver
from nvrx_core.inprocess.groups.rendezvous import GivenRanks
from nvrx_core.inprocess.interruption.interrupt import FunctionThread, Interrupter
from nvrx_core.inprocess.interruption.switch_interval import STEADY, FastGilSwitching
from nvrx_core.inprocess.monitor_thread import MonitorThread
from nvrx_core.inprocess.progress_watchdog import MainThreadWatchdog
from nvrx_core.inprocess.protocol.flows import FlowRules, MainThread
from nvrx_core.inprocess.protocol.join import BY
from nvrx_core.inprocess.protocol.outcome import IterationResult
from nvrx_core.inprocess.protocol.ports import CallPorts, StoreFailure
from nvrx_core.inprocess.protocol.round import Rounds
from nvrx_core.inprocess.restart_record import remember
from nvrx_core.inprocess.state import State
from nvrx_core.process.descriptors import open_standard_descriptors
from nvrx_core.process.forks import CleanupStack, inert_in_children, keep_for_good, run_in_rank_only
from nvrx_core.process.garbage import freeze_on_entry
from nvrx_core.process.log_handlers import own_stream_handlers
from nvrx_core.process.native_threads import await_at_exit
from nvrx_core.process.signal_safe import SignalSafeCondition, SignalSafeEvent
from nvrx_core.progress import monitored
from nvrx_core.progress.page import Page, ProgressField
from nvrx_core.progress.stage import Stage
from nvrx_core.rank_assignment.identity import initial_ranks
from nvrx_core.settings import environment
from nvrx_core.settings.environment import has_master, set_ranks
from nvrx_core.store.cpp_log_level import quiet
from nvrx_core.store.endpoint import StoreHostingError
from nvrx_core.store.keys import StoreKeys
from nvrx_core.values import value

__all__ = ["WrappedCall"]


log = logging.getLogger("nvrx_core.inprocess")


@value
class Resources:
    """What a call has acquired; only the call itself accesses the parts.

    Attributes:
        events: the event file.
        monitor: the monitor process, and the page that the rank shares with it.
        function_thread: the thread of the function.
        connections: the connections to the control store.
        observer: observes the function's process groups.
        thread: the monitor thread.
        watchdog: the progress watchdog.
        sample: the progress of the rank when the round ended.
        abort: gets the main thread out of the function.
        early_exit: the reason for an early exit of this rank.
        faults: this rank's own faults.
        thread_faults: exceptions of the function's other threads.
        housekeeping: the work of rank 0 for all ranks.
        hangs: reports a hang.
        trace: the restart in progress.
    """

    events: EventLog
    monitor: MonitorLink
    function_thread: FunctionThread
    connections: Connections
    observer: GroupObserver
    thread: MonitorThread
    watchdog: MainThreadWatchdog
    sample: RoundProgress
    abort: FunctionAbort
    early_exit: EarlyExit
    faults: OwnFaults
    thread_faults: ThreadFaults
    housekeeping: Housekeeping
    hangs: HangReporter
    trace: RestartTrace


def acquire(parameters: Parameters, number: int, state: State, cleanup: CleanupStack) -> Resources:
    """Acquire them, and join the other ranks in between.

    Args:
        parameters: the parameters of the wrapper.
        number: the number of the call in this process.
        state: the rank's state on entry.
        cleanup: releases them.

    Raises:
        BarrierTimeout, JobMismatch, RankDiscarded, StoreLost: when the rank cannot join the others.
        StoreConnectionError: when the store cannot be reached.
        ForkServerError: when no monitor process could be started.
    """
    p, keys = parameters, StoreKeys(environment.job_name(), 0, number)
    join_request = JoinRequest(state.initial_rank, environment.restarts_all_ranks(), _terms(p, state))
    ranks = GivenRanks(state.initial_rank, state.initial_world_size)
    open_standard_descriptors()
    await_at_exit()
    freeze_on_entry()
    cleanup.enter_context(environment.restored())
    cleanup.enter_context(own_stream_handlers())
    if number == 0:
        log_start(state.initial_rank, state.initial_world_size)
    cleanup.enter_context(quiet())
    directory = p.events_dir or environment.events_directory()
    events = cleanup.enter_context(closing(EventLog(directory, join_request.member)))
    page = cleanup.enter_context(_page(state.initial_world_size))
    page.begin_round(-1, join_request.member, state.initial_world_size)
    function_thread = FunctionThread(p.interrupt_signal, page)
    cleanup.callback(  # after the monitor process has ended, which may send the signal
        lambda: function_thread.uninstall(may_come=page[ProgressField.STAGE] == Stage.EXITED_ABNORMALLY)
    )
    monitor = start_monitor(p, join_request, keys, page=page, events=events, cleanup=cleanup)
    with _entering(monitor):
        connections = _connect(p, join_request, keys, page=page, cleanup=cleanup)
        function_thread.install()
        cleanup.in_child(function_thread.disown)
        observer = GroupObserver(page, nccl_checks(p.hard_timeout), number, ranks.check)
        observer.install()
        cleanup.callback(observer.uninstall)
        cleanup.in_child(observer.disown)
        monitor.fork_server.await_ready()
        resources = start_threads(
            p,
            state,
            events,
            monitor=monitor,
            function_thread=function_thread,
            connections=connections,
            observer=observer,
            cleanup=cleanup,
        )
        events.write("call_entered", 0, world_size=state.initial_world_size)
        monitor.enter(Stage.STARTING)
    return resources


def start_threads(
    parameters: Parameters,
    state: State,
    events: EventLog,
    *,
    monitor: MonitorLink,
    function_thread: FunctionThread,
    connections: Connections,
    observer: GroupObserver,
    cleanup: CleanupStack,
) -> Resources:
    """Start the threads that monitor the main thread; return what the call has acquired.

    Args:
        parameters: the parameters of the wrapper.
        state: the state of this rank.
        events: the event file.
        monitor: this rank's monitor process.
        function_thread: the thread of the function, this one.
        connections: the call's connections to the store.
        observer: observes the function's process groups.
        cleanup: ends the threads.
    """
    p, page, changed, maker = parameters, monitor.page, SignalSafeCondition(), FaultMaker(state.initial_rank)
    sample = RoundProgress(page, p.timeouts.stalled_after, observer.observe_collectives)
    hangs = HangReporter(
        state,
        page,
        events,
        sample=sample,
        control_store=connections.control_store,
        shortest=p.timeouts.stalled_after,
    )
    interrupter = Interrupter(function_thread, p.timeouts.unwind, p.timeouts.hold)
    abort = FunctionAbort(
        p.abort, state, page, interrupter=interrupter, observer=observer, sample=sample, hangs=hangs, changed=changed
    )
    early_exit = EarlyExit(state, events, connections, monitor=monitor, abort=abort)
    watchdog = MainThreadWatchdog(
        page,
        p.timeouts.watchdog_interval,
        monitor.fork_server,
        function_thread=function_thread,
        observer=observer,
        losses=early_exit,
    )
    survived = SurvivedErrors(state.initial_rank, events, watchdog.defer)
    faults = OwnFaults(maker, state, events, rounds=connections.control_store.rounds, survived=survived)
    thread_faults = ThreadFaults(faults.thread_failed)
    housekeeping = Housekeeping(
        connections.control_store.deletion, page, least_world_size(p.initialize), watchdog.defer
    )
    trace = RestartTrace(
        state, events, maker, housekeeping=housekeeping, defer=watchdog.defer, defer_idle=watchdog.defer_idle
    )
    thread = MonitorThread(
        store=CallStore(lambda: connections.of_monitor_thread, state.initial_world_size),
        rounds=Rounds(state.initial_rank, initial_ranks(state.initial_world_size), p.round_timeouts),
        changed=changed,
        abort=abort,
        losses=early_exit,
    )
    if p.thread_exceptions == "fault":
        thread_faults.install()
        cleanup.callback(thread_faults.uninstall)
        cleanup.in_child(thread_faults.uninstall)
    turns = FastGilSwitching(STEADY)
    turns.begin()
    cleanup.callback(turns.end)
    cleanup.in_child(turns.end)
    cleanup.callback(survived.close)
    watchdog.start()
    cleanup.callback(watchdog.stop)
    cleanup.callback(hangs.close)
    thread.start()
    cleanup.callback(thread.stop, connections.cut)
    return Resources(
        events, monitor, function_thread, connections, observer, thread, watchdog, sample, abort, early_exit, faults,
        thread_faults, housekeeping, hangs, trace,
    )  # fmt: skip


@contextmanager
def _page(world_size: int) -> Iterator[Page]:
    """Return the page of a rank that is monitored already, else a new one."""
    rank = monitored.current()
    if rank is None:
        with closing(Page(world_size)) as page:
            yield page
        return
    rank.call_begins()
    rank.page.begin_call(world_size)
    try:
        yield rank.page
    finally:
        rank.call_ends()


def _terms(parameters: Parameters, state: State) -> str:
    """Return the terms that must be equal on all ranks, and the process that reports them."""
    by = f"rank {state.initial_rank} ({socket.gethostname()} pid {os.getpid()})"
    terms = {"WORLD_SIZE": state.initial_world_size, "nvrx": nvrx_core.__version__, **parameters.must_agree()}
    return json.dumps({BY: by, **terms})


@contextmanager
def _entering(monitor: MonitorLink) -> Iterator[None]:
    """Mark the rank as entering; if it fails to enter, no other rank waits for it.

    A rank that cannot host the store has nobody to tell: the store that answers there is another job's.
    """
    try:
        yield
        monitor.entered = True
    except BaseException as error:  # boundary: the monitor process tells the others, if they do not know
        known = isinstance(error, BarrierTimeout | JobMismatch | RankDiscarded | StoreHostingError)
        monitor.page.enter(Stage.LEFT if known else Stage.EXITED_ABNORMALLY)
        raise


def _connect(
    parameters: Parameters, join_request: JoinRequest, keys: StoreKeys, *, page: Page, cleanup: CleanupStack
) -> Connections:
    """Connect to the control store, and join the other ranks in a generation of keys that no earlier start has used."""
    p = parameters
    hit("store-connect", -1)
    connections = cleanup.enter_context(
        closing(Connections(p.store_factory, p.store_kwargs or {}, keys, p.monitor_thread_interval))
    )
    cleanup.in_child(connections.disown)
    page[ProgressField.HOSTS_STORE] = int(connections.is_hosted_by(join_request.member))
    try:
        lease = p.timeouts.lease_interval
        joining = Joining(connections, page, join_request, timeout=p.barrier_timeout, lease_interval=lease)
        connections.use(joining.run())
    except StoreFailure as failure:
        lost = connections.lost()
        log.error("%s (%s)", lost, failure)
        raise lost from None
    return connections


class WrappedCall:
    """One call.

    Args:
        parameters: the parameters of the wrapper.
        number: the number of the call in this process.
    """

    def __init__(self, parameters: Parameters, number: int) -> None:
        self._parameters, self._number = parameters, number
        self._state = State.from_env()
        self._cleanup, self._over = CleanupStack(), SignalSafeEvent()
        self._told = False

    @property
    def iteration(self) -> int:
        """The present iteration."""
        return self._state.iteration

    def run(self, function: BoundFunction) -> Any:
        """Run the function until all ranks have completed it.

        Raises:
            BaseException: the exception with which this rank or the job ends.
        """
        try:
            return run_in_rank_only(lambda: self._run(function))
        finally:
            self._over.set()

    def disown(self) -> None:
        """In a child of `os.fork`: undo nothing of this call; keep all of it alive and do not use it again."""
        self._over.set()
        keep_for_good(self)
        self._cleanup.disown()

    def _run(self, function: BoundFunction) -> Any:
        remember(None)
        with self._cleanup as cleanup:
            resources = acquire(self._parameters, self._number, self._state, cleanup)
            with resources.monitor.reporting(lambda: self._told):
                ended = self._run_flow(resources, function)
        set_ranks(self._state.rank, self._state.world_size)
        if ended.error is not None:
            raise ended.error
        return ended.result

    def _run_flow(self, resources: Resources, function: BoundFunction) -> IterationResult:
        monitor = resources.monitor
        handles = CallHandles(
            self._state,
            monitor.page,
            resources.function_thread,
            stores=UserStores(resources.connections, resources.observer, self._state),
            watchdog=resources.watchdog,
            monitor=MonitorHandle(monitor.pid),
            over=self._over,
            votes=PassedVotes(),
        )
        self._cleanup.enter_context(inert_in_children(self))
        connections, rounds = resources.connections, resources.thread.rounds
        rules = FlowRules(
            no_progress_limit=self._parameters.no_progress_limit,
            needs_entry_rendezvous=not connections.is_torch_store or not has_master(),
            hosts_store=connections.is_hosted_by(self._state.initial_rank),
            store_is_hosted=bool(connections.critical),
        )
        ports = self._ports(resources, function, handles)
        flow = MainThread(rounds, self._state, rules, ports=ports, now=time.monotonic)
        try:
            changed = resources.thread.changed
            return run(flow.run(), changed.lock, changed.notify_all)
        except BarrierTimeout as error:
            late = rounds.view.round
            name_missing(error, connections.control_store.rounds, late.iteration, late.members)
            raise
        finally:  # the error's traceback keeps this frame, which would keep the function's result
            self._told = flow.over
            del flow
            ports.release()

    def _ports(self, resources: Resources, function: BoundFunction, handles: CallHandles) -> CallPorts:
        """Return the ports of the flow; each part gets only what it needs."""
        parameters, state, events, monitor = self._parameters, self._state, resources.events, resources.monitor
        connections, observer = resources.connections, resources.observer
        control_store, early_exit, trace = connections.control_store, resources.early_exit, resources.trace
        plug_ins = PlugIns(parameters, state, events, connections=connections, trace=trace, votes=handles.votes)
        return CallPorts(
            store=CallStore(lambda: connections.control_store, state.initial_world_size),
            status=RankStatus(
                state,
                control_store.survey,
                monitor=monitor,
                changed=resources.thread.changed,
                abort=resources.abort,
                early_exit=early_exit,
                trace=trace,
            ),
            arrivals=ArrivalReport(
                state,
                monitor.page,
                plug_ins,
                sample=resources.sample,
                connections=connections,
                parameters=parameters,
                votes=handles.votes,
            ),
            plug_ins=plug_ins,
            function=WrappedFunction(
                function=function,
                handles=handles,
                state=state,
                plug_ins=plug_ins,
                thread=resources.function_thread,
                abort=resources.abort,
                early_exit=early_exit,
                connections=connections,
                observer=observer,
                thread_faults=resources.thread_faults,
                monitor=monitor,
                trace=trace,
            ),
            faults=resources.faults,
            leaving=Leaving(
                state,
                events,
                parameters,
                connections=connections,
                groups=observer.held,
                early_exit=early_exit,
                housekeeping=resources.housekeeping,
                hangs=resources.hangs,
            ),
        )
