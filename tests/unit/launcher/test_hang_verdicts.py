"""Who is to blame for a hang under rank monitors: one line on each node, in time; no monitor waits for longer."""

from __future__ import annotations

import logging
import math
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from nvrx_launcher import hang_policy
from nvrx_launcher.hang_policy import COLLECT_TIMEOUT, JUDGE_TIMEOUT, OWN_VERDICT_TIMEOUT, RANKS_TIMEOUT
from nvrx_launcher.hang_verdicts import HangVerdicts
from nvrx_launcher.rendezvous.hang_relay import ONE_HANG, HangRelay
from nvrx_launcher.rendezvous.messages import Decision, DecisionKind, Member, Message, MessageKind

from nvrx_core.collective import Collective
from nvrx_core.fault.hang_report import HangReport, Waiting
from nvrx_core.fault.hang_verdict import HangOutcome, HangVerdict
from nvrx_core.fault.stack_text import Frame
from nvrx_core.fault_tolerance.evidence import ANSWER_MARGIN, ANSWER_TIMEOUT, EXTRA_TIMEOUT
from nvrx_core.fault_tolerance.process import VERDICT_TIMEOUT

WAITS = HangReport(
    rank=0, initial_rank=0, waiting=Waiting.WAITS, collective=Collective("all_reduce", "0", "", 5), begun={"0": 5},
    place=Frame("train.py", 9, "step"), silent=12.0,
)  # fmt: skip
STANDS = replace(WAITS, waiting=Waiting.ELSEWHERE, collective=None, begun={"0": 4}, wait="a lock", stalled=False)
NO_CYCLE = Decision(DecisionKind.NOTE, 0, "a line")


class Node:
    """A launcher with two ranks, of which the first has the number `2 * node`."""

    def __init__(self, job: Job, number: int) -> None:
        self.job, self.number = job, number
        self.reports = {local: replace(WAITS, rank=2 * number + local) for local in range(2)}
        self.answers, self.is_mute, self.asked = True, False, 0
        self.pending = list[Callable[[Mapping[int, HangReport]], object]]()
        self.events, self.verdicts_of_cycle = list[tuple[int, HangVerdict]](), list[tuple[int, HangVerdict]]()
        events: Any = SimpleNamespace(hang_judged=lambda *each: self.events.append(each))
        cycles: Any = SimpleNamespace(hang_judged=lambda *each: self.verdicts_of_cycle.append(each))
        self.verdicts = HangVerdicts(self, self, events, cycles)
        self.runs_coordinator = not number
        self.verdicts.joined(number)

    # The ranks of this node

    def ask(self, answer: Callable[[Mapping[int, HangReport]], object], *, until: float) -> None:
        self.asked_until = until
        self.asked += 1
        if self.answers:
            answer(self.reports)
        else:
            self.pending.append(answer)

    # The connection to the coordinator, which is beside node 0

    def tell(self, kind: MessageKind, cycle: int, reason: str) -> None:
        if not self.is_mute:
            self.job.messages.append(Message(self.number, kind, cycle, reason))

    def share_evidence(self, cycle: int, hang: str, text: str, nodes: int) -> None:
        self.job.evidence[self.number] = text.encode()
        self.job.written[hang] = self.job.written.get(hang, 0) + 1
        if self.job.written[hang] == nodes:
            self.tell(MessageKind.HANG_EVIDENCE, cycle, hang)

    def gather_evidence(
        self, nodes: Sequence[int], judged: Callable[[Sequence[bytes]], Any], answer: Callable[[Any], object]
    ) -> None:
        if self.job.store_answers:
            answer(judged([self.job.evidence.get(node, b"-") for node in nodes]))


class Job:
    """The nodes of a job."""

    def __init__(self, nodes: int) -> None:
        self.messages, self.relay = list[Message](), HangRelay()
        self.evidence, self.written, self.store_answers = dict[int, bytes](), dict[str, int](), True
        self.nodes = [Node(self, number) for number in range(nodes)]
        self.run(0)

    def run(self, cycle: int) -> None:
        self.cycle = cycle
        members = tuple(Member(number, 2 * number, 2) for number in range(len(self.nodes)))
        self.decide(Decision(DecisionKind.RUN, cycle, "", members=members), 0.0)

    def decide(self, decision: Decision, now: float) -> None:
        for node in self.nodes:
            if not node.is_mute:
                node.verdicts.decided(decision, now=now)

    def deliver(self, now: float) -> None:
        """Deliver the messages, and what follows from them."""
        while self.messages:
            message = self.messages.pop(0)
            if message.kind is MessageKind.HANG_EVIDENCE:
                self.nodes[0].verdicts.evidence_received(message.cycle, message.reason, now=now)
            for decision in self.relay.received(message, cycle=self.cycle, judge=0, now=now):
                self.decide(decision, now)

    def suspect(self, node: int, now: float) -> list[float]:
        """A monitor of a node is about to end its rank; return when it may, as soon as that is known."""
        answered = list[float]()
        self.nodes[node].verdicts.suspected(lambda: answered.append(now), now=now)
        self.deliver(now)
        return answered

    def tick(self, now: float) -> None:
        for node in self.nodes:
            if now >= node.verdicts.deadline:
                node.verdicts.tick(now=now)
        self.deliver(now)

    def verdict(self) -> HangVerdict:
        """Return the verdict, which is the only one, and the same on all nodes."""
        told = [each for node in self.nodes if not node.is_mute for each in node.verdicts_of_cycle]
        ((_, found),) = set(told)
        assert set(told) == {each for node in self.nodes for each in node.events}
        return found


@pytest.mark.parametrize("asking", [0, 1])
def test_all_nodes_write_one_line_that_names_the_rank_the_place_and_what_the_others_wait_for(
    asking: int, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(2)
    job.nodes[1].reports[1] = replace(STANDS, rank=3)
    assert job.suspect(asking, 1.0) == [1.0]
    host = socket.gethostname()
    sentence = (
        f"rank 3 ({host}) stands at train.py:9 in step for 12 s, waiting for a lock; "
        "ranks 0-2 wait for it in all_reduce #5 of the default group"
    )
    assert job.verdict() == HangVerdict(HangOutcome.CULPRITS, (3,), (), 0.95, sentence)
    assert [len(node.verdicts_of_cycle) for node in job.nodes] == [1, 1]
    assert [len(node.events) for node in job.nodes] == [1, 0]
    assert caplog.messages == [f"hang: {sentence}"] * 2
    assert [node.asked for node in job.nodes] == [1, 1]
    assert {node.verdicts.deadline for node in job.nodes} == {math.inf}


def test_monitors_that_end_their_ranks_soon_after_belong_to_the_same_hang() -> None:
    job = Job(2)
    assert job.suspect(0, 1.0) == [1.0]
    assert job.suspect(1, 1.0 + ONE_HANG / 2) == [1.0 + ONE_HANG / 2]
    assert [len(node.verdicts_of_cycle) for node in job.nodes] == [1, 1]
    assert job.suspect(1, 1.0 + ONE_HANG) == [1.0 + ONE_HANG]
    assert [len(node.verdicts_of_cycle) for node in job.nodes] == [2, 2]


def test_two_nodes_that_ask_at_once_get_one_verdict() -> None:
    job, answered = Job(2), list[int]()
    for number, node in enumerate(job.nodes):
        node.verdicts.suspected(lambda number=number: answered.append(number), now=1.0)  # type: ignore[misc]
        node.verdicts.suspected(lambda number=number: answered.append(number), now=1.0)  # type: ignore[misc]
    job.deliver(1.0)
    assert sorted(answered) == [0, 0, 1, 1]
    assert [len(node.verdicts_of_cycle) for node in job.nodes] == [1, 1]
    assert [node.asked for node in job.nodes] == [1, 1]


@pytest.mark.parametrize("culprit", [1, 2])
def test_the_line_is_a_warning_where_it_was_judged_and_where_the_culprit_is(
    culprit: int, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(3)
    job.nodes[culprit].reports[0] = replace(STANDS, rank=2 * culprit)
    with caplog.at_level(logging.INFO, "nvrx_launcher"):
        job.suspect(1, 1.0)
    levels = [record.levelno for record in caplog.records]
    assert levels == [logging.WARNING if node in (0, culprit) else logging.INFO for node in range(3)]


def test_the_times_are_one_budget_that_ends_before_the_monitor_does() -> None:
    assert 0 < RANKS_TIMEOUT < COLLECT_TIMEOUT < JUDGE_TIMEOUT < OWN_VERDICT_TIMEOUT < VERDICT_TIMEOUT
    assert ANSWER_TIMEOUT + EXTRA_TIMEOUT < RANKS_TIMEOUT - ANSWER_MARGIN  # a monitor has asked its rank by then


def test_the_launcher_of_the_coordinator_judges_by_what_it_has_if_the_store_does_not_answer() -> None:
    job = Job(2)
    job.nodes[0].reports[1] = replace(STANDS, rank=1)
    job.nodes[1].answers = job.store_answers = False
    answered = job.suspect(1, 1.0)
    job.tick(1.0 + COLLECT_TIMEOUT)
    assert not answered
    job.tick(1.0 + JUDGE_TIMEOUT)
    assert answered
    assert (job.verdict().culprits, job.verdict().missing) == ((1,), (2, 3))


def test_a_launcher_of_the_coordinator_that_hears_nothing_of_its_own_question_tells_its_verdict() -> None:
    """The coordinator's decisions are late: its own ranks are what it has."""
    job = Job(2)
    told = list[MessageKind]()
    job.nodes[0].tell = lambda kind, *_: told.append(kind)  # type: ignore[method-assign]
    job.suspect(0, 1.0)
    for now in (1.0 + COLLECT_TIMEOUT, 1.0 + JUDGE_TIMEOUT, 1.0 + OWN_VERDICT_TIMEOUT):
        job.tick(now)
    assert told == [MessageKind.HANG_SUSPECTED, MessageKind.HANG_JUDGED]
    assert job.nodes[0].verdicts_of_cycle[0][1].missing == (2, 3)


def test_a_node_that_is_lost_is_not_waited_for() -> None:
    job = Job(3)
    job.nodes[0].reports[1] = replace(STANDS, rank=1)
    job.nodes[2].answers = False
    answered = job.suspect(0, 1.0)
    assert not answered
    job.decide(Decision(DecisionKind.LOST, 0, "its launcher has ended", node=2), 1.1)
    job.deliver(1.1)
    assert answered
    assert (job.verdict().culprits, job.verdict().missing) == ((1,), (4, 5))


def test_a_node_that_was_lost_before_is_not_counted() -> None:
    job = Job(3)
    job.nodes[2].is_mute = True
    job.decide(Decision(DecisionKind.LOST, 0, "its launcher has ended", node=2), 0.5)
    assert job.suspect(0, 1.0)
    assert job.verdict().missing == (4, 5)


def test_what_a_node_writes_is_bounded_and_its_short_reports_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(1)
    job.nodes[0].reports[0] = replace(WAITS, wait="x" * 200)
    monkeypatch.setattr(hang_policy, "EVIDENCE_BYTES", len(WAITS.encode()) + 100)
    assert job.suspect(0, 1.0)
    assert job.verdict().missing == (0,)
    assert len(job.evidence[0]) <= hang_policy.EVIDENCE_BYTES


@pytest.mark.parametrize("text", [b"", b"-", b"another hang", b"%s\n" % WAITS.encode().encode(), b"x" * (1 << 23)])
def test_what_another_node_has_written_that_is_no_evidence_of_this_hang_is_missing(text: bytes) -> None:
    job = Job(2)
    job.nodes[1].answers = False
    job.suspect(0, 1.0)
    job.evidence[1] = text
    job.tick(1.0 + COLLECT_TIMEOUT)
    assert job.verdict().missing == (2, 3)


def test_a_node_speaks_for_its_own_ranks_alone() -> None:
    job = Job(2)
    job.nodes[1].answers = False
    job.suspect(0, 1.0)
    hang, own = job.evidence[0].split(b"\n")[:2]
    job.evidence[1] = b"\n".join([hang, own, b"no report"])
    job.tick(1.0 + COLLECT_TIMEOUT)
    assert job.verdict().missing == (2, 3)


def test_a_store_without_a_value_of_all_nodes_leaves_the_launchers_own_ranks() -> None:
    job = Job(2)
    job.nodes[1].answers = False
    job.nodes[0].gather_evidence = lambda _, judged, answer: answer(judged(()))  # type: ignore[method-assign]
    job.suspect(0, 1.0)
    job.tick(1.0 + COLLECT_TIMEOUT)
    assert not job.nodes[0].events
    job.tick(1.0 + JUDGE_TIMEOUT)
    assert job.verdict().missing == (2, 3)


def test_a_report_whose_reading_fails_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> HangReport:
        raise KeyError(7)

    monkeypatch.setattr(HangReport, "decode", fail)
    job = Job(1)
    assert job.suspect(0, 1.0)
    assert job.verdict().missing == (0, 1)


def test_evidence_that_cannot_be_judged_names_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> HangVerdict:
        raise KeyError(7)

    monkeypatch.setattr(hang_policy, "judge", fail)
    job = Job(1)
    assert job.suspect(0, 1.0)
    sentence = r"who is to blame is not known: the evidence cannot be judged, KeyError at test_hang_verdicts.py:\d+"
    assert re.fullmatch(sentence, job.verdict().sentence)


def test_evidence_that_is_late_is_missing_and_that_is_stated() -> None:
    job = Job(2)
    job.nodes[0].reports[1] = replace(STANDS, rank=1)
    job.nodes[1].answers = False
    assert job.suspect(0, 1.0) == []
    assert job.nodes[0].verdicts.deadline == 1.0 + COLLECT_TIMEOUT
    job.tick(1.0 + COLLECT_TIMEOUT)
    assert job.verdict().missing == (2, 3)
    assert job.verdict().culprits == (1,)
    assert job.verdict().sentence.endswith("no report of ranks 2-3 in time")
    job.nodes[1].pending[0](job.nodes[1].reports)
    job.tick(1.0 + OWN_VERDICT_TIMEOUT)
    assert [len(node.verdicts_of_cycle) for node in job.nodes] == [1, 1]


def test_without_the_launcher_of_the_coordinator_a_node_judges_by_its_own_ranks_in_time() -> None:
    job = Job(2)
    job.nodes[0].is_mute = True
    job.nodes[1].tell = lambda *_: None  # type: ignore[method-assign]
    answered = job.suspect(1, 1.0)
    assert not answered
    assert job.nodes[1].verdicts.deadline == 1.0 + OWN_VERDICT_TIMEOUT
    job.tick(1.0 + OWN_VERDICT_TIMEOUT)
    assert answered
    assert job.verdict().missing == (0, 1)
    assert job.verdict().culprits == ()
    job.decide(Decision(DecisionKind.HANG_JUDGED, 0, job.verdict().encode()), 1.0 + OWN_VERDICT_TIMEOUT)  # too late
    assert len(job.nodes[1].events) == 1


def test_without_any_evidence_nobody_is_named() -> None:
    job = Job(1)
    job.nodes[0].reports.clear()
    assert job.suspect(0, 1.0)
    assert job.verdict().sentence == "who is to blame is not known; no report of ranks 0-1 in time"


def test_all_alike_names_nobody() -> None:
    job = Job(1)
    job.nodes[0].reports = {local: replace(STANDS, rank=local, stalled=True) for local in range(2)}
    assert job.suspect(0, 1.0)
    assert (job.verdict().outcome, job.verdict().culprits) == (HangOutcome.ALIKE, ())


def test_the_ranks_of_a_job_whose_script_renumbers_them_have_the_launchers_rank_too() -> None:
    job = Job(1)
    job.nodes[0].reports = {0: replace(WAITS, rank=1), 1: replace(STANDS, rank=0)}
    assert job.suspect(0, 1.0)
    assert job.verdict().sentence.startswith("rank 0 (initial rank 1, ")


def test_a_spare_gives_no_evidence_and_has_the_line() -> None:
    job = Job(2)
    job.cycle = 1
    job.decide(Decision(DecisionKind.RUN, 1, "", members=(Member(0, 0, 2),)), 0.0)
    assert job.suspect(0, 1.0)
    assert [node.asked for node in job.nodes] == [1, 0]
    assert [len(node.verdicts_of_cycle) for node in job.nodes] == [1, 1]


def test_what_is_of_another_cycle_or_malformed_has_no_effect() -> None:
    job = Job(2)
    node = job.nodes[0]
    for decision in (
        Decision(DecisionKind.HANG_SUSPECTED, 3, ""), Decision(DecisionKind.HANG_JUDGED, 3, "{}"),
        Decision(DecisionKind.HANG_JUDGED, 0, "no JSON"), NO_CYCLE,
    ):  # fmt: skip
        node.verdicts.decided(decision, now=1.0)
    node.verdicts.evidence_received(7, "hang", now=1.0)
    assert (node.asked, node.events, node.verdicts.deadline) == (0, [], math.inf)
    node.verdicts.evidence_received(0, "hang", now=1.0)
    assert node.verdicts.deadline == 1.0 + COLLECT_TIMEOUT


def test_the_next_cycle_forgets_the_hang_and_no_monitor_waits() -> None:
    job = Job(2)
    job.nodes[1].answers = False
    answered = job.suspect(0, 1.0)
    job.run(1)
    assert answered
    assert [node.verdicts.deadline for node in job.nodes] == [math.inf, math.inf]
    assert job.suspect(0, 1.1) == []


def test_evidence_that_comes_in_the_next_cycle_is_not_of_it() -> None:
    job = Job(1)
    (node,) = job.nodes
    node.answers = False
    job.suspect(0, 1.0)
    job.run(1)
    job.suspect(0, 1.5)
    node.pending[0](node.reports)
    job.deliver(1.5)
    job.tick(1.5 + COLLECT_TIMEOUT)
    ((cycle, verdict),) = node.events
    assert (cycle, verdict.missing) == (1, (0, 1))


def test_switched_off_no_monitor_waits_no_rank_is_asked_and_there_is_no_line() -> None:
    job = Job(2)
    off = job.nodes[1]
    nothing: Any = SimpleNamespace(hang_judged=lambda *_: pytest.fail("a verdict"))
    off.verdicts = HangVerdicts(off, off, nothing, nothing, is_on=False)
    job.run(1)
    assert job.suspect(1, 1.0) == [1.0]
    assert not job.messages
    job.suspect(0, 1.0)
    job.tick(1.0 + COLLECT_TIMEOUT)
    assert (off.asked, off.verdicts.deadline) == (0, math.inf)
    assert job.nodes[0].events[0][1].missing == (2, 3)


def test_before_the_first_cycle_no_monitor_waits() -> None:
    node = Node(Job(0), 0)
    answered = list[bool]()
    node.verdicts.suspected(lambda: answered.append(True), now=0.0)
    assert answered


def test_old_evidence_is_not_given_again() -> None:
    """The coordinator was lost, or has forgotten the hang."""
    job = Job(2)
    job.decide(Decision(DecisionKind.HANG_SUSPECTED, 0, "hang"), 1.0)
    job.messages.clear()
    job.decide(Decision(DecisionKind.HANG_SUSPECTED, 0, "hang"), 1.0 + ONE_HANG / 2)
    assert not job.messages
    job.decide(Decision(DecisionKind.HANG_SUSPECTED, 0, "another hang"), 1.0 + ONE_HANG)
    assert [node.asked for node in job.nodes] == [2, 2]
    assert len(job.messages) == 1


def test_a_verdict_that_never_came_back_does_not_keep_the_next_hang_from_one() -> None:
    """No rank of the coordinator's launcher is overdue: it does not give up."""
    job = Job(2)
    job.suspect(1, 1.0)
    job.nodes[0].verdicts._policy._said_at = -math.inf
    job.decide(Decision(DecisionKind.HANG_SUSPECTED, 0, "a"), 20.0)
    job.nodes[0].verdicts.tick(now=20.0 + COLLECT_TIMEOUT)
    job.messages.clear()  # what is told is lost
    job.decide(Decision(DecisionKind.HANG_SUSPECTED, 0, "b"), 30.0)
    job.deliver(30.0)
    assert [len(node.verdicts_of_cycle) for node in job.nodes] == [2, 2]


def test_groups_of_the_same_ranks_in_one_job_are_not_taken_for_one() -> None:
    """The ranks of two nodes say that they are ranks 0 and 1."""
    job = Job(2)
    job.nodes[1].reports = {0: replace(WAITS, rank=0), 1: replace(STANDS, rank=1)}
    assert job.suspect(0, 1.0)
    assert job.verdict().culprits == ()


def test_a_rank_without_a_report_is_not_named() -> None:
    """It may never have been monitored."""
    job = Job(1)
    del job.nodes[0].reports[1]
    assert job.suspect(0, 1.0)
    assert (job.verdict().culprits, job.verdict().missing) == ((), (1,))


def test_the_end_of_the_cycle_ends_the_question() -> None:
    job = Job(2)
    job.nodes[1].answers = False
    answered = job.suspect(0, 1.0)
    job.decide(Decision(DecisionKind.STOP, 0, "a worker has failed"), 1.1)
    assert answered
    assert job.suspect(0, 1.2) == [1.2]
    job.tick(2.0)
    assert not job.nodes[0].events
