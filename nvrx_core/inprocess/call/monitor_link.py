"""The rank's link to its monitor process: started first, notified of each stage of the main thread, ended last."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any, Final

from nvrx_core.events.log import EventLog
from nvrx_core.inprocess.call.cleanup_stack import CleanupStack
from nvrx_core.inprocess.configuration.parameters import Parameters
from nvrx_core.inprocess.coordination.joining import Entrant
from nvrx_core.inprocess.monitor.plan import MonitorPlan
from nvrx_core.inprocess.monitor.process import MonitorProcess
from nvrx_core.inprocess.protocol.effects import Flow
from nvrx_core.inprocess.state import State
from nvrx_core.process.descriptors import give_up, notify
from nvrx_core.process.fork_server import ForkServer
from nvrx_core.process.lifeline import is_running, open_pidfd
from nvrx_core.process.owner_lock import OwnerLock
from nvrx_core.process.stacks import Stacks
from nvrx_core.process.waiting import readable
from nvrx_core.progress import monitored
from nvrx_core.progress.page import Page, ProgressField
from nvrx_core.progress.stage import Stage
from nvrx_core.store.keys import StoreKeys

__all__ = ["MonitorLink", "monitor_plan", "start_monitor"]

log = logging.getLogger("nvrx_core.inprocess")
LEAVES_WITHIN: Final = 2.0
REACHES_STORE_WITHIN: Final = 5.0


class MonitorLink:
    """The objects that a rank shares with its monitor process.

    Args:
        page: the progress page, written by the rank and read by its monitor process.
        wake: an eventfd that makes the monitor process read the page.
        linked: an eventfd that the monitor process writes to when it is connected to the store.
        fork_server: keeps the monitor process running.

    Attributes:
        entered: the rank is in the job. Before that, a rank that cannot enter waits until the others are notified.
    """

    def __init__(self, page: Page, wake: int, linked: int, fork_server: ForkServer) -> None:
        self.page, self.fork_server = page, fork_server
        self._wake, self._linked = wake, linked
        self.entered = False

    def enter(self, stage: Stage) -> None:
        """Write the stage of the main thread."""
        self.page.enter(stage)
        self.notify()

    def begin(self, state: State) -> None:
        """Write that an iteration begins, in which this rank has the ranks of `state`."""
        self.page.begin_round(state.iteration, state.rank, state.world_size)
        rank = monitored.current()
        if rank is not None and rank.page is self.page:
            rank.begin_anew()
        self.enter(Stage.STARTING)

    def notify(self) -> None:
        """Wake the monitor process to read the page."""
        notify(self._wake)

    def store_lost(self) -> None:
        """Write that the store is lost: from here on, the monitor process bounds the time until the rank has exited."""
        if not self.page[ProgressField.STORE_LOST]:
            self.page[ProgressField.STORE_LOST] = time.monotonic_ns()
        self.notify()

    def await_store(self) -> None:
        """Wait until the monitor process is connected to the store: the function does not start unmonitored."""
        if not readable([self._linked], REACHES_STORE_WITHIN):
            log.warning("the monitor process has not reached the store within %g s", REACHES_STORE_WITHIN)

    def is_running(self) -> bool:
        """Whether the monitor process runs."""
        return is_running(self.page[ProgressField.MONITOR_PID])

    def reports_exit(self) -> bool:
        """Whether the rank exits early, so that its monitor process notifies the other ranks."""
        return self.page[ProgressField.STAGE] == Stage.EXITED_ABNORMALLY

    def round_is_over(self) -> bool:
        """Whether the monitor process has written that the round is over, before any thread of this process noticed."""
        return self.page[ProgressField.ROUND_OVER] == self.page[ProgressField.ITERATION] + 1

    def module_imported(self) -> None:
        """Record progress of an import for which an interruption waits."""
        self.page[ProgressField.IMPORTED_AT] = time.monotonic_ns()

    @contextmanager
    def reporting(self, flow: Flow[Any]) -> Iterator[None]:
        """Let the monitor process report the exit of the rank when an error leaves the context before `flow` has ended.

        The flow notifies the other ranks of every other exit. In a child of `os.fork`, the page is its own.
        """
        try:
            yield
        except BaseException:  # boundary: the call ends by it
            if getgeneratorstate(flow) != GEN_CLOSED:
                self.enter(Stage.EXITED_ABNORMALLY)
            raise

    def end(self) -> None:
        """End the monitor process, unless it reports the exit of a rank that was in the job."""
        if self.reports_exit() and self.entered:
            self.fork_server.detach()
            return
        if not self.reports_exit():
            self.page.enter(Stage.LEFT)
        self.notify()
        has_nobody_to_tell = bool(self.page[ProgressField.STORE_LOST])
        self.fork_server.end(0.0 if has_nobody_to_tell else LEAVES_WITHIN)

    def disown(self) -> None:
        """In a child of `os.fork`: write to a private page, and keep none of the descriptors."""
        self.page.disown()
        give_up((self._wake, self._linked, self.fork_server.channel.fileno()))


def start_monitor(
    parameters: Parameters, entrant: Entrant, keys: StoreKeys, *, page: Page, events: EventLog, cleanup: CleanupStack
) -> MonitorLink:
    """Start the fork server, which starts the monitor process; `fork_server.await_ready` waits for the result.

    Args:
        parameters: the parameters of the wrapper.
        entrant: this rank.
        keys: the keys of the call, in any generation.
        page: the progress page, which the monitor process reads.
        events: the event file.
        cleanup: releases what is started.
    """
    pidfd = _closed_by(cleanup, open_pidfd(os.getpid()))
    wake, linked = (_closed_by(cleanup, os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)) for _ in range(2))
    stacks = cleanup.enter_context(closing(Stacks()))
    lock = cleanup.enter_context(closing(OwnerLock()))
    lock.hold()
    plan = monitor_plan(parameters, entrant, keys, events=events, stacks=stacks, fds=(pidfd, wake, linked))
    files = (pidfd, wake, linked, *stacks.descriptors, events.fileno())
    run = MonitorProcess(plan, page, lock).run
    link = MonitorLink(page, wake, linked, ForkServer.start(run, {fd for fd in files if fd is not None}))
    cleanup.callback(link.end)
    cleanup.callback(lock.release)
    cleanup.in_child(link.disown)
    stacks.start()
    return link


def _closed_by(cleanup: CleanupStack, fd: int) -> int:
    cleanup.callback(os.close, fd)
    return fd


def monitor_plan(
    parameters: Parameters, entrant: Entrant, keys: StoreKeys, *, events: EventLog, stacks: Stacks, fds: Iterable[int]
) -> MonitorPlan:
    """Return the plan of this rank's monitor process.

    Args:
        parameters: the parameters of the wrapper.
        entrant: the rank.
        keys: the keys of the call, in any generation.
        events: the event file.
        stacks: the stacks of the rank's threads.
        fds: a pidfd of the rank, then `wake` and `linked` of `MonitorLink`.
    """
    p = parameters
    pidfd, wake, linked = fds
    logfile, pidfile = (
        path and path.format(rank=entrant.member) for path in (p.monitor_process_logfile, p.monitor_process_pidfile)
    )
    return MonitorPlan(
        member=entrant.member,
        rank_pid=os.getpid(),
        rank_pidfd=pidfd,
        wake=wake,
        linked=linked,
        factory=p.store_factory,
        kwargs=p.store_kwargs or {},
        keys=keys,
        entrant=entrant,
        soft=p.soft_timeout.total_seconds(),
        hard=p.hard_timeout.total_seconds(),
        grace=p.termination_grace_time.total_seconds(),
        watchdog_interval=p.watchdog_interval,
        barrier=p.barrier_timeout,
        interval=p.monitor_process_interval.total_seconds(),
        heartbeat=p.lease_interval,
        heartbeat_timeout=p.heartbeat_timeout.total_seconds(),
        interrupt_signal=p.interrupt_signal,
        events=events,
        stacks=stacks,
        logfile=logfile,
        pidfile=pidfile,
    )
