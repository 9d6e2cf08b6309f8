"""Under plain torchrun, which ends all ranks when one ends: faults that end no process are survived."""

from __future__ import annotations

import pytest

from tests.harness.process.job import TRAIN, Job
from tests.harness.process.oracle import assert_no_process_left, assert_restarts, assert_steps, restart

from .conftest import Launch


@pytest.mark.parametrize(
    "collective", [pytest.param(False, marks=pytest.mark.nightly), True], ids=["alone", "in a collective"]
)
def test_exceptions_are_survived_under_torchrun(prepare: Launch, collective: bool) -> None:
    job = prepare({(1, 0, 3): "exception", (0, 1, 3): "exception"}, world=2, collective=collective)
    options = ["--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", str(job.port), "-m", TRAIN]
    job.run_command("torchrun", "-m", "torch.distributed.run", *options)
    job.finish(120)
    assert job.codes == {-1: 0}
    assert_restarts(job, [restart("EXCEPTION", by=[1]), restart("EXCEPTION", by=[0])])
    assert_steps(job, call=0)
    assert len(job.lines("done", result=2)) == 2
    assert_no_process_left(job)


def run_agent(job: Job, node: int, when: str) -> None:
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{job.port}", "--rdzv-id", "agents"]
    options = ["--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "1", "--max-restarts", "2", *rendezvous]
    command = ["-m", "torch.distributed.run", *options, "-m", "tests.harness.process.workers.agents"]
    job.run_command(f"torchrun-{node}", *command, key=-1 - node, NVRX_TEST_KILL=when)


@pytest.mark.parametrize("when", ["function", pytest.param("entry", marks=pytest.mark.nightly)])
def test_ranks_of_two_agents_rendezvous_again_after_one_has_restarted(prepare: Launch, when: str) -> None:
    job = prepare(world=2)
    job.start_store()
    for node in (0, 1):
        run_agent(job, node, when)
    job.finish(120)
    assert job.codes == {-1: 0, -2: 0}, job.errors("torchrun-0") + job.errors("torchrun-1")
    assert [line["result"] for line in job.lines("done")] == [1, 1]
    last = {line["rank"]: line["restarts"] for line in job.lines("life")}
    assert len(job.lines("life")) == 4
    assert sorted(last.values()) == ["0", "1"], "the agents count alike, and the test shows nothing"
    assert_no_process_left(job)
