"""Features of an unmodified Megatron-LM, with five faults at random steps of either rank, TP=2 on CPU and gloo.

NVRX_TEST_MEGATRON_LM names a checkout, as for `test_megatron_lm.py`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

import pytest

from tests.harness.megatron.job import APEX, Train

TREE = os.environ.get("NVRX_TEST_MEGATRON_LM", "")
pytestmark = pytest.mark.skipif(not TREE, reason="NVRX_TEST_MEGATRON_LM names no checkout of Megatron-LM")

FAULTS, FARTHEST = 5, 4
STEPS = str(FAULTS * FARTHEST)
LENGTH = ("--train-iters", STEPS)
FEATURES: dict[str, tuple[str, ...]] = {
    "validated results": (*LENGTH, "--rerun-mode", "validate_results"),
    "sequence parallel": (*LENGTH, "--sequence-parallel"),
    "batches that grow": ("--train-samples", "128", "--rampup-batch-size", "2", "2", "24", "--global-batch-size", "8"),
}
HANGS = ("hang_sleep", "hang_gloo")


def faults(seed: str, kinds: Sequence[str]) -> str:
    """Five faults, of these kinds in turn: on one of the two ranks, two to four calls of `train_step` apart."""
    chosen, call, found = random.Random(seed), 0, []
    for number in range(FAULTS):
        call += chosen.randint(2, FARTHEST)
        found.append(f"{chosen.randrange(2)}:{call}={kinds[number % len(kinds)]}")
    return ",".join(found)


@pytest.mark.parametrize("mode", ["auto", "off"])
@pytest.mark.parametrize("feature", FEATURES)
def test_five_exceptions_change_no_loss(train: Train, feature: str, mode: str) -> None:
    check(train, faults(feature, ["exception"]), FEATURES[feature], "--nvrx-live-state", mode)


def test_five_exceptions_beside_a_persistent_writer_change_no_loss(train: Train) -> None:
    how = ("--async-save", "--use-persistent-ckpt-worker", "--nvrx-live-state", "off")
    check(train, faults("writer", ["exception"]), LENGTH, *how)


def test_five_hangs_change_no_loss(train: Train) -> None:
    times = ("--inprocess-soft-timeout", "20", "--inprocess-hard-timeout", "60", "--inprocess-heartbeat-interval", "2")
    check(train, faults("hangs", HANGS), LENGTH, *times)


def check(train: Train, planned: str, training: Sequence[str], *more: str) -> None:
    """The losses are those of a run without faults and checkpoints."""
    also = [APEX] if "--sequence-parallel" in training else []
    undisturbed = train(*training, "--nvrx-live-state", "off", also=also, saves=False)
    assert undisturbed.codes == {0: 0, 1: 0}, undisturbed.told()
    job = train("--save-interval", "1", *training, *more, faults=planned, also=also)
    assert job.codes == {0: 0, 1: 0}, job.told()
    assert len(job.lines("fault_injected")) == FAULTS, (planned, job.told())
    assert {line["iteration"] for line in job.lines("enter")} == set(range(FAULTS + 1)), (planned, job.told())
    assert job.losses() == undisturbed.losses(), planned
