"""State in memory over NCCL: after faults, the bits of the training without them, and no step is done again."""

from __future__ import annotations

import pytest

from tests.harness.gpu.case import NCCL
from tests.harness.gpu.live_rank import FAILS_EVERY
from tests.harness.process.job import Job
from tests.process.conftest import Launch

WORLD, RESTARTS = 2, 20


def trained(prepare: Launch, kind: str, restarts: int) -> Job:
    job = prepare(world=WORLD)
    more = {"NVRX_TEST_TRAINING": kind, "NVRX_TEST_RESTARTS": str(restarts), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    job.start("tests.harness.gpu.live_rank", **NCCL, **more).finish(100)
    assert job.codes == dict.fromkeys(range(WORLD), 0), job.errors(0)[-3000:] + job.errors(1)[-3000:]
    return job


def digests(job: Job) -> dict[object, object]:
    return {line["initial_rank"]: line["digest"] for line in job.lines("done")}


@pytest.mark.parametrize("kind", ["ddp", "fsdp2", "fused"])
def test_no_step_is_lost(prepare: Launch, kind: str) -> None:
    undisturbed, disturbed = trained(prepare, kind, 0), trained(prepare, kind, RESTARTS)
    print(kind, "ms of a commit", *(round(line["commit_ms"], 2) for line in undisturbed.lines("done")))
    assert digests(disturbed) == digests(undisturbed)
    assert len(disturbed.lines("fault")) == RESTARTS
    began = disturbed.lines("began", initial_rank=0)
    steps = [FAILS_EVERY * iteration + (iteration % 3 == 0 and iteration > 0) for iteration in range(RESTARTS + 1)]
    assert [line["step"] for line in began] == steps
    memory = [line["allocated"] for line in began]
    print(kind, "MiB", [each >> 20 for each in memory])
    assert max(memory[-5:]) <= max(memory[2:7])
