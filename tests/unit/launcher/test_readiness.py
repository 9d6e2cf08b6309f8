"""A node tells that it is ready once, when nothing is waited for any more, and not after it has left."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from nvrx_launcher.readiness import Readiness, Ready

from nvrx_core.health.policy import Exclude, MayJoin


@dataclass
class Health:
    """Checks whose outcome the test gives."""

    has_checks: bool = False
    told: list[Any] = field(default_factory=list)
    timeout: float = 7.0
    deadline: float = 5.0

    def begin(self) -> bool:
        return self.has_checks

    def events(self) -> list[Any]:
        found, self.told = self.told, []
        return found


class Node:
    """A node with parts that the test drives."""

    def __init__(self, *, has_checks: bool = False) -> None:
        self.health = Health(has_checks)
        self.memory = SimpleNamespace(
            is_waiting=False, timeout=9.0, deadline=6.0, begin=lambda **first: setattr(self, "first", first)
        )
        self.checkpoint = SimpleNamespace(is_reading=False, deadline=8.0, iteration=3, begin=bool)
        self.first: dict[str, bool] = {}
        parts: tuple[Any, ...] = (self.health, self.memory, self.checkpoint)
        self.readiness = Readiness(*parts)

    def begin(self, reason: str = "") -> None:
        self.readiness.begin(2, reason, is_first=False)


@pytest.fixture
def node() -> Node:
    return Node()


def test_a_node_for_which_nothing_is_waited_is_ready_at_once_and_once(node: Node) -> None:
    assert node.readiness.events() == []
    assert (node.readiness.deadline, node.readiness.timeout, node.readiness.iteration) == (5.0, 9.0, 3)
    node.begin("its store is lost")
    assert node.readiness.deadline == -math.inf
    assert node.readiness.events() == [Ready(2, "its store is lost")]
    assert node.readiness.events() == []
    assert node.readiness.deadline == 5.0
    assert node.first == {"is_first": False}


def test_it_waits_for_memory_and_for_the_checkpoint(node: Node) -> None:
    node.memory.is_waiting = node.checkpoint.is_reading = True
    node.begin()
    assert node.readiness.events() == []
    node.memory.is_waiting = False
    assert node.readiness.events() == []
    assert node.readiness.deadline == 5.0
    node.checkpoint.is_reading = False
    assert node.readiness.events() == [Ready(2, "")]


def test_it_waits_for_its_checks_each_time_anew() -> None:
    node = Node(has_checks=True)
    for _ in range(2):
        node.begin()
        assert node.readiness.events() == []
        node.health.told = [MayJoin()]
        assert node.readiness.events() == [Ready(2, "")]


def test_one_that_is_unhealthy_is_not_ready_even_if_nothing_else_is_missing(node: Node) -> None:
    node.begin()
    node.health.told = [Exclude("a GPU is lost")]
    assert node.readiness.events() == [Exclude("a GPU is lost")]
    node.readiness.left()
    assert node.readiness.events() == []
    assert node.readiness.deadline == 5.0


def test_why_it_joins_again_is_said(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.begin()
    node.begin("its store is lost")
    assert caplog.messages == ["its store is lost: this node joins again"]
