"""Trainings on megatron-core from memory: no fault costs a step or a bit of the undisturbed run."""

from __future__ import annotations

import functools
import json
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.harness.megatron.job import MegatronJob
from tests.harness.megatron.plan import Plan
from tests.harness.process.job import Template

WORKER = "tests.harness.megatron.live_training"
STEPS = 16
POINTS = (
    "build", "resumed", "data", "forward", "ready", "advance", "gather", "gathered", "committed", "tail",
)  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "dp": {"dropout": 0.1},
    "tp": {"tp": 2, "dropout": 0.1},
    "pp": {"pp": 2},
    "distributed optimizer": {"distributed": True},
    "dp bf16": {"precision": "bf16"},
    "distributed bf16": {"distributed": True, "precision": "bf16"},
    "dp fp16": {"precision": "fp16"},
    "tp fp16": {"tp": 2, "precision": "fp16", "dropout": 0.1},
}

Train = Callable[..., MegatronJob]


@pytest.fixture
def train(megatron: Template, tmp_path: Any) -> Iterator[Train]:
    jobs: list[MegatronJob] = []

    def run(shape: str, world: int = 2, active: int | None = None, faults: dict[str, Any] | None = None) -> MegatronJob:
        plan = Plan(**SHAPES[shape], steps=STEPS, live=True, active=active, soft=20.0, hard=25.0)
        job = MegatronJob(megatron, tmp_path / f"job-{len(jobs)}", plan, world=world)
        job.more = {"NVRX_TEST_LIVE": json.dumps({"points": POINTS, **(faults or {})})}
        jobs.append(job)
        return job.begin(WORKER).finish(120)

    yield run
    megatron.sweep()
    for job in jobs:
        job.clear()


def ends(job: MegatronJob) -> dict[int, dict[str, Any]]:
    names = ("weights", "state", "random", "python", "schedule", "scales", "groups")
    return {line["rank"]: {name: line[name] for name in names} for line in job.lines("end")}


def check_steps(job: MegatronJob) -> None:
    """Each restart goes on at one step on all ranks, and no earlier than the last one; no process does a step twice."""
    for rank in range(job.world):
        done = [line["step"] for line in job.lines("step", initial_rank=rank)]
        assert done == sorted(set(done)), f"rank {rank}: {done}"
    resumed: dict[int, set[int | None]] = {}
    for line in job.lines("resumed"):
        resumed.setdefault(line["iteration"], set()).add(line["step"])
    assert all(len(each) == 1 for each in resumed.values()), resumed
    firsts = [next(iter(resumed[iteration])) or 0 for iteration in sorted(resumed)]
    assert firsts == sorted(firsts), firsts


@pytest.mark.parametrize("shape", SHAPES)
def test_exceptions_at_any_point_cost_no_step_and_no_bit(train: Train, shape: str) -> None:
    undisturbed = train(shape)
    job = train(shape, faults={"faults": 8, "seed": 1})
    assert set(job.codes.values()) == {0}, job.told()
    assert len(job.lines("injected")) >= 6, job.told()
    check_steps(job)
    assert ends(job) == ends(undisturbed)
