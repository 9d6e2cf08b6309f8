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

__all__ = ["WrappedCall"]


log = logging.getLogger("nvrx_core.inprocess")


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
            BarrierTimeout, JobMismatch, RankDiscarded, StoreLost: when the rank cannot join the others.
            StoreConnectionError: when the store cannot be reached.
            ForkServerError: when no monitor process could be started.
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
            ended = self._enter_and_run(function, cleanup)
        set_ranks(self._state.rank, self._state.world_size)
        if ended.error is not None:  # its traceback keeps this frame, which has none of the parts of the call
            raise ended.error
        return ended.result

    def _enter_and_run(  # noqa: PLR0915 - what a call holds, in one order
        self, function: BoundFunction, cleanup: CleanupStack
    ) -> IterationResult:
        """Acquire what the call holds, join the other ranks in between, and run the flow of the main thread.

        Args:
            function: the wrapped function, with its arguments.
            cleanup: releases what is acquired, in reverse order.
        """
        p, state, number = self._parameters, self._state, self._number
        member, world_size = state.initial_rank, state.initial_world_size
        keys = StoreKeys(environment.job_name(), 0, number)
        join_request = JoinRequest(member, environment.restarts_all_ranks(), _terms(p, state))
        ranks = GivenRanks(member, world_size)

        # This process, and its monitor process
        open_standard_descriptors()
        await_at_exit()
        freeze_on_entry()
        cleanup.enter_context(environment.restored())
        cleanup.enter_context(own_stream_handlers())
        if number == 0:
            log_start(member, world_size)
        cleanup.enter_context(quiet())
        events = cleanup.enter_context(closing(EventLog(p.events_dir or environment.events_directory(), member)))
        page = cleanup.enter_context(_page(world_size))
        page.begin_round(-1, member, world_size)
        function_thread = FunctionThread(p.interrupt_signal, page)
        cleanup.callback(  # after the monitor process has ended, which may send the signal
            lambda: function_thread.uninstall(may_come=page[ProgressField.STAGE] == Stage.EXITED_ABNORMALLY)
        )
        monitor = start_monitor(p, join_request, keys, page=page, events=events, cleanup=cleanup)

        with _entering(monitor):
            # The store, and the other ranks
            connections = _connect(p, join_request, keys, page=page, cleanup=cleanup)
            control_store = connections.control_store

            # The thread of the function, and its process groups
            function_thread.install()
            cleanup.in_child(function_thread.disown)
            observer = GroupObserver(page, nccl_checks(p.hard_timeout), number, ranks.check)
            observer.install()
            cleanup.callback(observer.uninstall)
            cleanup.in_child(observer.disown)
            monitor.fork_server.await_ready()

            # What ends the function, or the rank
            changed, maker = SignalSafeCondition(), FaultMaker(member)
            interrupter = Interrupter(function_thread, p.timeouts.unwind, p.timeouts.hold)
            sample = RoundProgress(page, p.timeouts.stalled_after, observer.observe_collectives)
            hangs = HangReporter(
                state, page, events, sample=sample, control_store=control_store, shortest=p.timeouts.stalled_after
            )
            abort = FunctionAbort(
                p.abort, state, page,
                interrupter=interrupter, observer=observer, sample=sample, hangs=hangs, changed=changed,
            )  # fmt: skip
            early_exit = EarlyExit(state, events, connections, monitor=monitor, abort=abort)
            watchdog = MainThreadWatchdog(
                page, p.timeouts.watchdog_interval, monitor.fork_server,
                function_thread=function_thread, observer=observer, losses=early_exit,
            )  # fmt: skip

            # What tells of a fault and of a restart
            survived = SurvivedErrors(member, events, watchdog.defer)
            faults = OwnFaults(maker, state, events, rounds=control_store.rounds, survived=survived)
            thread_faults = ThreadFaults(faults.thread_failed)
            housekeeping = Housekeeping(control_store.deletion, page, least_world_size(p.initialize), watchdog.defer)
            trace = RestartTrace(
                state, events, maker,
                housekeeping=housekeeping, defer=watchdog.defer, defer_idle=watchdog.defer_idle,
            )  # fmt: skip

            # The threads
            rounds = Rounds(member, initial_ranks(world_size), p.round_timeouts)
            thread = MonitorThread(
                store=CallStore(lambda: connections.of_monitor_thread, world_size),
                rounds=rounds, changed=changed, abort=abort, losses=early_exit,
            )  # fmt: skip
            if p.thread_exceptions == "fault":
                thread_faults.install()
                cleanup.callback(thread_faults.uninstall)
                cleanup.in_child(thread_faults.uninstall)
            switching = FastGilSwitching(STEADY)
            switching.begin()
            cleanup.callback(switching.end)
            cleanup.in_child(switching.end)
            cleanup.callback(survived.close)
            watchdog.start()
            cleanup.callback(watchdog.stop)
            cleanup.callback(hangs.close)
            thread.start()
            cleanup.callback(thread.stop, connections.cut)
            events.write("call_entered", 0, world_size=world_size)
            monitor.enter(Stage.STARTING)

        with monitor.reporting(lambda: self._told):
            # The flow of this thread, and its ports
            votes = PassedVotes()
            stores = UserStores(connections, observer, state)
            handles = CallHandles(
                state, page, function_thread,
                stores=stores, watchdog=watchdog, monitor=MonitorHandle(monitor.pid), over=self._over, votes=votes,
            )  # fmt: skip
            cleanup.enter_context(inert_in_children(self))
            plug_ins = PlugIns(p, state, events, connections=connections, trace=trace, votes=votes)
            ports = CallPorts(
                store=CallStore(lambda: connections.control_store, world_size),
                status=RankStatus(
                    state, control_store.survey,
                    monitor=monitor, changed=changed, abort=abort, early_exit=early_exit, trace=trace,
                ),
                arrivals=ArrivalReport(
                    state, page, plug_ins, sample=sample, connections=connections, parameters=p, votes=votes
                ),
                plug_ins=plug_ins,
                function=WrappedFunction(
                    function, handles, plug_ins,
                    abort=abort, early_exit=early_exit, connections=connections, observer=observer,
                    thread_faults=thread_faults, monitor=monitor, trace=trace,
                ),
                faults=faults,
                leaving=Leaving(
                    state, events, p,
                    connections=connections, groups=observer.held, early_exit=early_exit,
                    housekeeping=housekeeping, hangs=hangs,
                ),
            )  # fmt: skip
            rules = FlowRules(
                no_progress_limit=p.no_progress_limit,
                needs_entry_rendezvous=not connections.is_torch_store or not has_master(),
                hosts_store=connections.is_hosted_by(member),
                store_is_hosted=bool(connections.critical),
            )
            flow = MainThread(rounds, state, rules, ports=ports, now=time.monotonic)
            try:
                return run(flow.run(), changed.lock, changed.notify_all)
            except BarrierTimeout as error:
                late = rounds.view.round
                name_missing(error, connections.control_store.rounds, late.iteration, late.members)
                raise
            finally:  # the error's traceback keeps this frame, which would keep the function's result
                self._told = flow.over
                del flow
                ports.release()
