"""What a launcher reads of its ranks and publishes, and when the ranks of a job are compared."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

import pytest
from nvrx_launcher.rendezvous.messages import Decision, DecisionKind, Member
from nvrx_launcher.stragglers import Stragglers

from nvrx_core.fault.stragglers import NodePaces, Pace, SectionPaces, StragglerNews
from nvrx_core.fault_tolerance import FaultToleranceConfig


class Node:
    """The ranks of one node, its connection to the others, and its event file."""

    def __init__(self, first_rank: int = 0, answers: bool = True) -> None:
        self.slow, self.runs, self.first_rank, self.answers = dict[int, float](), 0, first_rank, answers
        self.read, self.shared = list[str](), list[str]()
        self.news = list[StragglerNews]()
        self.others: list[bytes] = []

    def section_runs(self, section: str, most: int) -> list[tuple[int, int, list[float]]]:
        self.read.append(section)
        ranks = range(self.first_rank, self.first_rank + 4)
        return [(rank, self.runs, [self.slow.get(rank, 0.003)] * most) for rank in ranks]

    def share_pace(self, text: str, nodes: Sequence[int], answer: Callable[[Sequence[bytes]], object]) -> None:
        self.shared.append(text)
        if self.answers:
            answer([text.encode(), *self.others])

    def straggles(self, news: StragglerNews) -> None:
        self.news.append(news)


def decision(kind: DecisionKind = DecisionKind.RUN, cycle: int = 0, nodes: int = 1) -> Decision:
    return Decision(kind, cycle, "", members=tuple(Member(each, f"host-{each}", 4) for each in range(nodes)))


def config(**settings: object) -> FaultToleranceConfig:
    return FaultToleranceConfig(**settings)  # type: ignore[arg-type]


def train(stragglers: Stragglers, node: Node, first: int, last: int) -> None:
    for second in range(first, last):
        node.runs += 20
        stragglers.tick(now=float(second))


def test_a_slow_rank_is_one_line_and_one_event(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    stragglers = Stragglers(config(), node, node, node)
    stragglers.decided(decision(), now=0.0)
    train(stragglers, node, 0, 60)
    node.slow[2] = 0.04
    train(stragglers, node, 60, 200)
    (news,) = node.news
    assert news.ranks == (2,)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("straggler: rank 2 (")


def test_of_many_stragglers_all_are_events_and_the_log_has_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    stragglers = Stragglers(config(), node, node, node)

    def share_pace(text: str, nodes: Sequence[int], answer: Callable[[Sequence[bytes]], object]) -> None:
        def pace(rank: int) -> Pace:
            return Pace(rank, node.runs, node.slow.get(rank, 0.003), 0.1)

        hosts = [
            NodePaces(0, f"host-{n}", {"data": SectionPaces.of([pace(2 * n), pace(2 * n + 1)])}) for n in range(16)
        ]
        answer([host.encode().encode() for host in hosts])

    node.share_pace = share_pace  # type: ignore[method-assign]
    stragglers.decided(decision(), now=0.0)
    train(stragglers, node, 0, 60)
    node.slow = {rank: 0.05 + 0.001 * rank for rank in (3, 8, 13, 18, 20, 25, 31)}
    train(stragglers, node, 60, 120)
    node.slow = {20: 0.05, 25: 0.05}
    train(stragglers, node, 120, 180)
    begun, over = (sorted(each.ranks for each in node.news if each.has_begun == value) for value in (True, False))
    assert begun == [(3,), (8,), (13,), (18,), (20,), (25,), (31,)]
    assert over == [(3,), (8,), (13,), (18,), (31,)]
    lines = [record.getMessage().removeprefix("straggler: ") for record in caplog.records]
    assert [line.partition(" (host-")[0] for line in lines] == [
        "rank 31", "rank 25", "rank 20", "rank 18", "3 more ranks are slow: ranks 3, 8, 13",
        "rank 3", "rank 8", "rank 13", "rank 18", "1 more rank is about as fast as the others again: rank 31",
    ]  # fmt: skip


def test_the_times_of_all_nodes_are_compared_and_malformed_ones_left_out() -> None:
    node = Node()
    stragglers = Stragglers(config(), node, node, node)
    stragglers.decided(decision(nodes=2), now=0.0)
    node.others = [b"malformed"]
    train(stragglers, node, 0, 60)
    node.slow[1] = 0.04
    train(stragglers, node, 60, 120)
    assert [each.ranks for each in node.news] == [(1,)]


def test_pages_are_read_every_second_and_times_published_every_five_seconds() -> None:
    node = Node()
    stragglers = Stragglers(config(straggler_sections="load, ,step,load"), node, node, node)
    stragglers.decided(decision(), now=0.0)
    assert stragglers.deadline == 1.0
    train(stragglers, node, 0, 25)
    assert (len(node.read), set(node.read), len(node.shared)) == (48, {"load", "step"}, 4)
    assert stragglers.deadline == 25.0


def test_the_section_in_which_batches_are_fetched_is_compared_by_default_and_no_other() -> None:
    node = Node()
    stragglers = Stragglers(config(), node, node, node)
    stragglers.decided(decision(), now=0.0)
    train(stragglers, node, 0, 3)
    assert set(node.read) == {"data"}


def test_the_more_nodes_the_more_rarely_times_are_published() -> None:
    node = Node()
    stragglers = Stragglers(config(), node, node, node)
    stragglers.decided(decision(nodes=2048), now=0.0)
    train(stragglers, node, 0, 100)
    assert len(node.shared) == 4


def test_times_are_published_once_at_a_time() -> None:
    node = Node(answers=False)
    stragglers = Stragglers(config(), node, node, node)
    stragglers.decided(decision(), now=0.0)
    train(stragglers, node, 0, 60)
    assert len(node.shared) == 1


def test_after_a_restart_it_is_known_that_the_work_of_the_ranks_is_even() -> None:
    node = Node()
    stragglers = Stragglers(config(), node, node, node)
    stragglers.decided(decision(), now=0.0)
    train(stragglers, node, 0, 60)
    stragglers.decided(decision(DecisionKind.STOP), now=60.0)
    node.runs, node.slow[2] = 0, 0.04
    stragglers.decided(decision(cycle=1), now=61.0)
    train(stragglers, node, 61, 140)
    (news,) = node.news
    assert not any(each.from_start for each in news.findings)


@pytest.mark.parametrize("settings", [{"straggler_factor": None}, {"straggler_sections": " ,"}])
def test_nothing_is_done_without_a_factor_or_sections(settings: dict[str, object]) -> None:
    node = Node()
    stragglers = Stragglers(config(**settings), node, node, node)
    stragglers.decided(decision(), now=0.0)
    assert stragglers.deadline == math.inf
    train(stragglers, node, 1, 30)
    assert node.read == node.shared == []


def test_nothing_is_done_between_cycles() -> None:
    node = Node()
    stragglers = Stragglers(config(), node, node, node)
    stragglers.decided(decision(), now=0.0)
    stragglers.decided(decision(DecisionKind.NOTE), now=0.0)
    stragglers.decided(decision(DecisionKind.STOP), now=1.0)
    train(stragglers, node, 1, 30)
    assert node.read == node.shared == []


def test_an_answer_that_comes_after_the_end_of_a_cycle_says_nothing() -> None:
    node = Node(answers=False)
    late = list[Callable[[Sequence[bytes]], object]]()
    node.share_pace = lambda text, nodes, answer: late.append(answer)  # type: ignore[method-assign]
    stragglers = Stragglers(config(), node, node, node)
    stragglers.decided(decision(), now=0.0)
    train(stragglers, node, 0, 10)
    stragglers.decided(decision(DecisionKind.STOP), now=10.0)
    late[0]([NodePaces(0, "host", {}).encode().encode()])
    assert node.news == []
