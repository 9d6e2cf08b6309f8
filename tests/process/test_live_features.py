"""What a step changes besides parameters, in trainings from memory: after faults, each part of it is as without."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from tests.harness.process.job import Job, Template

from .conftest import Launch

WORKER = "tests.harness.process.workers.live_features"
ORDINARY = ("what", "at", "call", "pid", "initial_rank")


@pytest.fixture
def template(live_template: Template) -> Template:
    return live_template


def trained(
    prepare: Launch, training: str, *, world: int = 2, faults: list[list[Any]] | None = None, **more: int
) -> Job:
    plan = json.dumps({"training": training, "faults": faults or [], **more})
    return prepare(world=world).start(WORKER, NVRX_TEST_FEATURES=plan).finish(90)


def ends(job: Job) -> dict[tuple[int, str], Any]:
    return {(line["rank"], key): each for line in job.lines("end") for key, each in line.items() if key not in ORDINARY}


def steps(job: Job) -> dict[tuple[int, int], dict[str, Any]]:
    """What each step was done with, and what came of it, by rank and step."""
    lines = job.lines("trained")
    assert len(lines) == len({(line["rank"], line["step"]) for line in lines}), "a step was done twice"
    left_out = (*ORDINARY, "recovered")
    return {
        (line["rank"], line["step"]): {key: each for key, each in line.items() if key not in left_out} for line in lines
    }


def recovered(job: Job) -> set[int]:
    return {line["step"] for line in job.lines("trained") if line["recovered"]}


@pytest.fixture
def undisturbed(prepare: Launch) -> Job:
    job = trained(prepare, "mixed precision")
    assert set(job.codes.values()) == {0}, job.errors(0)
    overflowed = {line["step"] for line in job.lines("trained") if not line["stepped"]}
    assert overflowed == {5, 11}, "an overflow is a commit that changes no weight"
    return job


def test_average_scaler_accumulation_and_workers_are_as_without_faults(prepare: Launch, undisturbed: Job) -> None:
    """Built on the meta device; interrupted between two batches of a step, and in the votes of steps that overflow."""
    points = [["between", 3], ["voted", 5], ["committed", 1], ["voted", 6], ["advance", 2], ["ready", 2]]
    faults = [[number % 2, "exception", *each] for number, each in enumerate(points)]
    disturbed = trained(prepare, "mixed precision", faults=faults)
    assert set(disturbed.codes.values()) == {0}, disturbed.errors(0)
    assert [line["point"] for line in disturbed.lines("injected")] == [point for point, _ in points]
    assert {5, 11} <= recovered(disturbed)
    assert steps(disturbed) == steps(undisturbed)
    assert ends(disturbed) == ends(undisturbed)


def test_a_replacement_gets_average_scaler_and_position(prepare: Launch, undisturbed: Job) -> None:
    faults = [[1, "kill", "between", 8], [0, "kill", "ready", 3]]
    disturbed = trained(prepare, "mixed precision", world=4, faults=faults)
    assert sorted(disturbed.codes.values()) == [-signal.SIGKILL, -signal.SIGKILL, 0, 0], disturbed.codes
    assert steps(disturbed) == steps(undisturbed)
    assert ends(disturbed) == ends(undisturbed)


def test_two_optimizers_take_turns_as_without_faults(prepare: Launch) -> None:
    undisturbed = trained(prepare, "adversarial")
    assert {tuple(line["stepped"]) for line in undisturbed.lines("trained")} == {(True, False), (False, True)}
    points = [["ready", 4], ["voted", 3], ["committed", 1], ["voted", 3], ["ready", 1], ["stepped 0", 2], ["ready", 2]]
    faults = [[number % 2, "exception", *each] for number, each in enumerate(points)]
    disturbed = trained(prepare, "adversarial", faults=faults)
    assert set(disturbed.codes.values()) == {0}, disturbed.errors(0)
    assert len(disturbed.lines("injected")) == len(points)
    assert {step % 2 for step in recovered(disturbed)} == {0, 1}
    # What one rank has torn between its two optimizers, it has received.
    torn = steps(undisturbed).keys() - steps(disturbed).keys()
    assert [rank for rank, _ in torn] == [1]
    assert steps(disturbed) == {key: each for key, each in steps(undisturbed).items() if key not in torn}
    assert ends(disturbed) == ends(undisturbed)


def test_shards_of_a_model_and_its_average_are_as_without_faults(prepare: Launch) -> None:
    """With overflows, and faults between two batches of a step, of which the first one is not reduced."""
    undisturbed = trained(prepare, "sharded", shards=2)
    assert set(undisturbed.codes.values()) == {0}, undisturbed.errors(0)
    assert {line["step"] for line in undisturbed.lines("trained") if not line["stepped"]} == {5, 11}
    points = [["between", 3], ["voted", 5], ["committed", 1], ["voted", 6], ["advance", 2], ["ready", 2]]
    faults = [[number % 2, "exception", *each] for number, each in enumerate(points)]
    disturbed = trained(prepare, "sharded", shards=2, faults=faults)
    assert set(disturbed.codes.values()) == {0}, disturbed.errors(0)
    assert [line["point"] for line in disturbed.lines("injected")] == [point for point, _ in points]
    assert {5, 11} <= recovered(disturbed)
    assert steps(disturbed) == steps(undisturbed)
    assert ends(disturbed) == ends(undisturbed)


def test_a_replacement_gets_its_shard_of_a_model_and_its_average(prepare: Launch) -> None:
    """Of two replicas of two shards each, ranks are lost in a step, and behind its vote."""
    undisturbed = trained(prepare, "sharded", world=4, shards=2, active=4)
    assert set(undisturbed.codes.values()) == {0}, undisturbed.errors(0)
    assert {line["step"] for line in undisturbed.lines("trained") if not line["stepped"]} == {5, 11}
    faults = [[1, "kill", "between", 4], [2, "exception", "ready", 1], [2, "kill", "voted", 2]]
    disturbed = trained(prepare, "sharded", world=6, shards=2, active=4, faults=faults)
    assert sorted(disturbed.codes.values()) == [-signal.SIGKILL] * 2 + [0] * 4, disturbed.codes
    assert len(disturbed.lines("injected")) == 3
    assert None not in {line["step"] for line in disturbed.lines("resumed") if line["iteration"]}
    assert ends(disturbed) == ends(undisturbed)
    done = steps(disturbed)
    assert done == {key: each for key, each in steps(undisturbed).items() if key in done}


def test_two_optimizers_of_shards_take_turns_as_without_faults(prepare: Launch) -> None:
    undisturbed = trained(prepare, "adversarial", shards=2)
    assert {tuple(line["stepped"]) for line in undisturbed.lines("trained")} == {(True, False), (False, True)}
    points = [["ready", 4], ["voted", 3], ["committed", 1], ["voted", 4], ["ready", 1]]
    faults = [[number % 2, "exception", *each] for number, each in enumerate(points)]
    disturbed = trained(prepare, "adversarial", shards=2, faults=faults)
    assert set(disturbed.codes.values()) == {0}, disturbed.errors(0)
    assert len(disturbed.lines("injected")) == len(points)
    assert recovered(disturbed)
    assert steps(disturbed) == steps(undisturbed)
    assert ends(disturbed) == ends(undisturbed)
