"""Who is to blame for a hang under rank monitors: one line on each node, in time; no monitor waits for longer."""

from __future__ import annotations

import logging
import math
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from nvrx_launcher.hang_verdicts import COLLECT_TIMEOUT, VERDICT_TIMEOUT, HangVerdicts
from nvrx_launcher.rendezvous.failure_reports import CycleFailures
from nvrx_launcher.rendezvous.hang_relay import ONE_HANG, HangRelay
from nvrx_launcher.rendezvous.messages import Decision, DecisionKind, Member, Message, MessageKind

from nvrx_core.fault.hang_report import Collective, HangReport, Waiting
from nvrx_core.fault.hang_verdict import HangOutcome, HangVerdict
from nvrx_core.fault.stack_text import Frame

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
        self.events, self.lines = list[tuple[int, HangVerdict]](), list[str]()
        self.verdicts = HangVerdicts(self, self, self, self)
        self.verdicts.joined(number)

    # The ranks of this node

    def ask(self, answer: Callable[[Mapping[int, HangReport]], object], *, now: float) -> None:
        self.asked += 1
        if self.answers:
            answer(self.reports)
        else:
            self.pending.append(answer)

    # The connection to the coordinator, which is beside node 0

    def tell(self, kind: MessageKind, cycle: int, reason: str) -> None:
        if not self.is_mute:
            self.job.messages.append(Message(self.number, kind, cycle, reason))

    def failures(self, cycle: int) -> CycleFailures | None:
        return None if self.number else CycleFailures({})

    # Where verdicts go

    def hang_judged(self, cycle: int, verdict: HangVerdict | str) -> None:
        if isinstance(verdict, HangVerdict):
            self.events.append((cycle, verdict))
        else:
            self.lines.append(verdict)


class Job:
    """The nodes of a job."""

    def __init__(self, nodes: int) -> None:
        self.messages, self.relay = list[Message](), HangRelay()
        self.nodes = [Node(self, number) for number in range(nodes)]
        self.run(0)

    def run(self, cycle: int) -> None:
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
                self.nodes[0].verdicts.evidence_received(message.node, message.cycle, message.reason, now=now)
            for decision in self.relay.received(message, now=now):
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
        ((_, found),) = {(cycle, verdict) for node in self.nodes if not node.is_mute for cycle, verdict in node.events}
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
    assert [node.lines for node in job.nodes] == [[f"hang: {sentence}"]] * 2
    assert caplog.messages == [f"hang: {sentence}"] * 2
    assert {record.levelno for record in caplog.records} == {logging.ERROR}
    assert [node.asked for node in job.nodes] == [1, 1]
    assert {node.verdicts.deadline for node in job.nodes} == {math.inf}


def test_monitors_that_end_their_ranks_soon_after_belong_to_the_same_hang() -> None:
    job = Job(2)
    assert job.suspect(0, 1.0) == [1.0]
    assert job.suspect(1, 1.0 + ONE_HANG / 2) == [1.0 + ONE_HANG / 2]
    assert [len(node.events) for node in job.nodes] == [1, 1]
    assert job.suspect(1, 1.0 + ONE_HANG) == [1.0 + ONE_HANG]
    assert [len(node.events) for node in job.nodes] == [2, 2]


def test_two_nodes_that_ask_at_once_get_one_verdict() -> None:
    job, answered = Job(2), list[int]()
    for number, node in enumerate(job.nodes):
        node.verdicts.suspected(lambda number=number: answered.append(number), now=1.0)  # type: ignore[misc]
        node.verdicts.suspected(lambda number=number: answered.append(number), now=1.0)  # type: ignore[misc]
    job.deliver(1.0)
    assert sorted(answered) == [0, 0, 1, 1]
    assert [len(node.events) for node in job.nodes] == [1, 1]
    assert [node.asked for node in job.nodes] == [1, 1]


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
    job.tick(1.0 + VERDICT_TIMEOUT)
    assert [len(node.events) for node in job.nodes] == [1, 1]


def test_without_the_launcher_of_the_coordinator_a_node_judges_by_its_own_ranks_in_time() -> None:
    job = Job(2)
    job.nodes[0].is_mute = True
    job.nodes[1].tell = lambda *_: None  # type: ignore[method-assign]
    answered = job.suspect(1, 1.0)
    assert not answered
    assert job.nodes[1].verdicts.deadline == 1.0 + VERDICT_TIMEOUT
    job.tick(1.0 + VERDICT_TIMEOUT)
    assert answered
    assert job.verdict().missing == (0, 1)
    assert job.verdict().culprits == ()
    job.decide(Decision(DecisionKind.HANG_JUDGED, 0, job.verdict().encode()), 1.0 + VERDICT_TIMEOUT)  # too late
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
    job.decide(Decision(DecisionKind.RUN, 1, "", members=(Member(0, 0, 2),)), 0.0)
    assert job.suspect(0, 1.0)
    assert [node.asked for node in job.nodes] == [1, 0]
    assert [len(node.events) for node in job.nodes] == [1, 1]


def test_what_is_of_another_cycle_or_malformed_has_no_effect() -> None:
    job = Job(2)
    node = job.nodes[0]
    for decision in (
        Decision(DecisionKind.HANG_SUSPECTED, 3, ""), Decision(DecisionKind.HANG_JUDGED, 3, "{}"),
        Decision(DecisionKind.HANG_JUDGED, 0, "no JSON"), NO_CYCLE,
    ):  # fmt: skip
        node.verdicts.decided(decision, now=1.0)
    node.verdicts.evidence_received(0, 7, "", now=1.0)
    assert (node.asked, node.events, node.verdicts.deadline) == (0, [], math.inf)
    node.verdicts.evidence_received(1, 0, "\nno report\n", now=1.0)
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


def test_before_the_first_cycle_no_monitor_waits() -> None:
    node = Node(Job(0), 0)
    answered = list[bool]()
    node.verdicts.suspected(lambda: answered.append(True), now=0.0)
    assert answered


def test_old_evidence_is_not_given_again() -> None:
    """The coordinator was lost, or has forgotten the hang."""
    job = Job(2)
    job.decide(Decision(DecisionKind.HANG_SUSPECTED, 0, ""), 1.0)
    job.messages.clear()
    job.decide(Decision(DecisionKind.HANG_SUSPECTED, 0, ""), 1.0 + ONE_HANG / 2)
    assert not job.messages
    job.decide(Decision(DecisionKind.HANG_SUSPECTED, 0, ""), 1.0 + ONE_HANG)
    assert [node.asked for node in job.nodes] == [2, 2]
    assert len(job.messages) == 2


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
