"""Under plain torchrun, which ends all ranks when one ends: faults that end no process are survived."""

from __future__ import annotations

import pytest

from .conftest import Launch
from .job import TRAIN
from .oracle import assert_no_process_left, assert_restarts, assert_steps, restart


@pytest.mark.parametrize("collective", [False, True], ids=["alone", "in a collective"])
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
