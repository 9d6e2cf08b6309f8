"""The rank monitor: a process that monitors one rank after another, and ends a hung one.

One loop, which waits for the rank's pidfd, the listening socket, the connections and the deadline of the hang detector.
All state that must survive the monitor is on the page, so that a replacement continues where its predecessor stopped.
"""

from __future__ import annotations

import logging
import math
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Protocol

from nvrx_core.fault.stack_text import in_one_line
from nvrx_core.fault_tolerance.evidence import ANSWER_MARGIN, EVIDENCE, EvidenceRequest, absent_report
from nvrx_core.fault_tolerance.inquiry import Findings, Inquiry
from nvrx_core.fault_tolerance.peers import PROGRESS, RECOVERED, HungRank, Progress, Survey
from nvrx_core.fault_tolerance.plan import RankMonitorPlan
from nvrx_core.fault_tolerance.states import RankMonitorStateMachine
from nvrx_core.fault_tolerance.watched import WatchedRank
from nvrx_core.fault_tolerance.wire import Clients, Connection, Listener, WireError, connect
from nvrx_core.liveness.awake_clock import AwakeClock
from nvrx_core.liveness.hang_detector import (
    Excuse,
    HangDetector,
    KillRank,
    QueryPeers,
    RankMonitorRules,
    SendSignal,
    SoftTimeout,
    TerminateRank,
)
from nvrx_core.parsing import number
from nvrx_core.process.lifeline import send
from nvrx_core.process.log_lines import log_formatter
from nvrx_core.process.thread_wait import dead_children, wait_of
from nvrx_core.process.unblocked_log import UnblockedHandler
from nvrx_core.progress.page import Page, ProgressField
from nvrx_core.progress.sampling import take_sample
from nvrx_core.progress.stage import Stage

__all__ = ["RankMonitor"]

log = logging.getLogger("nvrx_core.fault_tolerance.monitor")
MAX_CONNECTIONS: Final = 64
SLACK: Final = 0.25
"""Seconds by which it may wake late; what is more is a pause of the machine, which costs its rank no time."""
GRACE: Final = 15.0
"""Seconds from the termination signal until the rank's process is killed."""
LONGEST_WAIT: Final = 3600.0
MAX_CHILDREN: Final = 4
STDERR: Final = 2
VERDICT_TIMEOUT: Final = 1.0
"""Seconds for which the end of a rank waits until the launchers have said who is to blame for the hang."""
REQUESTS: Final = ("init", EVIDENCE, "look", PROGRESS)
STACK: Final = 1 << 14
"""Characters of the stacks that the launcher is told."""


class Awaited(Protocol):
    """An answer for which the loop waits together with all other events."""

    def fds(self) -> list[int]:
        """Return the descriptors to wait for."""

    def receive(self, fd: int, *, now: float) -> None:
        """Receive what has become readable."""


@dataclass(frozen=True)
class _Request:
    """A message of a rank, a launcher or another monitor.

    Attributes:
        kind: its type, one of `REQUESTS`.
        until: of a question for evidence: when its answer is due, monotonic seconds; 0.0 of all others.
    """

    kind: str
    until: float = 0.0


def _read(message: dict[str, Any]) -> _Request:
    """Return the request of a message.

    Raises:
        WireError, ValueError: when it is malformed.
    """
    kind = message.get("type")
    if kind not in REQUESTS:
        raise WireError(f"unknown type {kind!r}")
    return _Request(kind, number(message.get("until")) if kind == EVIDENCE else 0.0)


class RankMonitor:
    """The main loop.

    Each turn goes on where the last one has stopped, as far as the answers have come: an overdue rank has its peers
    asked (`QueryPeers`, `Inquiry`), then writes its stacks; what they say is judged (`_pass_on`), and the rank excused,
    or ended (`TerminateRank`, `Termination`) when the launcher has said who is to blame.

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
        self._rules = RankMonitorRules(plan.interval, GRACE)
        self.detector = HangDetector(self._rules)
        self._inquiry: Inquiry | None = None
        self._findings = Findings()
        self._termination: Termination | None = None
        self._questions = socket.socket(fileno=os.dup(plan.questions[0])) if plan.questions else None
        self._evidence: EvidenceRequest | None = None
        self._asking, self._asked, self._answers_at = list[Connection](), 0, math.inf
        self._clients = Clients(listener, _read, self._answer, most=MAX_CONNECTIONS)

    def run(self, ready: Callable[[], None]) -> None:
        """Monitor ranks until the process is ended.

        Args:
            ready: called when ranks can connect.
        """
        _log_to_stderr(self.plan, self.page)
        self.page[ProgressField.RANK_MONITOR_PID] = os.getpid()
        ready()
        due = math.inf
        while True:
            due = self.turn(due)
            for fd in self._wait(due):
                self._handle(fd)

    def turn(self, due: float) -> float:
        """Judge the rank; return when the next turn is due, monotonic seconds.

        A wrapped call has a monitor process of its own, which judges the rank meanwhile.

        Args:
            due: when this turn was due; what is later than that is a pause of this process.
        """
        self._note_pause(due)
        self._follow_rank()
        return min(self._judge_rank(), self._give_evidence(), self._end_when_judged())

    def _judge_rank(self) -> float:
        """Judge the rank; return when that is due again."""
        if self._rank is None or self.page[ProgressField.STAGE] != Stage.OUTSIDE:
            self._forget()
            return time.monotonic() + self.plan.interval
        if self._evidence is not None and self._evidence.reads_stacks:
            return self._evidence.deadline  # one reader at a time
        if self._inquiry is None or self._pass_on(self._inquiry):
            self._judge(self._rank)
        return self.awake.when(self.detector.deadline) if self._inquiry is None else self._inquiry.deadline

    def _follow_rank(self) -> None:
        """Monitor the process that the page names."""
        if self._rank is not None and not self._rank.is_on(self.page):
            self._forget()
            self._rank.close()
            self._rank = self._evidence = None
        if self._rank is None and (rank := WatchedRank.of_page(self.page)) is not None:
            self._rank = rank
            self.states.attached()

    def _forget(self) -> None:
        """Discard the state of the judgement; a rank that was about to be ended is not."""
        self.detector = HangDetector(self._rules)
        if self._termination is not None:
            self._termination.take_back()
            self._termination = None
        if self._inquiry is not None:
            self._inquiry.close()
            self._inquiry = None

    def _judge(self, rank: WatchedRank) -> None:
        """Evaluate a sample of the rank's page, and carry out what is due."""
        now = self._now()
        for action in self.detector.evaluate(take_sample(self.page, self.awake.at), now=now):
            match action:
                case QueryPeers():
                    survey = Survey(self.listener.path, now=time.monotonic(), launcher=self.plan.launcher)
                    own, signum = Progress.of_page(self.page), self.page[ProgressField.STACK_SIGNAL]
                    self._inquiry = Inquiry(own, survey, rank, signum, reader=self.plan.stacks[0])
                case TerminateRank(reason):
                    self._terminate(rank, reason)
                case KillRank() if self._termination is not None:
                    pass  # the grace period is shorter than the wait for the verdict
                case KillRank(reason):
                    log.error("kill rank %d (pid %d): %s", self.page[ProgressField.RANK], rank.pid, reason)
                    send(rank.pidfd, [signal.SIGKILL])
                case SoftTimeout() | SendSignal():
                    raise AssertionError(f"an action of a wrapped call: {action}")

    def _pass_on(self, inquiry: Inquiry) -> bool:
        """Pass the answers of others on to the detector; return whether they are complete."""
        found = inquiry.findings(now=time.monotonic())
        if found is None:
            return False
        inquiry.close()
        self._inquiry, self._findings = None, found
        if self.detector.answered(found.excuse, now=self._now()):
            rank = inquiry.own.rank
            if found.excuse is Excuse.PEER_BEHIND:
                log.info("rank %d waits for ranks that are behind it (%s) or have died", rank, list(found.behind))
            else:
                log.info("rank %d waits in a collective: %s", rank, in_one_line(found.stack))
        return True

    def _terminate(self, rank: WatchedRank, reason: str) -> None:
        """Begin to end the rank, with what is known of it."""
        number, found = self.page[ProgressField.RANK], self._findings
        where = (f", at {in_one_line(found.stack)}" if found.stack else "") + _state_of(rank.pid)
        beside = "" if found.slowest is None else Progress.of_page(self.page).beside(found.slowest)
        why = f"{reason}{where}{beside and f', {beside}'}"
        report = HungRank(number, rank.pid, why, found.text[:STACK])
        self._termination = Termination(rank, report, self.plan.launcher)

    def _end_when_judged(self) -> float:
        """End the rank, once it is said who is to blame, or that takes too long; return when that is due.

        It may have gone on meanwhile, or begun a wrapped call.
        """
        termination = self._termination
        if termination is None:
            return math.inf
        if time.monotonic() < termination.deadline:
            return termination.deadline
        limit = take_sample(self.page, self.awake.at).limit
        if self.page[ProgressField.STAGE] != Stage.OUTSIDE or limit is None or self._now() < limit.deadline:
            self._forget()
            return time.monotonic()
        self._termination = None
        termination.carry_out(self.plan.termination_signal)
        return math.inf

    def _give_evidence(self) -> float:
        """Answer the launcher that has asked where the rank is, once that is known; return when that is due."""
        if not self._asking:
            return math.inf
        now, rank = time.monotonic(), self._rank
        is_outside = self.page[ProgressField.STAGE] == Stage.OUTSIDE
        if self._evidence is None and rank is not None and self._questions is not None and is_outside:
            self._asked = time.monotonic_ns()  # another one than of a monitor before this one
            self._evidence = EvidenceRequest(
                rank, self.page, self._questions, reader=self.plan.stacks[0], number=self._asked, now=now
            )
        evidence = self._evidence
        if evidence is not None:
            evidence.until = self._answers_at
            evidence.tick(now=now, may_read_stacks=self._inquiry is None or not self._inquiry.reads_stacks)
            if not evidence.is_over:
                return evidence.deadline
        report = None if evidence is None else evidence.report
        text = (report or absent_report(self.page, asked=evidence is not None)).encode()
        self._evidence, asking, self._asking = None, self._asking, []
        for connection in asking:
            if self._clients.has(connection):
                with suppress(WireError):
                    connection.send({"type": "ok", "report": text})
        return math.inf

    def _wait(self, due: float) -> list[int]:
        poll = select.poll()
        answers = [fd for each in self._awaited() for fd in each.fds()]
        for fd in (self.listener.fileno(), *self._clients.fds(), *answers):
            poll.register(fd, select.POLLIN)
        if self._rank is not None:
            poll.register(self._rank.pidfd, select.POLLIN)
        return [fd for fd, _ in poll.poll(min(max(0.0, due - time.monotonic()), LONGEST_WAIT) * 1000 + 0.5)]

    def _awaited(self) -> list[Awaited]:
        """Return what was asked, and has not been answered."""
        return [each for each in (self._inquiry, self._evidence, self._termination) if each is not None]

    def _handle(self, fd: int) -> None:
        if fd == self.listener.fileno():
            self._clients.accept()
        elif fd in self._clients:
            self._clients.serve(fd)
        elif (asked := next((each for each in self._awaited() if fd in each.fds()), None)) is not None:
            asked.receive(fd, now=time.monotonic())
        elif self._rank is not None and fd == self._rank.pidfd and self._rank.has_exited():
            if self._rank.is_on(self.page):
                self.page[ProgressField.ATTACHED_AT] = 0
            self.states.connection_lost()

    def _answer(self, connection: Connection, request: _Request) -> bool:
        """Answer a request; its connection stays open for the next one."""
        match request.kind:
            case "init":
                self._answer_init(connection)
            case kind if kind == EVIDENCE:  # one question at a time: the launcher does not wait for an earlier one
                self._answers_at = request.until - ANSWER_MARGIN
                self._asking.append(connection)
            case kind if kind == PROGRESS:
                connection.send(self._progress().to_json())
            case _:
                connection.send({"type": "ok"})
        return False

    def _answer_init(self, connection: Connection) -> None:
        """Send the page to a rank, unless another process is monitored at the moment."""
        if (other := WatchedRank.of_page(self.page)) is not None:
            with closing(other):
                if other.pid != connection.peer().pid and not other.has_exited():
                    connection.send({"type": "error", "cause": f"pid {other.pid} is monitored already"})
                    return
        descriptors = [self.page.fileno(), self.plan.stacks[1], *self.plan.questions[1:]]
        connection.send({"type": "ok", "config": self.plan.config}, descriptors)

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
            log.warning("this process has paused for %.1f s, excluded from timeouts", pause)
        return now


class Termination:
    """The end of a hung rank: the launcher is told, and has a second to say who is to blame; then the signal is sent.

    Args:
        rank: the process.
        report: why it is ended.
        launcher: the socket of the launcher; "": there is none, and nothing is waited for.

    Attributes:
        deadline: when the rank is ended, monotonic seconds.
    """

    def __init__(self, rank: WatchedRank, report: HungRank, launcher: str) -> None:
        self._rank, self._report, self._launcher = rank, report, launcher
        self._asked = self._tell(report.to_json())
        self.deadline = -math.inf if self._asked is None else time.monotonic() + VERDICT_TIMEOUT

    def fds(self) -> list[int]:
        """Return the descriptor on which the launcher answers."""
        return [] if self._asked is None else [self._asked.fileno()]

    def receive(self, fd: int, *, now: float) -> None:
        """Handle that the launcher has answered, or is gone: nothing more is waited for."""
        self.deadline = -math.inf

    def carry_out(self, signum: int) -> None:
        """Send the rank its signal."""
        self._close()
        # the launcher tells of the end of a rank whose hang it knows, once, as an error
        level, name = logging.ERROR if self._asked is None else logging.WARNING, signal.Signals(signum).name
        report = self._report
        log.log(level, "rank %d (pid %d) is hung: %s; it is sent %s", report.rank, report.pid, report.reason, name)
        send(self._rank.pidfd, [signum, signal.SIGCONT])

    def take_back(self) -> None:
        """Do not end the rank; tell the launcher, unless the rank has exited, for which it may have been the reason."""
        self._close()
        if self._rank.has_exited():
            return
        report = self._report
        log.warning("rank %d (pid %d) has gone on, and is not ended: %s", report.rank, report.pid, report.reason)
        if (told := self._tell({"type": RECOVERED, "rank": report.rank})) is not None:
            told.close()

    def _close(self) -> None:
        if self._asked is not None:
            self._asked.close()

    def _tell(self, message: Mapping[str, Any]) -> Connection | None:
        """Send the launcher a message; return the connection on which it may answer, None if there is no launcher."""
        if not self._launcher:
            return None
        with ExitStack() as failing, suppress(OSError):
            connection = failing.enter_context(connect(self._launcher, within=0.0))
            connection.send(message)
            failing.pop_all()
            return connection
        return None


def _state_of(pid: int) -> str:
    """Return what the main thread of a rank waits for, and which of its children are dead."""
    try:
        wait = wait_of(pid, pid)
        dead = [f"{name} pid {child}" for child, name in islice(dead_children(pid), MAX_CHILDREN)]
    except (OSError, ValueError):  # of an odd /proc: the rank is ended all the same
        return ""
    state = "its process is stopped" if wait.stopped else wait.text and f"waiting for {wait.text}"
    children = f"with dead child processes: {', '.join(dead)}" if dead else ""
    return "".join(f", {each}" for each in (state, children) if each)


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
