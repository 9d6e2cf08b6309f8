"""The evidence of a rank on a hang: asked for by its monitor, given by a thread of the rank.

A question is a packet on a pair of sockets that a launcher's monitor and its ranks share, and so is the answer. Where
no answer comes, as a call holds the GIL, the monitor takes the stacks by a signal; a stopped process is not asked.
"""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import socket
import threading
import time
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Final

from nvrx_core.collective import RENDEZVOUS, Collective
from nvrx_core.fault.hang_report import (
    EXITED,
    EXITING,
    MAX_CHILDREN,
    HangReport,
    RankCondition,
    Waiting,
)
from nvrx_core.fault_tolerance.peers import Progress
from nvrx_core.fault_tolerance.watched import WatchedRank, runs
from nvrx_core.hang_evidence import (
    ThreadObservation,
    observe_process,
    observe_thread,
    report_of,
    training_thread,
    with_page,
)
from nvrx_core.parsing import integer, parse_object, string
from nvrx_core.process import torch_calls
from nvrx_core.process.descriptors import identity
from nvrx_core.process.helper_thread import HelperThread, HelperThreadError
from nvrx_core.process.lifeline import catches
from nvrx_core.process.proc import read_stat
from nvrx_core.process.signalled_stacks import StackRequest
from nvrx_core.process.thread_wait import dead_children, wait_of
from nvrx_core.process.waiting import readable
from nvrx_core.progress.page import Page, ProgressField
from nvrx_core.progress.sampling import signs_of_life, take_sample
from nvrx_core.progress.stage import Stage
from nvrx_core.settings import environment

__all__ = ["EVIDENCE", "EvidenceRequest", "EvidenceThread", "absent_report", "evidence_sockets"]

log = logging.getLogger("nvrx_core.fault_tolerance")
EVIDENCE: Final = "evidence"
"""The type of a launcher's question to a monitor; `until` says when it waits no longer, monotonic seconds."""
ANSWER_TIMEOUT: Final = 0.2
"""Seconds for the answer of the rank's thread, after which a call is taken to hold the GIL."""
EXTRA_TIMEOUT: Final = 0.15
"""Seconds more for a thread that waits for a processor, not for the GIL."""
ANSWER_MARGIN: Final = 0.05
"""Seconds before the launcher waits no longer, at which a monitor answers with what it has."""
END_TIMEOUT: Final = 1.0
MAX_PACKET: Final = 1 << 14
_CREATIONS: Final = frozenset({
    "init_process_group", "new_group", "new_subgroups", "new_subgroups_by_enumeration", "split_group",
    "_new_group_with_tag",
})  # fmt: skip
"""Functions of torch in which ranks wait for others that have not begun them; no group counts them."""


def evidence_sockets() -> tuple[int, int]:
    """Return two connected sockets, the monitor's end and that of its ranks; neither blocks."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setblocking(False)
    monitor, rank = ends
    return monitor.detach(), rank.detach()


class EvidenceThread:
    """The thread of a rank that answers; it waits, and costs nothing, until there is a question.

    Args:
        questions: the rank's end of the sockets, which becomes the thread's own.
        page: the rank's page, on which it writes its own number.

    Raises:
        OSError: when there are no descriptors left; the socket stays the caller's.
    """

    def __init__(self, questions: int, page: Page) -> None:
        self._ending, self._end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)  # of an eventfd no inode tells whose it is
        self._socket, self._page = socket.socket(fileno=questions), page
        self._identities = {fd: identity(fd) for fd in (questions, self._ending, self._end)}
        self._main = threading.main_thread().ident or 0
        self._thread = HelperThread(self._serve, name="nvrx-evidence", failed=_fail)

    def start(self) -> None:
        """Start it.

        Raises:
            RuntimeError: when the process can start no more threads.
        """
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # inherited: others await signals
        try:
            self._thread.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def close(self) -> None:
        """End the thread, and close the socket; one that gets no turn within a second keeps both."""
        if self._is_ours(self._end):  # else the thread cannot be told
            with suppress(OSError):  # other code has closed the other end
                os.write(self._end, b"e")
        if self._thread.ident is not None:
            self._thread.join(END_TIMEOUT)
        if not self._thread.is_alive():
            self.disown()

    def disown(self) -> None:
        """Close the descriptors, in a child of `os.fork`, which has no such thread."""
        self._socket.detach()
        for fd in self._identities:
            if self._is_ours(fd):
                os.close(fd)
        self._identities = {}

    def _is_ours(self, fd: int) -> bool:
        """Whether a descriptor is still what it was: other code may have closed it, and use its number."""
        return fd in self._identities and identity(fd) == self._identities[fd] is not None

    def _serve(self) -> None:
        number = self._page[ProgressField.EVIDENCE_THREAD] = threading.get_native_id()
        try:
            self._answer(self._socket.fileno())
        finally:
            with suppress(ValueError):  # the page is closed
                if self._page[ProgressField.EVIDENCE_THREAD] == number:
                    self._page[ProgressField.EVIDENCE_THREAD] = 0

    def _answer(self, questions: int) -> None:
        """Answer questions until the thread is told to end, or other code has closed the socket."""
        while self._ending not in readable([questions, self._ending]):
            if not self._is_ours(questions):
                return
            try:
                packet = self._socket.recv(MAX_PACKET)
            except BlockingIOError:
                continue
            if not packet:
                return
            with suppress(ValueError, OSError):
                number = integer(parse_object(packet).get("number"), 0)
                self._socket.send(json.dumps({"number": number, "report": self._report()}).encode())

    def _report(self) -> str:
        """Return what this process knows; what the page has is added by the monitor."""
        try:
            status = torch_calls.flight_status()
            look = observe_thread(*training_thread(self._main), pending=any(status.values()) if status else None)
            begun, in_group = torch_calls.counts_of_groups(), torch_calls.rank_and_size()
            if look.collective is not None and look.collective.operation in _CREATIONS:
                look = replace(look, collective=Collective(RENDEZVOUS))
            rank = environment.rank_of_launcher(self._page[ProgressField.RANK])
            if in_group is not None and in_group[1] == environment.world_size_of_launcher(in_group[1]):
                rank = in_group[0]
            elif in_group is not None:  # one of several default groups of a job: its ranks and names are not the job's
                look, begun = replace(look, collective=None), {}
            return report_of(look, rank=rank, initial_rank=rank, pid=os.getpid(), begun=begun).encode()
        except Exception:  # boundary: objects of the user's are looked at
            log.warning("this rank does not report where it is", exc_info=True)
            return ""


def absent_report(page: Page, *, asked: bool = False) -> HangReport:
    """Return the report of a rank that cannot be asked, or has not answered: it has exited in order, or why not.

    Others may wait for one that has exited.

    Args:
        page: its page.
        asked: it was asked, and has not answered.
    """
    pid, condition = page[ProgressField.ATTACHED_PID], RankCondition.UNKNOWN
    if not pid:
        wait = "never monitored"
    elif not runs(pid, page[ProgressField.ATTACHED_START]):
        is_in_order = page[ProgressField.DETACHED_PID] == pid
        condition, wait = (RankCondition.COMPLETED, EXITED) if is_in_order else (condition, "dead")
    elif not page[ProgressField.ATTACHED_AT]:
        wait = "not monitored any more"
    elif page[ProgressField.STAGE] != Stage.OUTSIDE:
        wait = "in a wrapped call"
    else:
        wait = "asked, and late" if asked else "not asked"
    look = ThreadObservation(condition, Waiting.ELSEWHERE, wait=wait)
    rank = page[ProgressField.RANK]
    return replace(report_of(look, rank=rank, initial_rank=rank, pid=pid), stalled=False)


def _fail(error: HelperThreadError) -> None:
    log.warning("%s; in a hang, it is not known where this rank is", error)


class EvidenceRequest:
    """One question of a monitor about its rank, awaited together with its other events.

    Args:
        rank: the process.
        page: its page.
        channel: the monitor's end of the sockets.
        reader: where the stacks are read.
        number: tells the answer from that to another question.
        now: monotonic seconds.

    Attributes:
        until: when it ends with what there is, stacks or not, monotonic seconds.
        report: the report; None as long as there is none, or when there will be none.
        is_over: whether there is nothing more to wait for.
    """

    def __init__(
        self, rank: WatchedRank, page: Page, channel: socket.socket, *, reader: int, number: int, now: float,
        until: float = math.inf,
    ) -> None:  # fmt: skip
        self._rank, self._page, self._channel, self._reader, self._number = rank, page, channel, reader, number
        self._stacks: StackRequest | None = None
        self.report: HangReport | None = None
        self.is_over, self._is_late, self._step_ends, self.until = False, False, now + ANSWER_TIMEOUT, until
        wait = wait_of(rank.pid, rank.pid)
        if wait.stopped:
            self._end("")
            return
        if page[ProgressField.DETACHED_PID] == rank.pid:
            condition = RankCondition.RUNS if wait.runs else RankCondition.BLOCKED
            self._take(self._report_of(ThreadObservation(condition, Waiting.ELSEWHERE, wait=EXITING)))
            return
        with suppress(OSError):
            while self._channel.recv(MAX_PACKET):  # late answers to earlier questions
                pass
        with suppress(OSError):
            self._channel.send(json.dumps({"number": number}).encode())

    @property
    def deadline(self) -> float:
        """When to call `tick`, monotonic seconds."""
        return min(self._step_ends, self.until)

    @property
    def reads_stacks(self) -> bool:
        """Whether the rank is asked by the signal."""
        return self._stacks is not None and not self.is_over

    def fds(self) -> list[int]:
        """Return the descriptors to wait for."""
        return [self._channel.fileno(), *([self._reader] if self._stacks is not None else [])]

    def receive(self, fd: int, *, now: float) -> None:
        """Receive what has become readable."""
        if self._stacks is not None and fd == self._reader:
            self._stacks.receive(now=now)
            self._step_ends = self._stacks.deadline
            return
        with suppress(BlockingIOError):
            packet = self._channel.recv(MAX_PACKET)
            with suppress(ValueError):
                answer = parse_object(packet)
                if integer(answer.get("number"), 0) == self._number and not self.is_over:
                    text = string(answer.get("report"))
                    self._take(HangReport.decode(text) if text else None)

    def tick(self, *, now: float, may_read_stacks: bool) -> None:
        """Handle that time has passed.

        Args:
            now: monotonic seconds.
            may_read_stacks: nobody else reads them.
        """
        if self.is_over or now < self.deadline:
            return
        if self._stacks is not None:
            self._end(self._stacks.text)
        elif now >= self.until:
            self._take(None)
        elif not self._is_late and (self._thread_state() == "R" or not may_read_stacks):
            self._is_late, self._step_ends = True, now + EXTRA_TIMEOUT
        elif may_read_stacks and self._thread_state() != "R" and self._may_signal():
            signum = self._page[ProgressField.STACK_SIGNAL]
            self._stacks = StackRequest(self._reader, self._rank.pidfd, signum, now=now)
            self._step_ends = self._stacks.deadline
        else:
            self._take(None)

    def _thread_state(self) -> str:
        """Return the state of the thread that answers; R: it could run, as the machine is busy; "": there is none."""
        stat = read_stat(self._rank.pid, self._page[ProgressField.EVIDENCE_THREAD])
        return "" if stat is None else stat.state

    def _may_signal(self) -> bool:
        """Whether the rank has a handler, and is silent for so long that it is not merely busy."""
        limit = take_sample(self._page, _itself).limit
        if limit is None or time.monotonic() < limit.since + limit.timeout / 2:
            return False
        signum = self._page[ProgressField.STACK_SIGNAL]
        return signal.SIGRTMIN <= signum <= signal.SIGRTMAX and catches(self._rank.pid, signum)

    def _end(self, text: str) -> None:
        """Report what is seen from outside."""
        wait, has_thread = wait_of(self._rank.pid, self._rank.pid), self._thread_state() != ""
        self._take(self._report_of(observe_process(wait, text, holds_gil=has_thread)))

    def _report_of(self, look: ThreadObservation) -> HangReport:
        rank = self._page[ProgressField.RANK]
        return report_of(look, rank=rank, initial_rank=rank, pid=self._rank.pid)

    def _take(self, report: HangReport | None) -> None:
        self.is_over, self.report = True, report
        if report is None:
            return
        now, page = time.monotonic(), self._page
        limit = take_sample(page, _itself).limit
        self.report = with_page(
            replace(report, pid=self._rank.pid), page,
            alive_at=signs_of_life(page), stalled=limit is not None and now >= limit.deadline,
            step=Progress.of_page(page).steps - 1, now=now,
            children=islice(dead_children(self._rank.pid), MAX_CHILDREN),
        )  # fmt: skip


def _itself(seconds: float) -> float:
    return seconds
