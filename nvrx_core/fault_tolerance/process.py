"""The rank monitor: a process that monitors one rank after another, and ends a hung one.

One loop, which waits for the rank's pidfd, the listening socket, the connections and the policy's deadline. All state
that must survive the monitor is on the page, so that a replacement continues where its predecessor stopped.
"""

from __future__ import annotations

import logging
import math
import os
import select
import signal
import time
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from typing import Any, Final

from nvrx_core.fault.stack_text import in_one_line
from nvrx_core.fault_tolerance.clients import Clients
from nvrx_core.fault_tolerance.inquiry import Findings, Inquiry
from nvrx_core.fault_tolerance.judging import turn
from nvrx_core.fault_tolerance.peers import PROGRESS, HangReport, Progress, Survey
from nvrx_core.fault_tolerance.plan import RankMonitorPlan
from nvrx_core.fault_tolerance.policy import KillRank, MonitorPolicy, QueryPeers, TerminateRank
from nvrx_core.fault_tolerance.states import RankMonitorStateMachine
from nvrx_core.fault_tolerance.watched import WatchedRank
from nvrx_core.fault_tolerance.wire import Connection, Listener, WireError, connect
from nvrx_core.flow import Flow
from nvrx_core.liveness.awake_clock import AwakeClock
from nvrx_core.process.lifeline import catches, send
from nvrx_core.process.log_lines import log_formatter
from nvrx_core.process.signalled_stacks import StackRequest
from nvrx_core.process.unblocked_log import UnblockedHandler
from nvrx_core.progress.limits import RankSample
from nvrx_core.progress.page import Page, ProgressField
from nvrx_core.progress.sampling import take_sample
from nvrx_core.progress.stage import Stage

__all__ = ["RankMonitor"]

log = logging.getLogger("nvrx_core.fault_tolerance.monitor")
MAX_CONNECTIONS: Final = 64
SLACK: Final = 0.25
"""Seconds by which it may wake late; what is more is a pause of the machine, which costs its rank no time."""
LONGEST_WAIT: Final = 3600.0
STDERR: Final = 2
STACK: Final = 1 << 14
"""Characters of the stacks that the launcher is told."""


class _Answers:
    """The answers of others: a turn that awaits them is suspended until the monitor resumes it with the outcome."""

    def __await__(self) -> Generator[None, bool, bool]:
        return (yield)


class _Judged:
    """A monitored rank, for a turn.

    Args:
        monitor: its monitor.
        rank: the rank.
    """

    def __init__(self, monitor: RankMonitor, rank: WatchedRank) -> None:
        self._monitor, self._rank = monitor, rank

    def sample(self) -> RankSample:
        """Return the present sample of the rank."""
        return take_sample(self._monitor.page, self._monitor.awake.at)

    async def is_excused(self, query: QueryPeers) -> bool:
        """Ask the other monitors and the rank; return whether their answers excuse it."""
        self._monitor.ask_others(query)
        return await _Answers()

    def terminate(self, action: TerminateRank) -> None:
        """Send the rank its termination signal."""
        self._monitor.terminate(self._rank, action.reason)

    def kill(self, action: KillRank) -> None:
        """Kill the rank."""
        self._monitor.kill(self._rank, action.reason)


class RankMonitor:
    """The main loop.

    Args:
        plan: the configuration.
        page: the page that the rank writes.
        listener: the socket that ranks and other monitors connect to.
    """

    def __init__(self, plan: RankMonitorPlan, page: Page, listener: Listener) -> None:
        self.plan, self.page, self.listener = plan, page, listener
        self.awake = AwakeClock(SLACK)
        self.states = RankMonitorStateMachine(log=plan.is_restarter_logger)
        self._rank: WatchedRank | None = None
        self._policy = MonitorPolicy(plan.interval, plan.grace)
        self._judgement: Flow[None] | None = None
        self._inquiry: Inquiry | None = None
        self._findings = Findings()
        self._clients = Clients(listener, self._answer, most=MAX_CONNECTIONS)

    def run(self, ready: Callable[[], None]) -> None:
        """Monitor ranks until the process is ended.

        Args:
            ready: called when ranks can connect.
        """
        _log_to_stderr(self.plan, self.page)
        self.page[ProgressField.RANK_MONITOR_PID] = os.getpid()
        ready()
        self.awake.woke(math.inf, now=time.monotonic())
        while True:
            due = self._turn()
            readable = self._wait(due)
            self._note_pause(due)
            for fd in readable:
                self._handle(fd)

    def _turn(self) -> float:
        """Judge the rank; return when the next turn is due, monotonic seconds.

        A wrapped call has a monitor process of its own, which judges the rank meanwhile.
        """
        self._follow_rank()
        if self._rank is None or self.page[ProgressField.STAGE] != Stage.OUTSIDE:
            self._forget()
            return time.monotonic() + self.plan.interval
        self._judge(self._rank)
        if self._inquiry is not None:
            return self._inquiry.deadline
        return self.awake.when(self._policy.deadline)

    def _follow_rank(self) -> None:
        """Monitor the process that the page names."""
        if self._rank is not None and not self._rank.is_on(self.page):
            self._rank.close()
            self._rank = None
            self._forget()
        if self._rank is None and (rank := WatchedRank.of_page(self.page)) is not None:
            self._rank = rank
            self.states.attached()

    def _forget(self) -> None:
        """Discard the state of the judgement."""
        self._policy, self._judgement = MonitorPolicy(self.plan.interval, self.plan.grace), None
        if self._inquiry is not None:
            self._inquiry.close()
            self._inquiry = None

    def _judge(self, rank: WatchedRank) -> None:
        """Execute a turn to its end, or until the answers of others are awaited."""
        excused: bool | None = None
        if self._inquiry is None or self._judgement is None:
            self._judgement = turn(self._policy, _Judged(self, rank), self._now)
        elif (excused := self._finish_inquiry(rank, self._inquiry)) is None:
            return
        with suppress(StopIteration):
            self._judgement.send(excused)

    def ask_others(self, query: QueryPeers) -> None:
        """Ask the other monitors about the rank; their answers resume the turn."""
        survey = Survey(self.listener.path, now=time.monotonic(), launcher=self.plan.launcher)
        self._inquiry = Inquiry(query.limit, Progress.of_page(self.page), survey)

    def terminate(self, rank: WatchedRank, reason: str) -> None:
        """Send the rank the termination signal, and notify the launcher."""
        number, signum, found = self.page[ProgressField.RANK], self.plan.termination_signal, self._findings
        where = f", at {in_one_line(found.stack)}" if found.stack else ""
        beside = "" if found.slowest is None else Progress.of_page(self.page).beside(found.slowest)
        why = f"{reason}{where}{beside and f', {beside}'}"
        self._tell_launcher(HangReport(number, rank.pid, why, found.text[:STACK]))
        log.error("rank %d (pid %d) is hung: %s; it is sent %s", number, rank.pid, why, signal.Signals(signum).name)
        send(rank.pidfd, [signum, signal.SIGCONT])

    def kill(self, rank: WatchedRank, reason: str) -> None:
        """Kill the rank."""
        log.error("kill rank %d (pid %d): %s", self.page[ProgressField.RANK], rank.pid, reason)
        send(rank.pidfd, [signal.SIGKILL])

    def _tell_launcher(self, report: HangReport) -> None:
        """Notify the launcher, if there is one, without waiting for an answer."""
        if self.plan.launcher:
            with suppress(OSError), connect(self.plan.launcher, within=0.0) as connection:
                connection.send(report.to_json())

    def _finish_inquiry(self, rank: WatchedRank, inquiry: Inquiry) -> bool | None:
        """Whether the answers of the other monitors and of the rank itself excuse it; None while they are awaited."""
        now = time.monotonic()
        if (others := inquiry.others(now=now)) is None:
            return None
        signum = self.page[ProgressField.STACK_SIGNAL]
        if not (others.behind or others.lost or inquiry.has_asked_rank) and self._answers(rank, signum):
            inquiry.ask_rank(StackRequest(self.plan.stacks[0], rank.pidfd, signum, now=now))
        if (findings := inquiry.findings(others, now=now)) is None:
            return None
        inquiry.close()
        self._inquiry, self._findings = None, findings
        excused = findings.excuses(inquiry.limit, now=self._now())
        if excused:
            self._log_excuse(inquiry.own.rank, findings)
        return excused

    @staticmethod
    def _answers(rank: WatchedRank, signum: int) -> bool:
        """Whether a rank has a handler for the signal that asks for its stacks: without one it would end the rank."""
        return signal.SIGRTMIN <= signum <= signal.SIGRTMAX and catches(rank.pid, signum)

    @staticmethod
    def _log_excuse(rank: int, findings: Findings) -> None:
        if findings.behind or findings.lost:
            behind = list(findings.behind)
            log.info("rank %d waits for ranks that are behind it (%s) or have died", rank, behind)
        else:
            log.info("rank %d waits in a collective: %s", rank, in_one_line(findings.stack))

    def _wait(self, due: float) -> list[int]:
        poll = select.poll()
        asked = () if self._inquiry is None else self._inquiry.fds()
        for fd in (self.listener.fileno(), *self._clients.fds(), *asked):
            poll.register(fd, select.POLLIN)
        if self._rank is not None:
            poll.register(self._rank.pidfd, select.POLLIN)
        return [fd for fd, _ in poll.poll(min(max(0.0, due - time.monotonic()), LONGEST_WAIT) * 1000 + 0.5)]

    def _handle(self, fd: int) -> None:
        if fd == self.listener.fileno():
            self._clients.accept()
        elif fd in self._clients:
            self._clients.serve(fd)
        elif self._inquiry is not None and fd in self._inquiry.fds():
            self._inquiry.receive(fd, now=time.monotonic())
        elif self._rank is not None and fd == self._rank.pidfd and self._rank.has_exited():
            self._rank_is_gone(self._rank)

    def _rank_is_gone(self, rank: WatchedRank) -> None:
        if rank.is_on(self.page):
            self.page[ProgressField.ATTACHED_AT] = 0
        self.states.connection_lost()

    def _answer(self, connection: Connection, message: dict[str, Any]) -> bool:
        """Answer a message; its connection stays open for the next one."""
        match message.get("type"):
            case "init":
                self._answer_init(connection)
            case "look":
                connection.send({"type": "ok"})
            case kind if kind == PROGRESS:
                connection.send(self._progress().to_json())
            case other:
                raise WireError(f"unknown type {other!r}")
        return False

    def _answer_init(self, connection: Connection) -> None:
        """Send the page to a rank, unless another process is monitored at the moment."""
        if (other := WatchedRank.of_page(self.page)) is not None:
            with closing(other):
                if other.pid != connection.peer().pid and not other.has_exited():
                    connection.send({"type": "error", "cause": f"pid {other.pid} is monitored already"})
                    return
        connection.send({"type": "ok", "config": self.plan.config}, [self.page.fileno(), self.plan.stacks[1]])

    def _progress(self) -> Progress:
        """The progress of the rank, even of one that has died: others may wait for it until the launcher ends them.

        A rank in a wrapped call blocks no other rank.
        """
        if self.page[ProgressField.STAGE] != Stage.OUTSIDE:
            return Progress(self.page[ProgressField.RANK], 0, 0)
        return Progress.of_page(self.page)

    def _now(self) -> float:
        """The awake time, in which silence is measured; the process may have been stopped since it last woke."""
        return self.awake.at(self._note_pause(-math.inf))

    def _note_pause(self, due: float) -> float:
        """Record a pause of this process: it is later than `due`, and than its last wake-up; return the time."""
        now = time.monotonic()
        if (pause := self.awake.woke(due, now=now)) > 0:
            log.warning("this process has paused for %.1f s, which no rank is blamed for", pause)
        return now


def _log_to_stderr(plan: RankMonitorPlan, page: Page) -> None:
    def position() -> dict[str, int]:
        return {"rank": page[ProgressField.RANK]} if page[ProgressField.ATTACHED_PID] else {}

    logger = logging.getLogger("nvrx_core")
    handler = UnblockedHandler(STDERR)
    formatter = log_formatter(
        plan.log_format, "rank monitor", plan.job, several_nodes=plan.several_nodes, position=position
    )
    handler.setFormatter(formatter)
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(plan.log_level)
