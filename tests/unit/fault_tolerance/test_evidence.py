"""Where a rank is, as it tells its monitor, and as its monitor sees it when it does not."""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nvrx_core.fault.hang_report import HangReport, RankCondition, Waiting
from nvrx_core.fault_tolerance import evidence as module
from nvrx_core.fault_tolerance.evidence import EvidenceRequest, EvidenceThread, absent_report, evidence_sockets
from nvrx_core.fault_tolerance.watched import WatchedRank, start_time
from nvrx_core.process.signalled_stacks import answer_requests, answer_requests_no_more, stack_pipe
from nvrx_core.process.thread_wait import ThreadWait
from nvrx_core.process.waiting import readable
from nvrx_core.progress.page import Page, ProgressField, SectionField
from nvrx_core.progress.stage import Stage

SECOND = 10**9


class Monitored:
    """This process as a monitored rank, overdue since long, and its monitor's ends of what they share."""

    def __init__(self) -> None:
        ours, self.questions = evidence_sockets()
        self.channel = socket.socket(fileno=ours)
        self.reader, self.writer = stack_pipe()
        self.signum = answer_requests(self.writer)
        self.page, self.thread = Page(1), None
        self.page[ProgressField.ATTACHED_AT] = 1
        self.page[ProgressField.HEARTBEAT_AT] = max(1, time.monotonic_ns() - 60 * SECOND)
        self.page[ProgressField.HEARTBEAT_TIMEOUT], self.page[ProgressField.RANK] = SECOND // 1000, 7
        self.page[ProgressField.STACK_SIGNAL] = self.signum
        self.page.words[self.page.declare_section("step") + SectionField.COUNT] = 3
        self.rank = WatchedRank(os.getpid(), os.pidfd_open(os.getpid()), start_time(os.getpid()))

    def start(self) -> EvidenceThread:
        thread = EvidenceThread(os.dup(self.questions), self.page)
        thread.start()
        return thread

    def ask(self, number: int = 1, now: float = 0.0, until: float = math.inf) -> EvidenceRequest:
        return EvidenceRequest(
            self.rank, self.page, self.channel, reader=self.reader, number=number, now=now, until=until
        )

    def answered(self, request: EvidenceRequest) -> HangReport:
        while not request.is_over:
            (fd,) = readable(request.fds(), 10.0)
            request.receive(fd, now=0.0)
        assert request.report is not None
        return request.report

    def close(self) -> None:
        answer_requests_no_more(self.signum)
        for fd in (self.questions, self.reader, self.writer):
            os.close(fd)
        self.channel.close()
        self.page.close()
        self.rank.close()


@pytest.fixture
def monitored() -> Iterator[Monitored]:
    made = Monitored()
    yield made
    made.close()


def test_a_rank_tells_where_its_main_thread_is(monitored: Monitored) -> None:
    thread = monitored.start()
    report = monitored.answered(monitored.ask())
    assert report.place is not None
    assert report.place.file == __file__
    assert report.place.function in ("ask", "answered")
    assert report.waiting is Waiting.ELSEWHERE
    assert report.condition in (RankCondition.BLOCKED, RankCondition.RUNS)  # it waits for the answer, or has it
    assert report.stalled
    assert report.silent > 59.0
    assert (report.pid, report.step) == (os.getpid(), 2)
    assert monitored.page[ProgressField.EVIDENCE_THREAD] != 0
    thread.close()


def test_it_answers_again_and_an_answer_to_another_question_does_not_count(monitored: Monitored) -> None:
    thread = monitored.start()
    first = monitored.ask(1)
    second = monitored.ask(2)
    assert monitored.answered(second).place is not None
    assert first.report is None
    thread.close()


def test_a_malformed_question_or_answer_is_ignored(monitored: Monitored, monkeypatch: pytest.MonkeyPatch) -> None:
    thread = monitored.start()
    monitored.channel.send(b"no JSON")
    assert monitored.answered(monitored.ask()).place is not None
    thread.close()
    request = monitored.ask(3)
    rank = socket.socket(fileno=os.dup(monitored.questions))
    for answer in (b"no JSON", b'{"number": 3}', b'{"number": 3, "report": "{}"}'):
        rank.send(answer)
        request.receive(monitored.channel.fileno(), now=0.0)
    request.receive(monitored.channel.fileno(), now=0.0)
    assert not request.is_over
    rank.send(b'{"number": 3, "report": ""}')
    request.receive(monitored.channel.fileno(), now=0.0)
    assert (request.is_over, request.report) == (True, None)
    rank.close()


def test_what_fails_in_a_look_at_the_user_s_objects_costs_the_report_alone(
    monitored: Monitored, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("from __bool__ of a group")

    monkeypatch.setattr(module, "observe_thread", fail)
    thread = monitored.start()
    request = monitored.ask()
    readable(request.fds(), 10.0)
    request.receive(monitored.channel.fileno(), now=0.0)
    assert (request.is_over, request.report) == (True, None)
    assert "this rank does not report where it is" in caplog.messages
    thread.close()


@pytest.mark.parametrize("operation", ["new_group", "all_reduce"])
def test_a_rank_that_creates_a_group_waits_in_a_rendezvous(
    monitored: Monitored, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    monkeypatch.setattr(module.torch_calls, "call_of", lambda _: module.Collective(operation, "0", "", 3))
    thread = monitored.start()
    report = monitored.answered(monitored.ask())
    assert report.waiting is Waiting.WAITS
    assert report.collective is not None
    assert (report.collective.operation, report.collective.number) == (
        ("rendezvous", 0) if operation == "new_group" else ("all_reduce", 3)
    )
    thread.close()


def test_the_stacks_of_a_rank_whose_threads_do_not_run_are_taken_by_the_signal(monitored: Monitored) -> None:
    thread = monitored.start()
    thread.close()
    assert monitored.page[ProgressField.EVIDENCE_THREAD] == 0
    monitored.page[ProgressField.EVIDENCE_THREAD] = os.getpid()
    request = monitored.ask(now=0.0)
    request.tick(now=request.deadline - 0.01, may_read_stacks=True)
    assert not request.reads_stacks
    _look_blocked(request)
    request.tick(now=request.deadline, may_read_stacks=True)
    assert request.reads_stacks
    while monitored.reader not in readable(request.fds(), 10.0):
        pass
    request.receive(monitored.reader, now=1.0)
    request.tick(now=request.deadline, may_read_stacks=True)
    assert request.report is not None
    assert request.report.condition is RankCondition.HOLDS_GIL
    assert request.report.place is not None
    assert request.report.rank == 7


def _look_blocked(request: Any) -> None:
    """Let the thread of the rank be one that waits for the GIL."""
    request._thread_state = lambda: "S"


def test_when_the_launcher_waits_no_longer_there_is_a_report_without_the_stacks(
    monitored: Monitored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "StackRequest", Unanswered)
    monitored.page[ProgressField.EVIDENCE_THREAD] = os.getpid()
    request = monitored.ask(now=0.0, until=0.35)
    _look_blocked(request)
    request.tick(now=0.2, may_read_stacks=True)
    assert (request.reads_stacks, request.deadline) == (True, 0.35)
    request.receive(monitored.reader, now=0.33)
    assert request.deadline == 0.35
    request.tick(now=0.35, may_read_stacks=True)
    assert request.report is not None
    assert (request.report.condition, request.report.place, request.report.stalled) == (
        RankCondition.HOLDS_GIL, None, True,
    )  # fmt: skip


class Unanswered:
    """A request for stacks of which nothing has come yet."""

    text, deadline = "", 0.5

    def __init__(self, *_: object, now: float) -> None:
        pass

    def receive(self, *, now: float) -> None:
        self.deadline = now + 0.05


def test_a_thread_that_is_late_is_not_awaited_for_longer_than_the_launcher_waits(monitored: Monitored) -> None:
    request: Any = monitored.ask(now=0.0, until=0.3)
    request._thread_state = lambda: "R"
    request.tick(now=0.2, may_read_stacks=True)
    assert (request.is_over, request.deadline) == (False, 0.3)
    request.tick(now=0.3, may_read_stacks=True)
    assert (request.is_over, request.report) == (True, None)


@pytest.mark.parametrize("signum", [0, 9])
def test_without_an_answer_and_a_signal_there_is_no_report(monitored: Monitored, signum: int) -> None:
    monitored.page[ProgressField.STACK_SIGNAL] = signum
    request = monitored.ask()
    _look_blocked(request)
    request.tick(now=request.deadline, may_read_stacks=True)
    assert (request.is_over, request.report) == (True, None)


@pytest.mark.parametrize("may_read_stacks", [True, False])
def test_a_thread_that_waits_for_a_processor_or_for_another_reader_gets_more_time(
    monitored: Monitored, may_read_stacks: bool
) -> None:
    """No call is said to hold the GIL because the machine is busy."""
    request: Any = monitored.ask()
    request._thread_state = lambda: "R" if may_read_stacks else "S"
    request.tick(now=request.deadline, may_read_stacks=may_read_stacks)
    assert not request.is_over
    request.tick(now=request.deadline, may_read_stacks=may_read_stacks)
    assert (request.is_over, request.report) == (True, None)
    request.tick(now=request.deadline, may_read_stacks=True)
    request.receive(monitored.channel.fileno(), now=0.0)


def test_whether_a_thread_waits_for_a_processor_is_what_the_kernel_says(monitored: Monitored) -> None:
    request = monitored.ask()
    monitored.page[ProgressField.EVIDENCE_THREAD] = os.getpid()  # the thread that asks, which runs
    assert request._thread_state() == "R"
    for number in (0, 1 << 30):
        monitored.page[ProgressField.EVIDENCE_THREAD] = number
        assert request._thread_state() == ""


def test_a_stopped_rank_is_not_asked(monitored: Monitored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "wait_of", lambda *_: ThreadWait(False, True, "SIGCONT"))
    request = monitored.ask()
    assert request.is_over
    assert request.report is not None
    assert request.report.condition is RankCondition.STOPPED
    assert not readable([monitored.questions], 0.0)


def test_a_thread_that_cannot_be_told_to_end_is_left(monitored: Monitored, caplog: pytest.LogCaptureFixture) -> None:
    thread = EvidenceThread(os.dup(monitored.questions), monitored.page)
    thread.close()  # it was not started
    module._fail(SimpleNamespace(__str__=str))  # type: ignore[arg-type]
    assert "it is not known where this rank is" in caplog.text


def test_a_descriptor_that_other_code_has_closed_and_uses_is_left_alone(monitored: Monitored) -> None:
    ours, theirs = socket.socketpair()
    number = os.dup(monitored.questions)
    thread = EvidenceThread(number, monitored.page)
    os.dup2(ours.fileno(), number)
    theirs.send(b"theirs")
    thread.start()
    thread._thread.join(10.0)
    thread.close()
    assert monitored.page[ProgressField.EVIDENCE_THREAD] == 0
    assert os.read(number, 10) == b"theirs"
    for each in (ours, theirs):
        each.close()
    os.close(number)


def test_a_rank_that_has_exited_in_order_has_a_report_as_others_may_wait_for_it(monitored: Monitored) -> None:
    page = monitored.page
    page[ProgressField.ATTACHED_PID], page[ProgressField.ATTACHED_START] = os.getpid(), 1
    page[ProgressField.DETACHED_PID] = os.getpid()
    report = absent_report(page)
    assert (report.rank, report.condition, report.wait) == (7, RankCondition.COMPLETED, "exited")


def test_it_is_said_why_a_rank_has_no_report(monitored: Monitored) -> None:
    page = monitored.page

    def why(**more: bool) -> str:
        report = absent_report(page, **more)
        assert (report.condition, report.stalled, report.rank) == (RankCondition.UNKNOWN, False, 7)
        return report.wait

    assert why() == "never monitored"
    page[ProgressField.ATTACHED_PID], page[ProgressField.ATTACHED_START] = os.getpid(), 1
    assert why() == "dead"
    page[ProgressField.ATTACHED_START] = start_time(os.getpid())
    assert (why(), why(asked=True)) == ("not asked", "asked, and late")
    page[ProgressField.STAGE] = Stage.RUNNING
    assert why() == "in a wrapped call"
    page[ProgressField.ATTACHED_AT] = 0
    assert why() == "not monitored any more"
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # as one that its parent has not reaped
    page[ProgressField.ATTACHED_PID], page[ProgressField.ATTACHED_START] = child.pid, start_time(child.pid)
    assert why() == "dead"
    child.wait()


def test_a_rank_whose_interpreter_ends_is_not_asked(monitored: Monitored) -> None:
    monitored.page[ProgressField.DETACHED_PID] = os.getpid()
    request = monitored.ask()
    assert request.is_over
    assert request.report is not None
    assert (request.report.wait, request.report.waiting) == ("the end of its interpreter", Waiting.ELSEWHERE)
    assert request.report.stalled
    assert not readable([monitored.questions], 0.0)


def test_no_signal_is_delivered_to_the_thread(monitored: Monitored) -> None:
    """A script may block a signal and await it: it would end the process if any thread did not block it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    thread = monitored.start()
    monitored.answered(monitored.ask())
    status = Path(f"/proc/self/task/{monitored.page[ProgressField.EVIDENCE_THREAD]}/status").read_text()
    blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
    assert all(blocked >> (signum - 1) & 1 for signum in (signal.SIGUSR1, signal.SIGTERM, signal.SIGRTMAX))
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
    thread.close()


def test_a_rank_that_is_not_silent_for_long_is_sent_no_signal(monitored: Monitored) -> None:
    monitored.page[ProgressField.HEARTBEAT_TIMEOUT] = 1000 * SECOND
    request = monitored.ask()
    _look_blocked(request)
    request.tick(now=request.deadline, may_read_stacks=True)
    assert (request.is_over, request.report) == (True, None)


@pytest.mark.parametrize("which", ["_ending", "_end"])
def test_no_end_of_its_pipe_that_other_code_uses_is_written_to_or_closed(monitored: Monitored, which: str) -> None:
    thread = EvidenceThread(os.dup(monitored.questions), monitored.page)
    reader, writer = os.pipe2(os.O_NONBLOCK)
    number: int = getattr(thread, which)
    os.dup2(writer, number)
    thread.close()
    assert not readable([reader], 0.0)
    os.write(number, b"theirs")
    assert os.read(reader, 10) == b"theirs"
    for each in (reader, writer, number):
        os.close(each)


def test_without_a_thread_the_stacks_are_asked_for_and_no_call_is_said_to_hold_the_gil(monitored: Monitored) -> None:
    request = monitored.ask()
    request.tick(now=request.deadline, may_read_stacks=True)
    assert request.reads_stacks
    while monitored.reader not in readable([monitored.reader], 10.0):
        pass
    request.receive(monitored.reader, now=1.0)
    request.tick(now=request.deadline, may_read_stacks=True)
    assert request.report is not None
    assert request.report.condition in (RankCondition.BLOCKED, RankCondition.RUNS)
    assert request.report.place is not None


def test_a_child_of_fork_keeps_no_descriptor_of_the_thread(monitored: Monitored) -> None:
    thread = monitored.start()
    fds = list(thread._identities)
    thread.disown()  # as in a child, which closes its copies
    assert [fd for fd in fds if Path(f"/proc/self/fd/{fd}").exists()] == []
    thread._thread.join(10.0)
    assert not thread._thread.is_alive()
