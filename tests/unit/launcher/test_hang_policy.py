"""The policy of hang verdicts by schedule: what comes late, twice, never, or in another order, and any of these."""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import replace

import pytest
from nvrx_launcher.hang_policy import (
    COLLECT_TIMEOUT,
    JUDGE_TIMEOUT,
    OWN_VERDICT_TIMEOUT,
    RANKS_TIMEOUT,
    AnswerMonitors,
    AskRanks,
    GatherEvidence,
    GiveVerdict,
    HangAction,
    HangPolicy,
    ShareEvidence,
    TellCoordinator,
)
from nvrx_launcher.rendezvous.hang_relay import ONE_HANG, HangRelay
from nvrx_launcher.rendezvous.messages import Decision, DecisionKind, Member, Message, MessageKind

from nvrx_core.collective import Collective
from nvrx_core.fault.hang_report import HangReport, Waiting
from nvrx_core.fault.hang_verdict import MAX_SENTENCE, HangOutcome, HangVerdict
from nvrx_core.fault.stack_text import Frame

MEMBERS = (Member(0, 0, 1), Member(1, 1, 1))
WAITS = HangReport(
    rank=0, initial_rank=0, waiting=Waiting.WAITS, collective=Collective("all_reduce", "0", "", 5), begun={"0": 5},
    place=Frame("train.py", 9, "step"), silent=12.0,
)  # fmt: skip
STANDS = replace(WAITS, rank=1, waiting=Waiting.ELSEWHERE, collective=None, begun={"0": 4}, wait="a lock")
TOLD = HangVerdict(HangOutcome.CULPRITS, (1,), (), 0.95, "rank 1 stands")
"""The verdict of another launcher."""


def run(cycle: int = 0, members: tuple[Member, ...] = MEMBERS) -> Decision:
    return Decision(DecisionKind.RUN, cycle, "all nodes are there", members=members)


def stop(cycle: int = 0) -> Decision:
    return Decision(DecisionKind.STOP, cycle, "rank 1 has failed")


def named(hang: str = "0:1:1", cycle: int = 0) -> Decision:
    return Decision(DecisionKind.HANG_SUSPECTED, cycle, hang, node=1)


def judged(verdict: HangVerdict = TOLD, cycle: int = 0, node: int = 1) -> Decision:
    return Decision(DecisionKind.HANG_JUDGED, cycle, verdict.encode(), node=node)


def node(number: int = 0, members: tuple[Member, ...] = MEMBERS) -> HangPolicy:
    """Return the policy of a node in cycle 0."""
    policy = HangPolicy("node-a")
    policy.joined(number)
    assert policy.decided(run(members=members), judges=True, now=0.0) == ()
    return policy


def suspecting(*, judges: bool = True) -> HangPolicy:
    """Return the policy of node 0, of which a monitor has said at 1.0 that its rank hangs."""
    policy = node()
    asks, tells = policy.suspected(judges=judges, now=1.0)
    assert asks == AskRanks(1, 1.0 + RANKS_TIMEOUT)
    assert tells == TellCoordinator(MessageKind.HANG_SUSPECTED, 0, "0:0:1.000000")
    return policy


def gathering() -> tuple[HangPolicy, GatherEvidence]:
    """Return the policy of the coordinator's launcher, which reads what all nodes have written of the hang."""
    policy = suspecting()
    assert policy.decided(named(), judges=True, now=1.0) == ()
    (shares,) = policy.reported(1, {0: WAITS})
    assert isinstance(shares, ShareEvidence)
    (gathers,) = policy.evidence_received(0, "0:1:1", now=1.1)
    assert gathers == GatherEvidence(0, "0:1:1", MEMBERS, frozenset(), False)
    return policy, gathers


def test_the_answer_of_the_ranks_to_an_earlier_question_is_not_taken_for_this_one() -> None:
    policy = suspecting()
    policy.decided(run(1), judges=True, now=1.2)
    assert policy.reported(1, {0: STANDS}) == ()
    (asks, _) = policy.suspected(judges=True, now=1.3)
    assert asks == AskRanks(2, 1.3 + RANKS_TIMEOUT)
    assert policy.reported(1, {0: STANDS}) == ()
    policy.decided(named("1:1:1", 1), judges=True, now=1.4)
    (shares,) = policy.reported(2, {0: WAITS})
    assert isinstance(shares, ShareEvidence)
    assert (shares.cycle, shares.nodes, "a lock" in shares.text) == (1, 2, False)


def test_reports_that_come_before_the_hang_has_a_name_are_shared_when_it_has_one() -> None:
    policy = suspecting()
    assert policy.reported(1, {0: WAITS}) == ()
    (shares,) = policy.decided(named(), judges=True, now=1.2)
    assert shares == ShareEvidence(0, "0:1:1", f"0:1:1\n{replace(WAITS, host='node-a').encode()}", 2)
    assert policy.decided(named("0:0:1"), judges=True, now=1.3) == ()  # of two nodes that asked at once


def test_what_was_read_is_not_judged_after_the_verdict_nor_for_another_hang() -> None:
    policy, gathers = gathering()
    (tells,) = policy.gathered(gathers, TOLD)
    assert tells == TellCoordinator(MessageKind.HANG_JUDGED, 0, TOLD.encode())
    assert policy.gathered(gathers, TOLD) == ()  # a second reading, as a node was lost meanwhile
    assert policy.evidence_received(0, "0:1:1", now=1.2)[0] == gathers  # the same, later: it is told once
    assert policy.gathered(gathers, TOLD) == ()
    given, answered = policy.decided(judged(node=0), judges=True, now=1.3)
    assert given == GiveVerdict(0, TOLD, True, True, "node 0 has judged")
    assert answered == AnswerMonitors("the verdict is given")
    assert policy.gathered(gathers, TOLD) == ()
    assert policy.evidence_received(0, "0:1:1", now=1.4) == ()
    assert policy.decided(named("0:0:9"), judges=True, now=9.0) == (AskRanks(2, 9.0 + RANKS_TIMEOUT),)
    assert policy.gathered(gathers, TOLD) == ()


def test_not_all_have_written_so_it_is_read_again() -> None:
    policy, gathers = gathering()
    assert policy.gathered(gathers, None) == ()
    assert policy.deadline == 1.0 + COLLECT_TIMEOUT
    (again,) = policy.tick(now=1.0 + COLLECT_TIMEOUT)
    assert again == replace(gathers, is_last=True)
    assert policy.deadline == 1.0 + JUDGE_TIMEOUT


def test_a_node_that_is_lost_in_between_is_no_more_waited_for() -> None:
    lost = Decision(DecisionKind.LOST, 0, "its launcher has ended", node=1)
    policy = suspecting()
    assert policy.decided(lost, judges=True, now=1.1) == ()  # nobody has asked for evidence yet
    (shares,) = (*policy.decided(named("0:0:1"), judges=True, now=1.2), *policy.reported(1, {0: WAITS}))
    assert isinstance(shares, ShareEvidence)
    assert shares.nodes == 1
    other, gathers = gathering()
    assert other.decided(lost, judges=True, now=1.2) == (replace(gathers, lost=frozenset({1})),)
    assert replace(gathers, lost=frozenset({1})).judged([shares.text.encode(), b"-"]) is None  # of another hang
    assert other.decided(stop(), judges=True, now=1.3) == (AnswerMonitors("rank 1 has failed"),)
    assert other.decided(lost, judges=True, now=1.4) == ()


@pytest.mark.parametrize("kind", [DecisionKind.STOP, DecisionKind.END])
def test_the_end_of_the_cycle_in_between_ends_the_question(kind: DecisionKind) -> None:
    policy, gathers = gathering()
    ends = Decision(kind, 0, "rank 1 has failed")
    assert policy.decided(ends, judges=True, now=1.2) == (AnswerMonitors("rank 1 has failed"),)
    assert policy.deadline == math.inf
    late = (
        policy.reported(1, {0: WAITS}), policy.gathered(gathers, TOLD), policy.tick(now=9.0),
        policy.evidence_received(0, "0:1:1", now=9.0), policy.decided(named(), judges=True, now=9.0),
        policy.decided(judged(), judges=True, now=9.0), policy.decided(ends, judges=True, now=9.0),
    )  # fmt: skip
    assert late == ((),) * 7
    assert policy.suspected(judges=True, now=9.0) == (AnswerMonitors("no cycle runs"),)


def test_a_second_hang_has_a_verdict_although_that_on_the_first_never_came_back() -> None:
    policy, gathers = gathering()
    policy.gathered(gathers, TOLD)
    given, _ = policy.tick(now=1.0 + OWN_VERDICT_TIMEOUT)
    assert isinstance(given, GiveVerdict)
    assert given.verdict.sentence.endswith("; by the ranks of node-a alone")
    assert policy.decided(judged(), judges=True, now=2.0) == ()  # it comes after all
    assert policy.suspected(judges=True, now=3.0) == (AnswerMonitors("there has been a verdict in the last 5 s"),)
    later = 1.0 + OWN_VERDICT_TIMEOUT + ONE_HANG
    assert [type(each) for each in policy.suspected(judges=True, now=later)] == [AskRanks, TellCoordinator]
    assert policy.suspected(judges=True, now=later + 0.1) == ()
    assert policy.deadline == later + COLLECT_TIMEOUT


def test_a_launcher_that_stood_still_gives_its_verdicts_at_once() -> None:
    policy, _ = gathering()
    kinds = [type(each) for each in policy.tick(now=60.0)]
    assert kinds == [GatherEvidence, TellCoordinator, GiveVerdict, AnswerMonitors]
    assert policy.deadline == math.inf


def test_a_hang_without_a_name_is_judged_by_the_node_s_own_ranks() -> None:
    """The coordinator does not answer: there is nothing to be read."""
    policy = suspecting()
    policy.reported(1, {0: replace(STANDS, rank=0)})
    assert policy.tick(now=1.0 + COLLECT_TIMEOUT) == ()
    (tells,) = policy.tick(now=1.0 + JUDGE_TIMEOUT)
    assert isinstance(tells, TellCoordinator)
    assert HangVerdict.decode(tells.reason).missing == (1,)


@pytest.mark.parametrize("reports", [{}, {0: WAITS}])
def test_a_launcher_that_is_told_nothing_writes_no_error_if_it_can_name_nobody(reports: dict[int, HangReport]) -> None:
    """All nodes do so when the coordinator's launcher is dead."""
    policy = suspecting(judges=False)
    policy.reported(1, reports)
    given, answered = policy.tick(now=1.0 + OWN_VERDICT_TIMEOUT)
    assert isinstance(given, GiveVerdict)
    assert (given.is_own, given.is_warning, given.reason) == (True, False, "none was told within 0.92 s")
    assert given.verdict.outcome is HangOutcome.UNKNOWN
    assert given.verdict.sentence.endswith("; by the ranks of node-a alone")
    assert HangVerdict.decode(given.verdict.encode()) == given.verdict
    assert isinstance(answered, AnswerMonitors)


def test_a_launcher_that_is_told_nothing_writes_an_error_if_it_can_name_a_rank() -> None:
    policy = node(members=(Member(0, 0, 2), Member(1, 2, 1)))
    policy.suspected(judges=False, now=1.0)
    policy.reported(1, {0: WAITS, 1: STANDS})
    given, _ = policy.tick(now=1.0 + OWN_VERDICT_TIMEOUT)
    assert isinstance(given, GiveVerdict)
    assert (given.verdict.culprits, given.is_warning) == ((1,), True)


def test_in_a_job_of_one_node_its_ranks_are_all_there_are() -> None:
    policy = node(members=MEMBERS[:1])
    policy.suspected(judges=True, now=1.0)
    given = policy.tick(now=1.0 + OWN_VERDICT_TIMEOUT)[-2]
    assert isinstance(given, GiveVerdict)
    assert given.is_warning
    assert given.verdict.sentence == "who is to blame is not known; no report of rank 0 in time"


def test_who_has_judged_is_said_in_a_line_of_any_length() -> None:
    policy = node(members=(Member(0, 0, 9), Member(1, 9, 1)))
    policy.suspected(judges=False, now=1.0)
    long = Frame("f" * 2000, 9, "g" * 2000)
    policy.reported(1, {local: replace(STANDS, rank=local, place=long, inner=long) for local in range(9)})
    given, _ = policy.tick(now=1.0 + OWN_VERDICT_TIMEOUT)
    assert isinstance(given, GiveVerdict)
    assert len(given.verdict.sentence) <= MAX_SENTENCE
    assert given.verdict.sentence.endswith("; by the ranks of node-a alone")


def test_a_spare_gives_no_evidence_and_has_the_line() -> None:
    policy = node(2)
    assert policy.decided(named(), judges=False, now=1.0) == ()
    given = policy.decided(judged(), judges=False, now=1.1)
    assert given == (GiveVerdict(0, TOLD, False, False, "node 1 has judged"),)


def test_what_is_no_verdict_changes_nothing() -> None:
    policy = suspecting()
    broken = replace(judged(), reason="no JSON")
    for decision in (broken, judged(cycle=3), named("3:1:1", 3), Decision(DecisionKind.NOTE, 0, "a line")):
        assert policy.decided(decision, judges=True, now=1.1) == ()
    assert policy.evidence_received(0, "", now=1.1) == ()
    assert policy.deadline == 1.0 + COLLECT_TIMEOUT


class Schedule:
    """Three nodes whose messages, decisions and answers are late, or lost, as a seed says."""

    def __init__(self, seed: int) -> None:
        self.random, self.now, self.cycle = random.Random(seed), 0.0, 0
        self.relay, self.messages = HangRelay(), deque[Message]()
        self.nodes = [HangPolicy(f"node-{number}") for number in range(3)]
        self.runs, self.decisions = [-1] * 3, [deque[Decision]() for _ in self.nodes]
        self.asked, self.gathers = list[tuple[int, int]](), list[GatherEvidence]()
        self.evidence, self.written = dict[int, bytes](), dict[str, int]()
        self.waits_since, self.said_at = [math.inf] * 3, [(-1, -math.inf)] * 3
        for number, policy in enumerate(self.nodes):
            policy.joined(number)
        self.begin()

    def begin(self) -> None:
        members = tuple(Member(number, number, 1) for number in range(3))
        for decisions in self.decisions:
            decisions.append(run(self.cycle, members))

    def step(self) -> None:
        choice = self.random.choice
        match choice(("suspect", "coordinate", *["decide"] * 2, "report", "gather", "lose", *["time"] * 2, "cycle")):
            case "suspect":
                number = choice(range(3))
                self.waits_since[number] = min(self.waits_since[number], self.now)
                self.carry_out(number, self.nodes[number].suspected(judges=number == 0, now=self.now))
            case "coordinate" if self.messages:
                self.coordinate(self.messages.popleft())
            case "decide":
                self.decide(choice(range(3)))
            case "report" if self.asked:
                number, question = self.asked.pop(self.random.randrange(len(self.asked)))
                report = replace(choice((WAITS, STANDS)), rank=number)
                self.carry_out(number, self.nodes[number].reported(question, choice(({0: report}, {}))))
            case "gather" if self.gathers:
                gathers = self.gathers.pop(self.random.randrange(len(self.gathers)))
                texts = [self.evidence.get(member.node, b"-") for member in gathers.members]
                self.carry_out(0, self.nodes[0].gathered(gathers, gathers.judged(choice((texts, texts, ())))))
            case "lose":
                self.messages = deque(each for each in self.messages if self.random.random() < 0.9)
            case "time":
                self.pass_time(choice((0.01, 0.1, 0.3, 1.0, 3.0)))
            case "cycle" if self.random.random() < 0.2:
                for decisions in self.decisions:
                    decisions.append(choice((stop(self.cycle), Decision(DecisionKind.LOST, self.cycle, "", node=2))))
                if choice((True, False)):
                    self.cycle += 1
                    self.begin()
            case _:
                pass

    def coordinate(self, message: Message) -> None:
        if message.kind is MessageKind.HANG_EVIDENCE:
            found = self.nodes[0].evidence_received(message.cycle, message.reason, now=self.now)
            self.carry_out(0, found)
        for decision in self.relay.received(message, cycle=self.cycle, judge=0, now=self.now):
            for decisions in self.decisions:
                decisions.append(decision)

    def decide(self, number: int) -> None:
        if not self.decisions[number]:
            return
        decision = self.decisions[number].popleft()
        if decision.kind is DecisionKind.RUN:
            self.runs[number] = decision.cycle
        elif decision.kind is DecisionKind.STOP:
            self.runs[number] = -1
        self.carry_out(number, self.nodes[number].decided(decision, judges=number == 0, now=self.now))

    def pass_time(self, seconds: float) -> None:
        """Let time pass; each launcher wakes when it is due."""
        until = self.now + seconds
        while (due := min(each.deadline for each in self.nodes)) <= until:
            self.now = max(self.now, due)
            for number, policy in enumerate(self.nodes):
                if policy.deadline <= self.now:
                    self.carry_out(number, policy.tick(now=self.now))
                    assert policy.deadline > self.now
        self.now = until

    def carry_out(self, number: int, actions: tuple[HangAction, ...]) -> None:
        for action in actions:
            match action:
                case AskRanks(question, until):
                    assert until == self.now + RANKS_TIMEOUT
                    assert self.runs[number] >= 0
                    self.asked.append((number, question))
                case TellCoordinator(kind, cycle, reason):
                    assert cycle == self.runs[number]
                    assert kind is not MessageKind.HANG_JUDGED or number == 0
                    self.messages.append(Message(number, kind, cycle, reason))
                case ShareEvidence(cycle, hang, text, nodes):
                    assert cycle == self.runs[number]
                    self.evidence[number] = text.encode()
                    self.written[hang] = self.written.get(hang, 0) + 1
                    if self.written[hang] == nodes:
                        self.messages.append(Message(number, MessageKind.HANG_EVIDENCE, cycle, hang))
                case GatherEvidence():
                    assert number == 0
                    self.gathers.append(action)
                case GiveVerdict(cycle):
                    assert cycle == self.runs[number]
                    before, at = self.said_at[number]
                    assert before < cycle or self.now - at >= ONE_HANG
                    self.said_at[number] = cycle, self.now
                case AnswerMonitors(reason):
                    assert reason
                    self.waits_since[number] = math.inf
        assert self.now - self.waits_since[number] < OWN_VERDICT_TIMEOUT + 1e-6


@pytest.mark.parametrize("seed", range(200))
def test_on_any_schedule_a_monitor_waits_a_second_at_most_and_a_hang_has_one_line_on_a_node(seed: int) -> None:
    schedule = Schedule(seed)
    for _ in range(200):
        schedule.step()
    schedule.pass_time(OWN_VERDICT_TIMEOUT)
    assert schedule.waits_since == [math.inf] * 3
    assert [each.deadline for each in schedule.nodes] == [math.inf] * 3
