"""A fit whose ranks a launcher has started."""

from __future__ import annotations

import tempfile

import pytest

from tests.harness.lightning.account import how_it_ended, resumed_steps, trained_on
from tests.harness.lightning.setting import Fault, Setting
from tests.harness.process.launch import FORKING_LAUNCHER

FIT = "tests.harness.lightning.workers.fit"


def test_under_ft_launcher_rank_0_is_lost_like_any_other(prepare):
    steps = {"every_n_train_steps": 3, "save_top_k": -1}
    setting = Setting(samples=120, faults=(Fault(0, 5, "kill"),), checkpoint=steps, callback=True)
    job = prepare(3, store=False)
    arguments = ["--nproc-per-node", "3", "--max-restarts", "0", "-m", FIT]
    with tempfile.TemporaryDirectory(prefix="nvrx-", dir="/tmp") as runtime:  # the path of a socket is short
        environment = job.environment(NVRX_RUNTIME_DIR=runtime, **setting.written())
        job.pids[0] = job.template.fork(FORKING_LAUNCHER, arguments, environment, job.directory / "launcher")
        job.finish(180)
    assert job.codes == {0: 0}, job.errors("launcher")
    assert resumed_steps(job) == {0: 0, 1: 3}
    assert all(set(seen.values()) == {1} and len(seen) == 120 for seen in trained_on(job).values())


@pytest.mark.nightly
def test_under_torchrun_an_exception_is_survived(prepare, undisturbed):
    setting = Setting(faults=(Fault(1, 13),))
    job = prepare(2, store=False)
    job.run_command(
        "torchrun", "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", FIT, key=0, **setting.written()
    )
    job.finish(180)
    assert job.codes == {0: 0}, job.errors("torchrun")
    assert how_it_ended(job) == undisturbed(setting)
