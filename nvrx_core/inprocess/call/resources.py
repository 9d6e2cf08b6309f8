"""What a call needs and gives back: processes, threads, connections, handlers; made in one order, undone in reverse.

The template process is forked first, before any thread or connection of ours exists. Whatever fails on the way in is
undone, and nothing is left.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from typing import Any, Final

import torch.distributed as dist

from nvrx_core.errors import BarrierTimeout, RankDiscarded, RestartAbort, StoreLost
from nvrx_core.events.log import EventLog
from nvrx_core.failpoint import hit
from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.abort import carry_out
from nvrx_core.inprocess.call.environment_checks import warn_about_watchdog
from nvrx_core.inprocess.call.fault_maker import FaultMaker
from nvrx_core.inprocess.call.parameters import Parameters
from nvrx_core.inprocess.call.restart_report import report
from nvrx_core.inprocess.call.thread_faults import ThreadFaults
from nvrx_core.inprocess.coordination.connections import Connections
from nvrx_core.inprocess.coordination.housekeeping import Housekeeping, least_world_size
from nvrx_core.inprocess.coordination.joining import Entrant, Joining
from nvrx_core.inprocess.groups.observer import GroupObserver
from nvrx_core.inprocess.interruption.early_exit import EarlyExit
from nvrx_core.inprocess.interruption.interrupt import Interrupt
from nvrx_core.inprocess.interruption.switch_interval import STEADY, ShortTurns
from nvrx_core.inprocess.monitor.plan import MonitorPlan
from nvrx_core.inprocess.monitor.process import MonitorProcess
from nvrx_core.inprocess.monitor.round_progress import RoundProgress
from nvrx_core.inprocess.monitor_thread import MonitorThread
from nvrx_core.inprocess.progress_watchdog import ProgressWatchdog
from nvrx_core.inprocess.protocol.effects import StoreFailure
from nvrx_core.inprocess.protocol.round import RoundTimeouts
from nvrx_core.inprocess.protocol.view import Rounds, RoundView
from nvrx_core.inprocess.state import State
from nvrx_core.process.descriptors import give_up
from nvrx_core.process.fork_server import ForkServer
from nvrx_core.process.forks import keep_for_good
from nvrx_core.process.garbage import freeze_on_entry
from nvrx_core.process.lifeline import is_running, open_pidfd
from nvrx_core.process.log_handlers import own_stream_handlers
from nvrx_core.process.owner_lock import OwnerLock
from nvrx_core.process.stacks import Stacks
from nvrx_core.process.waiting import readable
from nvrx_core.progress.page import Page, ProgressField
from nvrx_core.progress.stage import Stage
from nvrx_core.settings import environment
from nvrx_core.store.keys import StoreKeys

__all__ = ["Equipment"]

log = logging.getLogger("nvrx_core.inprocess")
MONITOR_LEAVES_WITHIN: Final = 2.0
MONITOR_LINKS_WITHIN: Final = 5.0


class Equipment:
    """Everything around one call.

    Args:
        parameters: the wrapper's.
        number: which call of this process it is.
        state: the rank's state on entry.
        stack: where it is undone.
    """

    def __init__(self, parameters: Parameters, number: int, state: State, stack: ExitStack) -> None:
        self.parameters, self.state = parameters, state
        self.member, self.size = state.initial_rank, state.initial_world_size
        self.marks: dict[str, float] = {}
        self.struck = 0.0
        self.aborting = False
        self._entered = False
        self.faults = FaultMaker(self.member)
        self._ended: RoundView | None = None
        self.keys = StoreKeys(environment.job_name(), 0, number)
        self.entrant = Entrant(self.member, environment.restarts_all_ranks())
        freeze_on_entry()
        stack.enter_context(environment.restored())
        stack.enter_context(own_stream_handlers())
        self._open_page(stack)
        self.interrupt = Interrupt.within(parameters.interrupt_signal, parameters.soft_timeout, parameters.hard_timeout)
        stack.callback(self._give_back_signal)
        self._start_monitor(stack)
        try:
            self._connect(stack)
            self._take_over(stack)
            self.fork_server.await_ready()
            self._start_threads(stack)
            self._entered = True
        except BaseException as error:  # boundary: whatever keeps this rank from entering, nobody waits for it
            self.page.enter(
                Stage.LEFT if isinstance(error, BarrierTimeout | RankDiscarded) else Stage.EXITED_ABNORMALLY
            )
            raise

    # In

    def _open_page(self, stack: ExitStack) -> None:
        self.events = EventLog(self.parameters.events_dir or environment.events_directory(), self.member)
        stack.callback(self.events.close)
        self.page = Page(self.size)
        stack.callback(self.page.close)
        self.page.begin_round(-1, self.member, self.size)
        self.wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        stack.callback(os.close, self.wake)
        self.stacks = stack.enter_context(closing(Stacks()))
        self.linked = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        stack.callback(os.close, self.linked)
        self.lock = OwnerLock()
        stack.callback(self.lock.close)
        self.lock.hold()

    def _start_monitor(self, stack: ExitStack) -> None:
        pidfd = open_pidfd(os.getpid())
        stack.callback(os.close, pidfd)
        fds = (pidfd, self.wake, self.linked, *self.stacks.descriptors, self.events.fileno())
        run = MonitorProcess(self._plan(pidfd), self.page, self.lock).run
        self.fork_server = ForkServer.start(run, {fd for fd in fds if fd is not None})
        stack.callback(self._end_monitor)
        stack.callback(self.lock.let_go)
        self.stacks.start()

    def _plan(self, pidfd: int) -> MonitorPlan:
        p = self.parameters
        files = p.monitor_process_logfile, p.monitor_process_pidfile
        paths = [path and path.format(rank=self.member) for path in files]
        return MonitorPlan(
            member=self.member,
            rank_pid=os.getpid(),
            rank_pidfd=pidfd,
            wake=self.wake,
            linked=self.linked,
            factory=p.store_factory,
            kwargs=p.store_kwargs or {},
            keys=self.keys,
            entrant=self.entrant,
            soft=p.soft_timeout.total_seconds(),
            hard=p.hard_timeout.total_seconds(),
            grace=p.termination_grace_time.total_seconds(),
            breath=p.watchdog_interval,
            barrier=p.barrier_timeout,
            interval=p.monitor_process_interval.total_seconds(),
            heartbeat=p.heartbeat_interval.total_seconds(),
            heartbeat_timeout=p.heartbeat_timeout.total_seconds(),
            signum=p.interrupt_signal,
            events=self.events,
            stacks=self.stacks,
            logfile=paths[0],
            pidfile=paths[1],
        )

    def _connect(self, stack: ExitStack) -> None:
        """Two connections of our own, one for the main thread and one for the monitor thread."""
        p = self.parameters
        hit("store-connect", -1)
        self.links = Connections(p.store_factory, p.store_kwargs or {}, self.keys, p.monitor_thread_interval)
        stack.callback(self._drop_store)
        self.control_store, self.endpoint, self.critical = (
            self.links.control_store,
            self.links.endpoint,
            self.links.critical,
        )
        self.hosted = self.member in self.critical if self.links.hosted is None else self.links.hosted
        self.page[ProgressField.HOSTS_STORE] = int(self.hosted)
        self._join()

    def _join(self) -> None:
        """Meet the other ranks in a generation of keys that no earlier start of the job has used."""
        joining = Joining(self.links, self.page, self.entrant)
        try:
            self.keys = joining.run(self.parameters.barrier_timeout)
        except StoreFailure as failure:
            log.error("%s (%s)", self.store_lost(), failure)
            raise self.store_lost() from None
        self.links.use(self.keys)

    def _give_back_signal(self) -> None:
        """After the monitor process has ended, which may send it; one that speaks for this rank has not."""
        self.interrupt.uninstall(may_come=self.page[ProgressField.STAGE] == Stage.EXITED_ABNORMALLY)

    def _take_over(self, stack: ExitStack) -> None:
        p = self.parameters
        self.interrupt.round_is_over = lambda: (
            self.page[ProgressField.ROUND_OVER] == self.page[ProgressField.ITERATION] + 1
        )
        self.interrupt.install()
        self.observer = GroupObserver(self.page, lambda timeout: warn_about_watchdog(timeout, p.hard_timeout))
        self.sample = RoundProgress(self.page, p.soft_timeout.total_seconds(), self.observer.count_collectives)
        self.observer.install()
        stack.callback(self.observer.uninstall)
        self.threads = ThreadFaults(self._thread_failed)
        if p.thread_exceptions == "fault":
            self.threads.install()
            stack.callback(self.threads.uninstall)

    def _start_threads(self, stack: ExitStack) -> None:
        p = self.parameters
        self.watchdog = ProgressWatchdog(
            self.page,
            p.watchdog_interval,
            self.fork_server,
            self._monitor_replaced,
            gone=self._template_gone,
            observe=self.observer.count_collectives,
            silent=lambda: self.lose_store("no answer for 10 s"),
            failed=self._watcher_failed,
        )
        self.housekeeping = Housekeeping(
            self.control_store, self.size, least_world_size(p.initialize), self.watchdog.defer
        )
        times = (p.barrier_timeout, p.completion_timeout, p.last_call_wait)
        timeouts = RoundTimeouts(*(time_.total_seconds() for time_ in times))
        self.rounds = Rounds(self.member, frozenset(range(self.size)), timeouts)
        self.thread = MonitorThread(
            control_store=self.links.waiting,
            page=self.page,
            interrupt=self.interrupt,
            rounds=self.rounds,
            abort=self.abort,
            unblock=self._unblock,
            decided=self.observer.release,
            failed=self._watcher_failed,
        )
        self.thread.noticed = self.sample.take
        self.watchdog.depth = lambda: self.interrupt.depth
        self.turns = ShortTurns(STEADY)
        self.early_exit = EarlyExit(self.interrupt, self._wake_main, abort=self.abort, unblock=self._unblock)
        self.turns.begin()
        stack.callback(self.turns.end)
        self.watchdog.start()
        stack.callback(self.watchdog.stop)
        self.thread.start()
        stack.callback(self._stop_thread)
        self.events.write("call_entered", 0, world_size=self.size)
        self.enter(Stage.STARTING)

    def await_monitor(self) -> None:
        """Wait until the monitor process has reached the store: the function does not start unprotected."""
        if not readable([self.linked], MONITOR_LINKS_WITHIN):
            log.warning("the monitor process has not reached the store within %g s", MONITOR_LINKS_WITHIN)

    def disown(self, undone: ExitStack) -> None:
        """In a child of `os.fork`: what is the rank's is neither used nor undone."""
        keep_for_good(self, undone)
        for part in (self.page, self.interrupt, self.observer, self.links):
            part.disown()
        self.threads.uninstall()
        self.turns.end()
        give_up((self.wake, self.linked, self.fork_server.channel.fileno()))

    # Progress

    def enter(self, stage: Stage) -> None:
        """Note what the main thread is about, and tell the monitor process."""
        self.page.enter(stage)
        os.eventfd_write(self.wake, 1)

    def begin(self, state: State) -> None:
        """A new iteration, in which this rank has a place."""
        self.aborting = False
        self.page.begin_round(state.iteration, state.rank, state.world_size)
        self.enter(Stage.STARTING)
        self.mark("assigned")

    def mark(self, name: str) -> None:
        """Note the time of a step of the restart."""
        self.marks[name] = time.monotonic()

    def end_round(self, view: RoundView) -> None:
        """The round is aborted: take over the marks that the monitor thread has taken."""
        self.report_restart()
        self._ended = view
        self.marks |= self.thread.marks

    def entered(self, state: State) -> None:
        """The iteration has begun: the restart is over."""
        self.mark("entered")
        self.report_restart()
        self.housekeeping.entered(state)
        self.marks = {}

    def report_restart(self) -> None:
        """Write the event and the log line of a restart, in the watchdog's thread."""
        if self._ended is None or self._ended.decision is None:
            return
        state, decision, marks = replace(self.state), self._ended.decision, self.marks
        self.marks, self._ended = {}, None
        for missed in ("initialized", "entered"):  # the iteration has failed before
            marks.setdefault(missed, time.monotonic())
        if decision.cause is not None:
            marks["struck"], marks["announced"] = self.faults.on_my_clock(decision.cause)
        self.watchdog.defer(lambda: report(self.events, state, decision, marks))
        self.housekeeping.decided(state.rank, decision)

    def tell(self, fault: FaultRecord) -> None:
        """Write a fault of this rank's own to the event file."""
        self.events.write("fault", self.state.iteration, **fault.event_fields())

    # Stores

    def assignment_store(self, iteration: int) -> Any:
        """The store that a user's rank assignment may use before this iteration."""
        return self.links.assignment_store(iteration)

    def another_store(self) -> dist.Store:
        """The control store on a connection of the function's, which is cut when nothing else gets it out."""
        if self.endpoint[1]:
            self.observer.store_ports.add(self.endpoint[1])
        return self.links.another_store()

    def iteration_store(self) -> dist.Store:
        """A torch store for the iteration, on a connection of its own."""
        if self.endpoint[1]:
            self.observer.store_ports.add(self.endpoint[1])
        return self.links.iteration_store(self.state.iteration, self.observer.rendezvous_endpoint)

    # Faults

    def abort(self) -> None:
        """Carry out the user's abort; runs in the monitor thread."""
        self.aborting = True
        if self.parameters.abort is not None:
            carry_out(self.parameters.abort, self.state.freeze())

    def _unblock(self) -> None:
        if not self.observer.unblock() and log.isEnabledFor(logging.DEBUG):
            log.debug("the function does not react to the interruption:\n%s", self.interrupt.stack())

    def _thread_failed(self, error: BaseException, iteration: int) -> None:
        """A thread of the user's ended by an exception: a fault of the iteration that started it, by choice."""
        fault = self.faults.of(error, self.state.rank, time.monotonic())
        with suppress(StoreFailure):
            self.control_store.announce(iteration, fault)
        self.tell(fault)

    def _monitor_replaced(self, reason: str) -> None:
        self.events.write("monitor_replaced", self.state.iteration, reason=reason)
        os.eventfd_write(self.wake, 1)

    def _template_gone(self) -> None:
        """Nobody will replace the monitor process; without one, the rank does not go on."""
        if is_running(self.page[ProgressField.MONITOR_PID]):
            log.warning("the template process is gone: the monitor process will not be replaced if it is lost")
            return
        self._leave_for("no monitor process could be kept running; see monitor_process_logfile")

    def _watcher_failed(self, error: BaseException) -> None:
        """One of our own threads has ended."""
        if isinstance(error, StoreFailure):
            self.lose_store(str(error))
        else:
            self._leave_for(f"{threading.current_thread().name} failed: {error!r}", error)

    def _leave_for(self, reason: str, error: BaseException | None = None) -> None:
        """This rank has lost a part that it must not go on without."""
        if self.early_exit.decide(lambda: RestartAbort(reason, culprit=self.member)):
            log.error("initial rank %d leaves: %s", self.member, reason, exc_info=error)
            self.early_exit.carry_out()

    def _wake_main(self) -> None:
        self.thread.wake()

    def store_lost(self) -> StoreLost:
        """What the call ends with when the store is gone."""
        return StoreLost(*self.endpoint)

    def lose_store(self, reason: str) -> None:
        """The store is gone: get the main thread out; its process leaves, or is ended by its monitor process."""
        if not self.early_exit.decide(self.store_lost):
            return
        if not self.page[ProgressField.STORE_LOST]:
            self.page[ProgressField.STORE_LOST] = time.monotonic_ns()
        os.eventfd_write(self.wake, 1)
        log.error("%s (%s)", self.store_lost(), reason)
        self.events.write("store_lost", self.state.iteration, endpoint=f"{self.endpoint[0]}:{self.endpoint[1]}")
        self.links.cut()
        self.early_exit.carry_out()

    # Out

    def _stop_thread(self) -> None:
        self.thread.stop(self.links.cut)

    def _drop_store(self) -> None:
        self.links.withdraw()
        for name in ("links", "control_store", "thread", "housekeeping"):
            self.__dict__.pop(name, None)

    def _end_monitor(self) -> None:
        gone = self.page[ProgressField.STAGE] == Stage.EXITED_ABNORMALLY
        if gone and self._entered:
            self.fork_server.detach()
            return
        if not gone:
            self.page.enter(Stage.LEFT)
        os.eventfd_write(self.wake, 1)
        has_nobody_to_tell = bool(self.page[ProgressField.STORE_LOST])
        self.fork_server.end(0.0 if has_nobody_to_tell else MONITOR_LEAVES_WITHIN)
