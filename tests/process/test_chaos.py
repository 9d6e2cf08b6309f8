"""Random faults of all kinds on a training as users write it, from the first second of each job on: nothing is lost."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path

import pytest

from tests.harness.process import oracle
from tests.harness.process.job import Job
from tests.harness.process.workers.faults import CHAOS, LETHAL, WORLD, held_by_group, plan_of
from tests.harness.process.workers.record import HELD

from .conftest import Launch

STEPS = 10
WRAPPER = {"soft_timeout": 5.0, "hard_timeout": 15.0, "termination_grace_time": 0.2}
HANGS_AFTER = 240.0
"""Seconds for one job: each rank imports the compiler of torch, and two may be ended by the hard timeout."""
NIGHT = [pytest.param(600, marks=pytest.mark.nightly, id=f"600 s, {number} of 10") for number in range(1, 11)]


@pytest.mark.parametrize("seconds", [pytest.param(20, id="20 s"), *NIGHT])
def test_nothing_is_lost(prepare: Launch, seconds: float) -> None:
    first = int(os.environ.get("NVRX_TEST_SEED", random.randrange(1 << 32)))
    end, seed = time.monotonic() + seconds, first
    while time.monotonic() < end:
        print(f"NVRX_TEST_SEED={seed}: {plan_of(seed)}")
        job = prepare(world=WORLD)
        chaos = json.dumps({"seed": seed, "steps": STEPS, "wrapper": WRAPPER})
        job.start("tests.harness.process.workers.ddp", **{CHAOS: chaos}).finish(HANGS_AFTER)
        assert_nothing_lost(job)
        seed += 1
    assert seed > first


def assert_nothing_lost(job: Job) -> None:
    injections = job.lines("fault_injected")
    assert injections, "no fault was injected"
    lethal = {line["initial_rank"]: line["kind"] for line in injections if line["kind"] in LETHAL}
    for rank, code in job.codes.items():
        assert code in (LETHAL[lethal[rank]] if rank in lethal else (0,)), f"rank {rank} ended with {code}: {lethal}"
    oracle.assert_nothing_left(job)
    oracle.assert_promises(job)
    oracle.assert_ids(job, 0, WORLD - len(lethal), 0)
    oracle.assert_order(job, 0)
    oracle.assert_sections(job)
    assert_one_group_held(job)
    assert_restarts(job, lethal)
    assert_trained(job)


def assert_restarts(job: Job, lethal: dict[int, str]) -> None:
    """Each restart has a fault as its cause, and there are no more of them than faults."""
    ending = [line for line in job.lines("fault_injected") if not line["kind"].startswith(("monitor", "thread"))]
    told = oracle.told_restarts(job, 0)
    assert len(told) <= len(ending), f"{len(told)} restarts for {len(ending)} faults"
    for iteration, (line, *_) in told.items():
        faulty = {line["initial_rank"] for line in ending if line["iteration"] < iteration}
        assert set(line["culprits"]) <= faulty, f"restart {iteration} blames {line['culprits']}: {line['cause']}"
    assert {rank for lines in told.values() for line in lines for rank in line["lost"]} == set(lethal)


def assert_one_group_held(job: Job) -> None:
    """torch keeps the group of the first DDP of a process, with or without the wrapper; all others are gone.

    Some of its ranks may be lost by now: rank 0 still has their connections to its store.
    """
    most = held_by_group(WORLD)
    for line in job.lines("done"):
        held = {name: line["after"][name] - line["before"][name] for name in HELD}
        within = all(count <= most.get(name, 0) for name, count in held.items())
        assert within, f"rank {line['initial_rank']} holds {held}: {line['open']}"


def assert_trained(job: Job) -> None:
    """Those that are left came to the last step, each step from the last checkpoint on once."""
    last = max(line["iteration"] for line in job.lines("enter"))
    for done in job.lines("done"):
        rank = done["initial_rank"]
        (resumed,) = job.lines("resume", initial_rank=rank, iteration=last)
        steps = [line["step"] for line in job.lines("step", initial_rank=rank, iteration=last)]
        assert steps == list(range(resumed["step"] + 1, max(STEPS, resumed["step"]) + 1)), f"rank {rank} did {steps}"
    assert not list(Path(job.directory / "checkpoints").glob("*.unfinished"))
