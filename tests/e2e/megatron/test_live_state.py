"""Trainings on megatron-core from memory: no fault costs a step or a bit of the undisturbed run."""

from __future__ import annotations

import functools
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
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
    "distributed": {"distributed": True},
    "dp bf16": {"precision": "bf16"},
    "distributed bf16": {"distributed": True, "precision": "bf16"},
    "dp fp16": {"precision": "fp16"},
    "tp fp16": {"tp": 2, "precision": "fp16", "dropout": 0.1},
    "pp bf16": {"pp": 2, "precision": "bf16", "dropout": 0.1},
}
SHORT = ("dp", "tp", "distributed bf16")
CASES = [
    *((shape, 1) for shape in SHORT),
    *(pytest.param(shape, seed, marks=pytest.mark.nightly) for shape in SHAPES for seed in range(2, 12)),
]
LIMIT = 90

Train = Callable[..., MegatronJob]


def trained(
    template: Template, folder: Path, shape: str, *, world: int = 2, active: int | None = None, **faults: Any
) -> MegatronJob:
    plan = Plan(**SHAPES[shape], steps=STEPS, active=active, soft=20.0, hard=25.0)
    job = MegatronJob(template, folder, plan, world=world)
    job.more = {"NVRX_TEST_LIVE": json.dumps({"points": POINTS, **faults})}
    job.begin(WORKER).finish(LIMIT)
    return job


@pytest.fixture(scope="module")
def undisturbed(megatron: Template, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Train]:
    """The run of a shape that nothing disturbs, once for all tests."""

    @functools.cache
    def run(shape: str) -> MegatronJob:
        job = trained(megatron, tmp_path_factory.mktemp("undisturbed") / "job", shape)
        assert job.codes == {0: 0, 1: 0}, job.told()
        return job

    yield run
    megatron.sweep()


@pytest.fixture
def train(megatron: Template, tmp_path: Path) -> Iterator[Train]:
    jobs: list[MegatronJob] = []

    def run(shape: str, **more: Any) -> MegatronJob:
        jobs.append(trained(megatron, tmp_path / f"job-{len(jobs)}", shape, **more))
        return jobs[-1]

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
        assert line["refusal"] == ""
        resumed.setdefault(line["iteration"], set()).add(line["step"])
    assert all(len(each) == 1 for each in resumed.values()), resumed
    firsts = [next(iter(resumed[iteration])) or 0 for iteration in sorted(resumed)]
    assert firsts == sorted(firsts), firsts


def test_a_fault_before_the_first_step_leaves_nothing_to_do_behind_one(train: Train, undisturbed: Train) -> None:
    job = train("dp", faults=2, seed=1, kinds=["exception"], points=["resumed"])
    assert set(job.codes.values()) == {0}, job.told()
    assert {(line["step"], line["behind"]) for line in job.lines("resumed")} == {(None, False), (0, False)}
    assert ends(job) == ends(undisturbed("dp"))


@pytest.mark.parametrize(("shape", "seed"), CASES)
def test_faults_at_any_point_cost_no_step_and_no_bit(train: Train, undisturbed: Train, shape: str, seed: int) -> None:
    kinds = ["exception", "asynchronous"] if seed % 2 == 0 else ["exception"]
    job = train(shape, faults=8, seed=seed, kinds=kinds)
    assert set(job.codes.values()) == {0}, job.told()
    assert job.lines("injected"), job.told()
    check_steps(job)
    assert ends(job) == ends(undisturbed(shape))
    assert "was changed outside of commit()" not in job.told()


@pytest.mark.parametrize("shape", ["tp", pytest.param("dp", marks=pytest.mark.nightly)])
def test_a_spare_takes_the_place_of_a_lost_rank_with_its_state(train: Train, undisturbed: Train, shape: str) -> None:
    """With tensor parallelism, a spare rank needs what only the lost rank had: a checkpoint, here the beginning."""
    job = train(shape, world=3, active=2, faults=1, seed=2, kinds=["kill"], points=["forward", "ready"])
    assert sorted(job.codes.values()) == [-signal.SIGKILL, 0, 0], job.told()
    (resumed,) = {line["step"] for line in job.lines("resumed", iteration=1)}
    assert ends(job) == ends(undisturbed(shape))
    if shape == "dp":
        check_steps(job)
        assert resumed is not None
    else:
        assert resumed is None
        assert job.told().count("no rank that trains has tensor parallel rank") == 1, job.told()


@pytest.mark.nightly
def test_the_lost_part_of_a_distributed_optimizer_is_missed_in_a_line(train: Train, undisturbed: Train) -> None:
    job = train("distributed bf16", world=3, active=2, faults=1, kinds=["kill"], points=["forward"])
    assert sorted(job.codes.values()) == [-signal.SIGKILL, 0, 0], job.told()
    assert {line["step"] for line in job.lines("resumed", iteration=1)} == {None}
    assert job.told().count("no rank has data parallel rank") == 1, job.told()
    assert ends(job) == ends(undisturbed("distributed bf16"))


@pytest.mark.nightly
def test_without_the_random_numbers_of_a_lost_rank_the_next_restart_goes_on_from_a_checkpoint(
    train: Train, undisturbed: Train
) -> None:
    job = train("dp", world=3, active=2, faults=1, seed=2, kinds=["kill"], points=["forward"], replicating=0)
    assert sorted(job.codes.values()) == [-signal.SIGKILL, 0, 0], job.told()
    assert {line["step"] for line in job.lines("resumed", iteration=2)} == {None}
    assert "no rank has the random numbers of a lost rank" in job.told()
    assert ends(job) == ends(undisturbed("dp"))


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"drifts": True}, "the training loop counts step otherwise than expected"),
        ({"seeds": True}, "data parallel ranks begin with different parameters"),
        ({"stray": 1}, "the optimizer has stepped without begin() of a next step before it"),
        ({"stuck": 0}, "the optimizer has stepped without begin() of a next step before it"),
    ],
    ids=["counts otherwise", "differs", "stray step", "same step"],
)
def test_a_loop_that_cannot_be_kept_trains_to_its_end_and_goes_on_from_checkpoints(
    train: Train, how: dict[str, Any], reason: str
) -> None:
    job = train("dp", faults=1, seed=1, points=["tail"], **how)
    assert set(job.codes.values()) == {0}, job.told()
    assert {line["step"] for line in job.lines("resumed")} == {None}
    assert len(job.lines("injected")) == 1
    assert f"{reason}; restarts go on from checkpoints" in job.told()
    assert len(job.lines("end")) == 2
