"""FSDP2: the model is sharded in place, and sharded again for the ranks that are left."""

from __future__ import annotations

import dataclasses
import signal

import pytest

from tests.harness.lightning.account import how_it_ended, resumed_steps, trained_on
from tests.harness.lightning.setting import Fault, Setting

SHARDED = Setting(strategy="InProcessModelParallelStrategy")


@pytest.mark.parametrize("checkpoint", [SHARDED.checkpoint, None], ids=["checkpoint", "initial weights"])
def test_a_sharded_model_goes_on_as_if_there_had_been_no_fault(checkpoint, run, undisturbed):
    setting = dataclasses.replace(SHARDED, faults=(Fault(1, 8), Fault(0, 12, attempt=1)), checkpoint=checkpoint)
    job = run(setting)
    assert job.codes == {0: 0, 1: 0}, job.errors(0)
    assert list(resumed_steps(job).values()) == ([0, 5, 10] if checkpoint else [0, 0, 0])
    assert how_it_ended(job) == undisturbed(setting)


def test_a_sharded_model_goes_on_without_a_lost_rank(run):
    steps = {"every_n_train_steps": 3, "save_top_k": -1}
    job = run(dataclasses.replace(SHARDED, faults=(Fault(1, 5, "kill"),), samples=120, checkpoint=steps), world=3)
    assert job.codes == {0: 0, 1: -signal.SIGKILL, 2: 0}, job.errors(0)
    assert resumed_steps(job) == {0: 0, 1: 3}
    assert all(set(seen.values()) == {1} and len(seen) == 120 for seen in trained_on(job).values())
