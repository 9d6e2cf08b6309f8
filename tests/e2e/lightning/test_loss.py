"""A fit goes on without the ranks that it has lost: each sample of each epoch is seen once."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import pytest

from tests.harness.lightning.account import how_it_ended, resumed_steps, trained_on
from tests.harness.lightning.setting import Fault, Setting
from tests.harness.process.job import Job

TIMEOUTS = {"soft_timeout": 2, "hard_timeout": 4}
STEPS = {"every_n_train_steps": 3, "save_top_k": -1}
BASE = Setting(samples=120, checkpoint=STEPS)  # 10 steps an epoch on 3 ranks, 15 on 2, 30 on one


def kill(rank: int, step: int, attempt: int = 0) -> Fault:
    return Fault(rank, step, "kill", attempt=attempt)


def base(**changes: Any) -> Setting:
    return dataclasses.replace(BASE, **changes)


TENTH = {"every_n_train_steps": 10, "save_top_k": -1}
CASES = {
    "in the middle of an epoch": ((kill(1, 5),), BASE, {0: 0, 1: 3}),
    "rank 0": ((kill(0, 5),), BASE, {0: 0, 1: 3}),
    "at the end of an epoch": ((kill(2, 10),), base(checkpoint=TENTH), {0: 0, 1: 10}),
    "from the end of an epoch": ((kill(2, 12),), base(checkpoint={"every_n_epochs": 1}), {0: 0, 1: 10}),
    "two of three at once, or nearly so": ((kill(0, 5, attempt=None), kill(2, 5, attempt=None)), BASE, None),
    "one after the other": ((kill(1, 5), kill(2, 7, attempt=1)), BASE, {0: 0, 1: 3, 2: 6}),
    "without a checkpoint": ((kill(1, 5),), base(checkpoint=None), {0: 0, 1: 0}),
    "with workers": ((kill(1, 5),), base(loader={"num_workers": 1}), {0: 0, 1: 3}),
    "with samples that the ranks cannot share": ((kill(1, 8),), base(samples=113), {0: 0, 1: 6}),
    "with a sampler of the user's": ((kill(1, 5),), base(data="own_sampler"), {0: 0, 1: 3}),
    "a hung process": ((Fault(1, 5, "hang"),), base(options=TIMEOUTS), {0: 0, 1: 3}),
}


@pytest.mark.parametrize("case", CASES)
def test_each_sample_is_seen_once_without_the_lost_ranks(case, run):
    faults, setting, resumed = CASES[case]
    job = run(dataclasses.replace(setting, faults=faults), world=3)
    lost = {fault.rank for fault in faults}
    ended = {rank for rank, code in job.codes.items() if code}
    assert ended == lost, f"{job.codes}: {job.errors(min({0, 1, 2} - lost))}"
    if resumed is not None:
        assert resumed_steps(job) == resumed
    _assert_each_sample_was_seen_once(job, setting)
    ends = how_it_ended(job)
    assert set(ends) == set(range(3 - len(lost)))
    assert len({(step, epoch, weights) for step, epoch, weights, _ in ends.values()}) == 1
    assert {epoch for _, epoch, _, _ in ends.values()} == {2}


def _assert_each_sample_was_seen_once(job: Job, setting: Setting) -> None:
    for epoch, seen in trained_on(job).items():
        assert set(seen) == set(range(setting.samples)), (epoch, Counter(seen.values()))
        padding = sum(seen.values()) - setting.samples
        assert padding <= 2, (epoch, padding)  # to a multiple of the replicas, as the sampler does


def test_a_rank_that_can_be_woken_is_not_lost(run, undisturbed):
    setting = Setting(faults=(Fault(1, 8, "sleep"),), options=TIMEOUTS)
    job = run(setting)
    assert job.codes == {0: 0, 1: 0}, job.errors(1)
    assert resumed_steps(job) == {0: 0, 1: 5}
    assert how_it_ended(job) == undisturbed(setting)
