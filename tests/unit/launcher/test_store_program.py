"""What the program beside a launcher answers about the calls of a job, and how often it asks the store for that."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from nvrx_launcher.store_program import CALLS, Questions

from nvrx_core.store.keys import LauncherKeys

WITHIN = 30.0


class Store:
    """A store as that of torch; counts its requests."""

    def __init__(self) -> None:
        self.keys, self.requests = dict[str, bytes](), 0

    def check(self, keys: Sequence[str]) -> bool:
        self.requests += 1
        return self.keys.keys() >= set(keys)

    def get(self, key: str) -> bytes:
        self.requests += 1
        return self.keys[key]

    def begin(self, call: int) -> None:
        self.keys[LauncherKeys("job", call).announce()] = b"{}"

    def enter(self, call: int, *lost: int) -> None:
        self.keys[LauncherKeys("job", call).entered()] = json.dumps({"iteration": 0, "lost": lost}).encode()

    def end(self, call: int) -> None:
        del self.keys[LauncherKeys("job", call).announce()]


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def questions() -> Questions:
    return Questions("job")


def test_a_round_without_the_rank_is_awaited(store: Store, questions: Questions) -> None:
    store.begin(3)
    questions.ask(2, WITHIN, now=0.0)
    questions.ask(5, WITHIN, now=0.0)
    assert questions.look(store, now=0.0) == []
    store.enter(3)
    assert questions.look(store, now=1.0) == []
    store.enter(3, 1, 2)
    assert questions.look(store, now=2.0) == [(2, True)]
    assert questions.look(store, now=WITHIN - 1.0) == []
    assert questions.look(store, now=WITHIN) == [(5, False)]
    assert not questions.are_open


def test_without_a_call_the_job_does_not_go_on(store: Store, questions: Questions) -> None:
    questions.ask(0, WITHIN, now=0.0)
    assert questions.look(store, now=0.0) == [(0, False)]


def test_a_call_that_is_over_leaves_the_round_that_it_has_entered_last(store: Store, questions: Questions) -> None:
    store.enter(7, 4)
    questions.ask(4, WITHIN, now=0.0)
    questions.ask(0, WITHIN, now=0.0)
    assert questions.look(store, now=0.0) == [(4, True), (0, False)]


def test_a_call_that_ends_meanwhile_leaves_it_as_well(store: Store, questions: Questions) -> None:
    store.begin(0)
    questions.ask(4, WITHIN, now=0.0)
    assert questions.look(store, now=0.0) == []
    store.enter(0, 4)
    store.end(0)
    assert questions.look(store, now=1.0) == [(4, True)]


@pytest.mark.parametrize("is_over", [True, False])
def test_the_next_call_is_seen_also_if_the_end_of_the_last_one_is_not(
    store: Store, questions: Questions, is_over: bool
) -> None:
    store.begin(0)
    questions.ask(4, WITHIN, now=0.0)
    assert questions.look(store, now=0.0) == []
    store.begin(1)
    if is_over:
        store.end(0)
    assert questions.look(store, now=1.0) == []
    store.enter(1, 4)
    assert questions.look(store, now=2.0) == [(4, True)]


def test_a_store_that_fails_gives_no_answer_but_no(questions: Questions) -> None:
    questions.ask(1, WITHIN, now=0.0)
    questions.ask(2, WITHIN, now=0.0)
    assert questions.give_up() == [(1, False), (2, False)]
    assert not questions.are_open


def test_the_store_is_asked_no_more_often_for_many_ranks_and_once_for_calls_that_do_not_run(
    store: Store, questions: Questions
) -> None:
    """Workers of a node are lost together, just when the ranks decide the round over the same store."""
    store.begin(0)
    store.enter(0)
    for rank in range(8):
        questions.ask(rank, WITHIN, now=0.0)
    questions.look(store, now=0.0)
    assert store.requests <= 2 * CALLS + 1
    store.requests = 0
    assert questions.look(store, now=1.0) == []
    assert store.requests <= 5
