"""A hang in many shapes: the line names the right ranks and the right place, and nobody where nobody is to blame."""

from __future__ import annotations

import json
import re

import pytest

from tests.harness.process.job import Job
from tests.harness.process.workers.hang_shapes import ENDS_A_RANK, SHAPES, WORLD, Shape

from .conftest import Launch

MODULE = "tests.harness.process.workers.hang_shapes"
SHORT = ("dead_worker", "subgroups", "holds_gil", "pipeline", "two_at_once", "all_sleep", "each_from_the_next")
"""The shapes in each run of the tests."""


def play(prepare: Launch, names: list[str], **settings: float) -> Job:
    settings = {"soft_timeout": 1.0, "hard_timeout": 4.0} | settings
    job = prepare(world=WORLD)
    job.start(MODULE, NVRX_TEST_HANGS=json.dumps(names), NVRX_TEST_SETTINGS=json.dumps(settings))
    return job.finish(30 + 8 * len(names))


def wrong(job: Job, iteration: int, shape: Shape) -> str:
    """What is wrong with the verdict of an iteration; "" for nothing."""
    told = job.events("hang_verdict", iteration=iteration)
    if len(told) != 1:
        return f"{len(told)} verdicts"
    (verdict,) = told
    lines = [line for rank in range(WORLD) for line in job.errors(rank).splitlines() if verdict["sentence"] in line]
    places = re.findall(r"(?:stands|is) at [\w.]+:\d+ in (\w+)", verdict["sentence"])
    is_right = (
        tuple(verdict["ranks"]) == shape.culprits
        and verdict["outcome"] == shape.outcome
        and (not shape.places or (len(places) == len(shape.culprits) and set(places) <= set(shape.places)))
        and re.search(shape.says, verdict["sentence"])
        and len(lines) == len(job.events("hang_verdict", sentence=verdict["sentence"]))
    )
    return "" if is_right else f"{verdict['outcome']} {verdict['ranks']} in {len(lines)} lines: {verdict['sentence']}"


def assert_all_right(job: Job, names: list[str]) -> None:
    shapes = SHAPES | ENDS_A_RANK
    found = {name: text for number, name in enumerate(names) if (text := wrong(job, number, shapes[name]))}
    for name, text in found.items():
        print(f"{name}: {text}")
    assert not found


def test_the_line_names_who_hangs_and_where(prepare: Launch) -> None:
    names = list(SHORT)
    assert_all_right(play(prepare, names), names)


@pytest.mark.nightly
def test_the_line_names_who_hangs_and_where_in_every_shape(prepare: Launch) -> None:
    names = list(SHAPES)  # the end of a loader, interrupted, waits for its workers for 5 s
    assert_all_right(play(prepare, names, hard_timeout=15.0), names)


def test_a_stopped_rank_is_named_before_it_is_killed(prepare: Launch) -> None:
    names = ["stopped"]
    job = play(prepare, names, hard_timeout=3.0, termination_grace_time=0.2)
    assert_all_right(job, names)
    (verdict,) = job.events("hang_verdict")
    (death,) = job.events("fault", interruption="HARD_TIMEOUT")
    assert verdict["monotonic"] < death["monotonic"]
