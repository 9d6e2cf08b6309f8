"""The monitor process: watches one rank from outside, and speaks for it when it is dead.

It waits on the rank's pidfd, so a death is known at once; it reads the progress page and ends a rank that no longer
moves; it moves the rank's lease on and watches the lease of the next member. One loop, one thread, one connection to
the store. All that it knows lies in the page and in the store, so that a replacement goes on where it ended.
"""

from __future__ import annotations

import logging
import math
import os
import select
import signal
import socket
import threading
import time
from bisect import bisect
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

import torch.distributed as dist

from nvrx_core.events.log import boot_id
from nvrx_core.failpoint import hit
from nvrx_core.fault.attribution import Interruption
from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.coordination.control_store import ControlStore
from nvrx_core.inprocess.coordination.interpreter import interpret
from nvrx_core.inprocess.coordination.joining import join_for_dead
from nvrx_core.inprocess.coordination.store_rules import store_rules
from nvrx_core.inprocess.monitor.clean_exit import CleanExit
from nvrx_core.inprocess.monitor.files import configure_logging, write_pidfile
from nvrx_core.inprocess.monitor.peers import Peers
from nvrx_core.inprocess.monitor.plan import MonitorPlan
from nvrx_core.inprocess.monitor.reach import Reach
from nvrx_core.inprocess.monitor.stack_report import report_stacks
from nvrx_core.inprocess.monitor.unheard import Unheard
from nvrx_core.inprocess.progress_watchdog import SILENT_STORE
from nvrx_core.inprocess.protocol.death_report import report_death, report_unresponsive
from nvrx_core.inprocess.protocol.effects import StoreFailure
from nvrx_core.inprocess.protocol.round import DeathReport
from nvrx_core.liveness.awake_clock import AwakeClock
from nvrx_core.liveness.hang_detector import (
    HangDetector,
    Kill,
    Poke,
    ProgressSample,
    QueryPeers,
    SoftTimeout,
    Terminate,
)
from nvrx_core.liveness.lease import LeaseTable
from nvrx_core.process.lifeline import catches, how_it_ended, is_stopped, send
from nvrx_core.process.memory import MemoryKills
from nvrx_core.process.owner_lock import OwnerLock
from nvrx_core.progress.page import Page, ProgressField
from nvrx_core.progress.stage import Stage
from nvrx_core.store.mixin import as_client
from nvrx_core.store.reconnecting import Connection

__all__ = ["MonitorProcess"]

log = logging.getLogger("nvrx_core.inprocess.monitor.process")
STORE_GRACE = 5.0
"""Seconds that a rank has to leave after the store was lost."""
PROBE_EVERY: Final = SILENT_STORE / 4
"""Seconds between two questions to the store, at most: a lease may move more rarely than the store may be silent."""
REACH: Final = 64
"""How many members are watched for each that is silent: a lost host's own ranks watch each other no longer."""
_WAY = (ProgressField.ITERATION, ProgressField.MEETINGS, ProgressField.COLLECTIVES)
"""How far a rank has come, comparable between ranks."""


class MonitorProcess:
    """The process's main loop.

    Args:
        plan: what to watch and how.
        page: the rank's progress page.
        lock: held by the rank's main thread as long as it lives.
    """

    def __init__(self, plan: MonitorPlan, page: Page, lock: OwnerLock) -> None:
        self.plan, self.page, self.lock = plan, page, lock
        self.watch = HangDetector(plan.soft, plan.hard, plan.grace)
        self.siblings = LeaseTable(plan.heartbeat_timeout)
        self.awake = AwakeClock()
        self.unheard = Unheard(1.5 * plan.breath + 0.25, plan.hard - plan.soft)
        self.reach = Reach(self.unheard, page, pidfd=plan.rank_pidfd, signum=plan.signum, is_over=self._is_over)
        self.reported: dict[int, FaultRecord] = {}
        self.control_store: ControlStore | None = None
        self.memory, self.peers, self.clean_exit = MemoryKills(plan.rank_pid), Peers(plan, page), CleanExit()
        self.replaces, self.beats, self.lease = False, 0, ""
        self.lease_due = self.probe_due = self.sibling_due = 0.0
        self.ended_by: str | None = None

    def run(self, ready: Callable[[], None]) -> None:
        """Watch until the rank has left or is dead and its death is known to all."""
        configure_logging(self.plan.logfile)
        try:
            self._watch(ready)
        except BaseException:  # boundary: the process ends; its replacement goes on
            log.exception("the monitor process of rank %d failed", self.plan.member)
            raise

    def _watch(self, ready: Callable[[], None]) -> None:
        if self.plan.pidfile:
            write_pidfile(self.plan.pidfile)
        self.replaces = bool(self.page[ProgressField.MONITOR_PID])
        if self.replaces:  # nobody has watched since the predecessor's last word
            self.awake.woke(self.page[ProgressField.MONITOR_BEAT] / 1e9, now=time.monotonic())
        self.page[ProgressField.MONITOR_PID] = os.getpid()
        hit("monitor-ready", self.page[ProgressField.ITERATION])
        ready()
        poll = select.poll()
        poll.register(self.plan.rank_pidfd, select.POLLIN)
        poll.register(self.plan.wake, select.POLLIN)
        poll.register(self._watch_owner(), select.POLLIN)
        while self.page[ProgressField.STAGE] not in (Stage.LEFT, Stage.EXITED_ABNORMALLY):
            due = self._turn()
            happened = poll.poll(max(0.0, due - time.monotonic()) * 1000 + 0.5)
            if (pause := self.awake.woke(due, now=time.monotonic())) > 0:
                log.warning("this process has paused for %.1f s, which nobody is blamed for", pause)
            for fd, _ in happened:
                if fd != self.plan.wake:
                    self._rank_died()
                    return
                os.eventfd_read(fd)
        with suppress(StoreFailure):
            self._let_go(self.reported.keys() - self.page.members())
        if self.page[ProgressField.STAGE] == Stage.EXITED_ABNORMALLY:
            self._rank_died()

    def _watch_owner(self) -> int:
        """A descriptor that becomes readable as soon as the rank's main thread is gone."""
        gone = os.eventfd(0, os.EFD_CLOEXEC)

        def wait() -> None:
            if self.lock.wait():
                os.eventfd_write(gone, 1)

        threading.Thread(target=wait, name="nvrx-owner-lock", daemon=True).start()
        return gone

    def _turn(self) -> float:
        """Do what is due; returns when the next turn is."""
        while self._judge():
            pass
        self.reach.turn(self.reading(), now=self._now())
        if self.page[ProgressField.STAGE] != Stage.OUTSIDE and not self.page[ProgressField.STORE_LOST]:
            with suppress(StoreFailure):
                self._keep_lease()
                self._look_who_waits()
        if self.page[ProgressField.STORE_LOST]:
            self._enforce_store_loss()
            self.lease_due = self.probe_due = 0.0
        ask_due = min(self.lease_due, self.probe_due) or math.inf
        return min(
            self.awake.when(min(self.watch.deadline, self.unheard.deadline, self.clean_exit.deadline)),
            time.monotonic() + self.plan.interval,
            ask_due,
        )

    def _now(self) -> float:
        """The awake time, in which silence is measured."""
        return self.awake.at(time.monotonic())

    def _judge(self) -> bool:
        """Look at the rank's progress; True when there is an answer to look at again."""
        now = self._now()
        again = False
        reading = self.reading()
        for action in self.watch.look(reading, now=now):
            match action:
                case SoftTimeout(reason):
                    self.page[ProgressField.STALLED] = reading.iteration + 1
                    self._announce(reading.iteration, Interruption.SOFT_TIMEOUT, reason)
                case QueryPeers():
                    self.watch.peers_progressing(self._somebody_is_on_the_way(), now=now)
                    again = True
                case Poke():
                    send(self.plan.rank_pidfd, [self.plan.signum])
                case Terminate(reason):
                    self._terminate(reason)
                case Kill(reason):
                    log.warning("kill rank %d: %s", self.plan.member, reason)
                    send(self.plan.rank_pidfd, [signal.SIGCONT, signal.SIGTERM, signal.SIGKILL])
        return again

    def reading(self) -> ProgressSample:
        """What the page says now, in awake time."""
        page = self.page
        return ProgressSample(
            iteration=page[ProgressField.ITERATION],
            stage=Stage(page[ProgressField.STAGE]),
            alive_at=self.awake.at(page.alive_at()),
            breathing_at=self.awake.at(page[ProgressField.WATCHDOG_HEARTBEAT] / 1e9 or math.inf),
            stopped=is_stopped(self.plan.rank_pid),
            protected=page[ProgressField.UNPROTECTED] == 0,
            noticed=page[ProgressField.NOTICED] == page[ProgressField.ITERATION] + 1,
            interrupting=page[ProgressField.INTERRUPTING] == page[ProgressField.ITERATION] + 1,
            out_by=math.inf if page[ProgressField.ATOMIC] else self.unheard.out_by,
        )

    def _is_over(self, iteration: int) -> bool:
        try:
            return self._connected().has_event(iteration)
        except StoreFailure:
            return False

    def _terminate(self, reason: str) -> None:
        self.ended_by = reason
        log.warning("end rank %d: %s", self.plan.member, reason)
        report_stacks(self.plan, self.page[ProgressField.ITERATION])
        graceful = self.plan.grace > 0 and catches(self.plan.rank_pid, signal.SIGTERM)
        send(self.plan.rank_pidfd, [signal.SIGCONT, signal.SIGTERM] + ([] if graceful else [signal.SIGKILL]))

    def _announce(self, iteration: int, kind: Interruption, reason: str) -> None:
        """Tell all ranks of a fault of this one, which lives, and may be on its way into the next iteration by now."""
        fault = self._fault(kind, reason, struck=self.page.alive_at())
        self.plan.events.write("fault", iteration, **fault.event_fields())
        log.warning("%s", fault)
        with suppress(StoreFailure):
            self._connected().announce(iteration, fault)

    def _fault(self, kind: Interruption, reason: str, struck: float) -> FaultRecord:
        page, now = self.page, time.monotonic()
        return FaultRecord(
            initial_rank=self.plan.member, rank=page[ProgressField.RANK], interruption=kind.name, message=reason,
            struck=struck, announced=now, wall=time.time(), boot_id=boot_id(), host=socket.gethostname(),
            pid=self.plan.rank_pid,
        )  # fmt: skip

    def _connected(self) -> ControlStore:
        if self.control_store is None:
            try:  # torch would wait for a silent store for ever, and nobody would end the rank
                plan, silence = self.plan, int(SILENT_STORE)
                store: Any = Connection(self._open_store, plan.factory, plan.kwargs, silence=silence)
            except Exception as error:  # boundary: a user's store factory
                raise StoreFailure(str(error)) from error
            generation = max(0, self.page[ProgressField.GENERATION] - 1)
            self.control_store = ControlStore(store, self.plan.keys.of(generation))
            if self.replaces:
                hit("monitor-reattach", self.page[ProgressField.ITERATION])
        return self.control_store

    def _open_store(self) -> dist.Store:
        with as_client():
            return self.plan.factory(**self.plan.kwargs)

    def _keep_lease(self) -> None:
        """Move this rank's lease on, or only ask whether the store answers, when it is time to."""
        now = time.monotonic()
        if now < min(self.lease_due, self.probe_due):
            return
        self.probe_due = now + PROBE_EVERY
        try:
            if now < self.lease_due:
                self._connected().has_left(self.plan.member)
            else:
                self._move_lease(now)
            self.page[ProgressField.MONITOR_BEAT] = time.monotonic_ns()
            if now >= self.sibling_due:
                self.sibling_due = now + max(self.plan.heartbeat, self.plan.heartbeat_timeout / 10)
                self._look_at_siblings()
        except StoreFailure:
            if not self.page[ProgressField.STORE_LOST]:
                self.page[ProgressField.STORE_LOST] = time.monotonic_ns()
            raise

    def _move_lease(self, now: float) -> None:
        self.lease_due = now + self.plan.heartbeat
        self.memory.note()
        self.lease = self._connected().move_lease(self.plan.member, self.lease, self._lease())
        if not self.page[ProgressField.MONITOR_BEAT]:
            os.eventfd_write(self.plan.linked, 1)

    def _lease(self) -> str:
        self.beats += 1
        stalled = self._now() - self.awake.at(self.page.alive_at()) > self.plan.soft / 2
        words = (ProgressField.MONITOR_PID, ProgressField.STAGE, *_WAY, ProgressField.ATOMIC)
        inside = (
            self._now() - self.awake.at(self.page[ProgressField.MEETING_AT] / 1e9)
            if self.page[ProgressField.MEETING]
            else 0
        )
        values = (self.beats, int(stalled), *(self.page[word] for word in words), int(inside))
        return "/".join(map(str, values))

    def _look_who_waits(self) -> None:
        """Tell all when the rank has exited with code 0, and others wait for it."""
        iteration = self.peers.exited()
        if self.clean_exit.due(iteration, now=self._now()) and iteration is not None:
            reason = self.clean_exit.waiting(self.peers.waiting(self._connected()))
            if reason is not None:
                self._announce(iteration, Interruption.SOFT_TIMEOUT, reason)

    def _look_at_siblings(self) -> None:
        now, me, members = self._now(), self.plan.member, sorted(self.page.members() - {self.plan.member})
        self._let_go(self.reported.keys() - members)
        if not members or self.page[ProgressField.STAGE] == Stage.LEFT:
            return
        first = bisect(members, me)
        doubted = self.siblings.stale(now=now, share=0.5)
        watched = (members[first:] + members[:first])[: max(1, REACH * len(doubted))]
        self.siblings.keep(watched)
        leases, all_have_arrived = self._connected().leases(watched), self.page[ProgressField.ITERATION] >= 0
        for member in watched:
            if member in leases or all_have_arrived:  # one that is late to start has no lease yet
                self.siblings.observe(member, leases.get(member, ""), now=now)
        for member in self.siblings.stale(now=now):
            if not self._connected().has_left(member):
                self._report_unresponsive(member)

    def _report_unresponsive(self, member: int) -> None:
        """Another member's monitor process is silent: its node is gone, or cut off."""
        fault = self.reported.get(member) or self._unresponsive(member)
        report = DeathReport(self.page[ProgressField.ITERATION], member, self.page.members(), fault)
        interpret(report_unresponsive(report, time.monotonic), store_rules(self._connected(), self.page.world_size))

    def _let_go(self, members: Iterable[int]) -> None:
        """These need the store no longer: whoever hosts it need not wait for them."""
        for member in members:
            self._connected().leave(member)
            self._connected().delete_if_over(self.page.world_size)
            del self.reported[member]

    def _unresponsive(self, member: int) -> FaultRecord:
        reason = f"no sign of life for {self.plan.heartbeat_timeout:g} s (heartbeat_timeout)"
        now = time.monotonic()
        fault = FaultRecord(
            initial_rank=member, rank=-1, interruption=Interruption.UNRESPONSIVE.name, message=reason,
            struck=now - self.plan.heartbeat_timeout, announced=now, wall=time.time(), boot_id=boot_id(),
            host="unknown host",
        )  # fmt: skip
        log.warning("%s", fault)
        self.plan.events.write("fault", self.page[ProgressField.ITERATION], **fault.event_fields())
        self.reported[member] = fault
        return fault

    def _somebody_is_on_the_way(self) -> bool:
        """Whether a member that is alive has yet to come to where this rank is, which may wait for it."""
        try:
            return self.peers.on_the_way(self._connected())
        except StoreFailure:
            return False

    def _enforce_store_loss(self) -> None:
        """The store is gone: the rank leaves by itself, or is ended."""
        since = self._now() - self.awake.at(self.page[ProgressField.STORE_LOST] / 1e9)
        if since >= STORE_GRACE:
            log.error("rank %d did not leave after the store was lost", self.plan.member)
            report_stacks(self.plan, self.page[ProgressField.ITERATION])
            send(self.plan.rank_pidfd, [signal.SIGCONT, signal.SIGKILL])

    def _rank_died(self) -> None:
        """Announce the death, arrive for the dead, and follow until a decision says so."""
        stage = Stage(self.page[ProgressField.STAGE])
        if stage == Stage.LEFT or self.page[ProgressField.STORE_LOST]:
            return
        kind = Interruption.HARD_TIMEOUT if self.ended_by else Interruption.TERMINATED
        struck = self._stood_still_since() if self.ended_by else time.monotonic()
        reason = "the rank left" if stage == Stage.EXITED_ABNORMALLY else f"process {how_it_ended(self.plan.rank_pid)}"
        fault = self._fault(kind, reason + (f" after {self.ended_by}" if self.ended_by else ""), struck)
        if "SIGKILL" in reason and not self.ended_by and self.memory.rose():
            fault = fault.of_memory()
        self.plan.events.write("fault", self.page[ProgressField.ITERATION], **fault.event_fields())
        log.warning("%s", fault)
        if self.page[ProgressField.HOSTS_STORE] and stage != Stage.EXITED_ABNORMALLY:
            return  # the store has ended with the rank; its listener may seem to be there for some milliseconds more
        with suppress(StoreFailure):
            control_store = self._connected()
            if join_for_dead(control_store, self.page, self.plan.entrant):
                report = DeathReport(self.page[ProgressField.ITERATION], self.plan.member, self.page.members(), fault)
                interpret(
                    report_death(report, time.monotonic),
                    store_rules(control_store, self.page.world_size, self.plan.barrier),
                )

    def _stood_still_since(self) -> float:
        since = self.watch.stood_still_since
        return self.page.alive_at() if since is None else self.awake.when(since)
