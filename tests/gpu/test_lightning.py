"""Lightning's strategies over NCCL: after faults, the weights of the training without them."""

from __future__ import annotations

import pytest

from tests.harness.gpu.case import NCCL
from tests.harness.process.job import Job
from tests.process.conftest import Launch

WORLD, STEPS = 2, 12


def trained(prepare: Launch, strategy: str, restarts: int) -> Job:
    job = prepare(world=WORLD)
    more = {"NVRX_TEST_STRATEGY": strategy, "NVRX_TEST_RESTARTS": str(restarts)}
    job.start("tests.harness.gpu.lightning_rank", **NCCL, **more).finish(100)
    assert job.codes == dict.fromkeys(range(WORLD), 0), job.errors(0)[-3000:] + job.errors(1)[-3000:]
    assert {line["steps"] for line in job.lines("done")} == {STEPS}
    return job


def norms(job: Job) -> dict[int, float]:
    return {line["initial_rank"]: round(line["norm"], 4) for line in job.lines("done")}


@pytest.mark.parametrize(("strategy", "restarts"), [("ddp", 8), ("fsdp", 5), ("fsdp2", 5)])
def test_the_weights_are_those_of_an_undisturbed_training(prepare: Launch, strategy: str, restarts: int) -> None:
    undisturbed, disturbed = trained(prepare, strategy, 0), trained(prepare, strategy, restarts)
    print(strategy, norms(undisturbed), norms(disturbed))
    memory = [line["allocated"] for line in disturbed.lines("began", initial_rank=0)]
    print(strategy, "restarts", len(disturbed.lines("fault")), "MiB", [each >> 20 for each in memory])
    assert norms(disturbed) == norms(undisturbed)
    assert len(disturbed.lines("fault")) == restarts
    assert max(memory[-2:]) <= max(memory[1:3]) + (4 << 20)
