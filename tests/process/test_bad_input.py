"""What cannot work is refused before anything starts, with a text that says what is wrong."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

import pytest

from tests.harness.process.job import Job
from tests.harness.process.oracle import assert_no_process_left
from tests.harness.process.workers.record import HELD

from .conftest import Launch

REFUSE = "tests.harness.process.workers.refuse"


def refusal(job: Job, mistake: str = "", environment: Mapping[str, str | None] | None = None) -> dict[str, Any]:
    """The one refusal of a job of one rank, of which nothing is left."""
    job.start(REFUSE, NVRX_TEST_MISTAKE=mistake, **(environment or {})).finish(40)
    assert job.lines("enter") == [], "the function ran"
    (refused,), (held,) = job.lines("refused"), job.lines("held")
    assert {name: held[name] for name in HELD} == dict.fromkeys(HELD, 0)
    assert_no_process_left(job)
    return refused


def alone(prepare: Launch) -> Job:
    return prepare(world=1, store=False)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"WORLD_SIZE": None}, ["WORLD_SIZE"]),
        ({"RANK": None}, ["RANK"]),
        ({"RANK": "first"}, ["RANK", "first"]),
        ({"RANK": "5", "WORLD_SIZE": "2"}, ["RANK", "5", "2"]),
        ({"RANK": "-1"}, ["RANK", "-1"]),
        ({"WORLD_SIZE": "0"}, ["WORLD_SIZE", "0"]),
        ({"WORLD_SIZE": "two"}, ["WORLD_SIZE", "two"]),
    ],
    ids=["no WORLD_SIZE", "no RANK", "RANK a word", "RANK too large", "RANK below 0", "no ranks", "WORLD_SIZE a word"],
)
def test_half_an_environment_is_refused(prepare: Launch, environment: dict[str, str | None], words: list[str]) -> None:
    refused = refusal(alone(prepare), environment=environment)
    assert "ValueError" in refused["kinds"]
    assert all(word in refused["text"] for word in words), refused["text"]


def test_a_group_that_is_initialised_already_is_refused(prepare: Launch) -> None:
    refused = refusal(alone(prepare), "group")
    assert "ValueError" in refused["kinds"]
    assert "torch.distributed.is_initialized()" in refused["text"]


def test_a_store_class_that_is_no_store_mixin_is_refused(prepare: Launch) -> None:
    refused = refusal(alone(prepare), "factory")
    assert "TypeError" in refused["kinds"]
    assert "store_factory" in refused["text"]
    assert "StoreMixin" in refused["text"]


def test_a_port_in_use_is_named(prepare: Launch) -> None:
    job = alone(prepare)
    with socket.create_server(("127.0.0.1", job.port + 1)):
        refused = refusal(job)
    assert str(job.port + 1) in refused["text"]
    assert refused["seconds"] < 20


def test_a_port_that_accepts_and_never_answers_is_named(prepare: Launch) -> None:
    job = alone(prepare)
    with socket.create_server(("127.0.0.1", job.port + 1)):
        refused = refusal(job, environment={"NVRX_STORE_ENDPOINT": f"127.0.0.1:{job.port + 1}"})
    assert "127.0.0.1" in refused["text"]
    assert str(job.port + 1) in refused["text"]
    assert refused["seconds"] < 20
