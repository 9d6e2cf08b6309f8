"""The threads that monitor the main thread, and the objects that they share with it."""

from __future__ import annotations

import threading

from nvrx_core.events.log import EventLog
from nvrx_core.inprocess.call.cleanup_stack import CleanupStack
from nvrx_core.inprocess.call.early_exit import EarlyExit
from nvrx_core.inprocess.call.function_abort import FunctionAbort, RoundProgress
from nvrx_core.inprocess.call.monitor_link import MonitorLink
from nvrx_core.inprocess.call.restart_trace import RestartTrace
from nvrx_core.inprocess.configuration.parameters import Parameters
from nvrx_core.inprocess.coordination.connections import Connections
from nvrx_core.inprocess.coordination.housekeeping import Housekeeping, least_world_size
from nvrx_core.inprocess.faults.fault_maker import FaultMaker
from nvrx_core.inprocess.faults.own_faults import OwnFaults
from nvrx_core.inprocess.faults.survived_errors import SurvivedErrors
from nvrx_core.inprocess.faults.thread_faults import ThreadFaults
from nvrx_core.inprocess.groups.observer import GroupObserver
from nvrx_core.inprocess.interruption.interrupt import Interrupt
from nvrx_core.inprocess.interruption.switch_interval import STEADY, ShortTurns
from nvrx_core.inprocess.monitor_thread import MonitorThread
from nvrx_core.inprocess.progress_watchdog import ProgressWatchdog
from nvrx_core.inprocess.protocol.round import RoundTimeouts
from nvrx_core.inprocess.protocol.view import Rounds
from nvrx_core.inprocess.state import State
from nvrx_core.rank_assignment.identity import initial_ranks
from nvrx_core.values import value

__all__ = ["Watchers", "start_watchers"]


@value
class Watchers:
    """The threads, and the objects that they share with the main thread; only the call itself accesses the parts.

    Attributes:
        thread: the monitor thread.
        watchdog: the progress watchdog.
        sample: the progress of the rank when the round ended.
        abort: aborts the calls in which the function blocks.
        early_exit: the reason for an early exit of this rank.
        faults: this rank's own faults.
        thread_faults: exceptions of the function's other threads.
        housekeeping: the work of rank 0 for all ranks.
        trace: the restart in progress.
    """

    thread: MonitorThread
    watchdog: ProgressWatchdog
    sample: RoundProgress
    abort: FunctionAbort
    early_exit: EarlyExit
    faults: OwnFaults
    thread_faults: ThreadFaults
    housekeeping: Housekeeping
    trace: RestartTrace


def start_watchers(
    parameters: Parameters,
    state: State,
    events: EventLog,
    *,
    monitor: MonitorLink,
    interrupt: Interrupt,
    connections: Connections,
    observer: GroupObserver,
    cleanup: CleanupStack,
) -> Watchers:
    """Start the threads.

    Args:
        parameters: the parameters of the wrapper.
        state: the state of this rank.
        events: the event file.
        monitor: this rank's monitor process.
        interrupt: interrupts the main thread in the function.
        connections: the call's connections to the store.
        observer: observes the function's process groups.
        cleanup: ends the threads.
    """
    p, page, changed, maker = parameters, monitor.page, threading.Condition(), FaultMaker(state.initial_rank)
    sample = RoundProgress(page, p.soft_timeout.total_seconds(), observer.observe_collectives)
    abort = FunctionAbort(p.abort, state, page, interrupt=interrupt, observer=observer, sample=sample)
    early_exit = EarlyExit(
        state, events, connections, monitor=monitor, interrupt=interrupt, function=abort, changed=changed
    )
    watchdog = ProgressWatchdog(
        page, p.watchdog_interval, monitor.fork_server, interrupt=interrupt, observer=observer, losses=early_exit
    )
    survived = SurvivedErrors(state.initial_rank, events, watchdog.defer)
    faults = OwnFaults(maker, state, events, rounds=connections.control_store.rounds, survived=survived)
    thread_faults = ThreadFaults(faults.thread_failed)
    housekeeping = Housekeeping(connections.control_store, page, least_world_size(p.initialize), watchdog.defer)
    trace = RestartTrace(state, events, maker, housekeeping=housekeeping, defer=watchdog.defer)
    thread = MonitorThread(
        operations=connections.waiting,
        page=page,
        interrupt=interrupt,
        rounds=rounds_of(p, state),
        changed=changed,
        function=abort,
        losses=early_exit,
    )
    if p.thread_exceptions == "fault":
        thread_faults.install()
        cleanup.callback(thread_faults.uninstall)
        cleanup.in_child(thread_faults.uninstall)
    _shorten_turns(cleanup)
    watchdog.start()
    cleanup.callback(watchdog.stop)
    thread.start()
    cleanup.callback(thread.stop, connections.cut)
    return Watchers(thread, watchdog, sample, abort, early_exit, faults, thread_faults, housekeeping, trace)


def rounds_of(parameters: Parameters, state: State) -> Rounds:
    """Return the rounds of a call."""
    times = (parameters.barrier_timeout, parameters.completion_timeout, parameters.last_call_wait)
    timeouts = RoundTimeouts(*(time.total_seconds() for time in times))
    return Rounds(state.initial_rank, initial_ranks(state.initial_world_size), timeouts)


def _shorten_turns(cleanup: CleanupStack) -> None:
    turns = ShortTurns(STEADY)
    turns.begin()
    cleanup.callback(turns.end)
    cleanup.in_child(turns.end)
