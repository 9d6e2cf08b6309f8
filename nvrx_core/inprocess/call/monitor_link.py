"""The rank's link to its monitor process: notified of each stage of the main thread, ended last.

Its fork server is started first. The monitor process follows 0.1 s later, which is after the entry of most ranks: its
start takes half the CPU time of an entry. If the rank exits before, the fork server starts the monitor process at once,
to report it. A hang takes longer than that to detect.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Final

from nvrx_core.events.log import EventLog
from nvrx_core.fault.exceptions import exit_code
from nvrx_core.inprocess.call.parameters import Parameters
from nvrx_core.inprocess.coordination.joining import JoinRequest
from nvrx_core.inprocess.monitor.files import check_files, write_pidfile
from nvrx_core.inprocess.monitor.plan import MonitorPlan
from nvrx_core.inprocess.state import State
from nvrx_core.process.descriptors import give_up, notify
from nvrx_core.process.fork_server import STARTS_WITHIN, ForkServer, Postponement
from nvrx_core.process.forks import CleanupStack
from nvrx_core.process.lifeline import is_running, open_pidfd
from nvrx_core.process.memory import MemoryKills
from nvrx_core.process.owner_lock import OwnerLock
from nvrx_core.process.stacks import Stacks
from nvrx_core.process.waiting import readable
from nvrx_core.progress import monitored
from nvrx_core.progress.page import Page, ProgressField
from nvrx_core.progress.stage import Stage
from nvrx_core.store.keys import StoreKeys

if TYPE_CHECKING:
    from nvrx_core.inprocess.monitor.process import MonitorProcess

__all__ = ["MonitorLink", "start_monitor"]

LEAVES_WITHIN: Final = 2.0
STARTS_AFTER: Final = 0.1
"""Seconds until the monitor process is started; most entries take less."""


class MonitorLink:
    """The objects that a rank shares with its monitor process.

    Args:
        page: the progress page, written by the rank and read by its monitor process.
        wake: an eventfd that makes the monitor process read the page.
        started: an eventfd that the monitor process writes to when it has started.
        fork_server: keeps the monitor process running.

    Attributes:
        entered: the rank is in the job. Before that, a rank that cannot enter waits until the others are notified.
    """

    def __init__(self, page: Page, wake: int, started: int, fork_server: ForkServer) -> None:
        self.page, self.fork_server = page, fork_server
        self._wake: int | None = wake
        self._started = started
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
            rank.reset()
        self.enter(Stage.STARTING)

    def abandon(self, error: BaseException) -> None:
        """Write that the rank leaves by `error` without notifying its peers: the monitor process reports it."""
        self.page[ProgressField.EXIT_CODE] = exit_code(error)
        self.enter(Stage.EXITED_ABNORMALLY)

    def notify(self) -> None:
        """Wake the monitor process to read the page; in a child of `os.fork`, nothing."""
        if self._wake is not None:
            notify(self._wake)

    def store_lost(self) -> None:
        """Write that the store is lost: from here on, the monitor process bounds the time until the rank has exited."""
        if not self.page[ProgressField.STORE_LOST]:
            self.page[ProgressField.STORE_LOST] = time.monotonic_ns()
        self.notify()

    def pid(self) -> int:
        """Return the pid of the monitor process; waits until it has started. 0 when it does not start."""
        if not self.page[ProgressField.MONITOR_PID]:
            self.fork_server.hasten()
            readable([self._started], STARTS_WITHIN)
        return self.page[ProgressField.MONITOR_PID]

    def is_running(self) -> bool:
        """Whether the monitor process runs."""
        return is_running(self.page[ProgressField.MONITOR_PID])

    def reports_exit(self) -> bool:
        """Whether the rank exits early, so that its monitor process notifies the other ranks."""
        return self.page[ProgressField.STAGE] == Stage.EXITED_ABNORMALLY

    @contextmanager
    def reporting(self, is_over: Callable[[], bool]) -> Iterator[None]:
        """Let the monitor process report the rank's exit when an error leaves the context before the flow is over.

        The flow notifies the other ranks of every other exit. In a child of `os.fork`, the page is its own.
        """
        try:
            yield
        except BaseException as error:  # boundary: the call ends by it
            if not is_over():
                self.abandon(error)
            raise

    def end(self) -> None:
        """End the monitor process, unless it can and must report the exit of a rank that was in the job.

        It has time for what it may be about to tell others. One that has not reached the store has found nothing yet,
        and might wait for a store that has just been closed.
        """
        is_lost = bool(self.page[ProgressField.STORE_LOST])
        reports = self.reports_exit() and not is_lost
        if reports and self.entered:
            self.fork_server.detach()
            return
        if reports:
            self.fork_server.hasten()
        elif not self.reports_exit():
            self.page.enter(Stage.LEFT)
        self.notify()
        has_work = reports or (not is_lost and self.page[ProgressField.MONITOR_BEAT])
        self.fork_server.end(LEAVES_WITHIN if has_work else 0.0)

    def disown(self) -> None:
        """In a child of `os.fork`: write to a private page, and keep none of the descriptors."""
        self.page.disown()
        if self._wake is not None:
            give_up((self._wake, self._started, self.fork_server.channel.fileno()))
        self._wake = None


def start_monitor(
    parameters: Parameters,
    join_request: JoinRequest,
    keys: StoreKeys,
    *,
    page: Page,
    events: EventLog,
    cleanup: CleanupStack,
) -> MonitorLink:
    """Start the fork server, which starts the monitor process later; `fork_server.await_ready` waits for the server.

    Args:
        parameters: the parameters of the wrapper.
        join_request: this rank.
        keys: the keys of the call, in any generation.
        page: the progress page, which the monitor process reads.
        events: the event file.
        cleanup: releases what is started.

    Raises:
        OSError: when the monitor process could not write its files, or there can be no further process.
    """
    pidfd = _closed_by(cleanup, open_pidfd(os.getpid()))
    wake, started = (_closed_by(cleanup, os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)) for _ in range(2))
    stacks = cleanup.enter_context(closing(Stacks()))
    lock = cleanup.enter_context(closing(OwnerLock()))
    lock.hold()
    p, files = parameters, (parameters.monitor_process_logfile, parameters.monitor_process_pidfile)
    logfile, pidfile = (path and path.format(rank=join_request.member) for path in files)
    plan = MonitorPlan(
        rank_pid=os.getpid(),
        rank_pidfd=pidfd,
        wake=wake,
        started=started,
        factory=p.store_factory,
        kwargs=p.store_kwargs or {},
        keys=keys,
        join_request=join_request,
        timeouts=p.timeouts,
        grace=p.termination_grace_time.total_seconds(),
        barrier=p.barrier_timeout,
        interval=p.monitor_process_interval.total_seconds(),
        interrupt_signal=p.interrupt_signal,
        events=events,
        stacks=stacks,
        memory_kills=MemoryKills(os.getpid()),
        logfile=logfile,
        pidfile=pidfile,
    )
    page[ProgressField.MEMORY_KILLS] = plan.memory_kills.count()
    check_files(logfile, pidfile)
    kept = {pidfd, wake, started, *stacks.descriptors, events.fileno()}
    later = Postponement(STARTS_AFTER, urgent=(pidfd,), begins=lambda: write_pidfile(pidfile), prepares=_import_monitor)
    server = ForkServer.start(
        lambda ready: _import_monitor()(plan, page, lock).run(ready),
        {fd for fd in kept if fd is not None},
        postponement=later,
    )
    link = MonitorLink(page, wake, started, server)
    cleanup.callback(link.end)
    cleanup.callback(lock.release)
    cleanup.in_child(link.disown)
    stacks.start()
    return link


def _import_monitor() -> type[MonitorProcess]:
    """Return the monitor process; its modules are imported in the fork server, and in no rank."""
    from nvrx_core.inprocess.monitor.process import MonitorProcess

    return MonitorProcess


def _closed_by(cleanup: CleanupStack, fd: int) -> int:
    cleanup.callback(os.close, fd)
    return fd
