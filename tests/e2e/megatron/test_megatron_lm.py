"""An unmodified pretrain_gpt.py of Megatron-LM, TP=2 on CPU and gloo, by the flag of Megatron-LM itself.

NVRX_TEST_MEGATRON_LM names a checkout; Megatron-LM is on no package index and is not kept here.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from statistics import median

import pytest

from tests.harness.megatron.job import MegatronLMJob, Train
from tests.harness.megatron.plan import Plan
from tests.harness.process.job import Template
from tests.harness.process.workers.record import HELD

TREE = os.environ.get("NVRX_TEST_MEGATRON_LM", "")
pytestmark = pytest.mark.skipif(not TREE, reason="NVRX_TEST_MEGATRON_LM names no checkout of Megatron-LM")
LIMIT = 300
FROM_CHECKPOINTS = ("--nvrx-live-state", "off")
SCHEDULE = (
    "--train-iters", "10", "--lr-decay-style", "cosine", "--lr-warmup-iters", "2", "--min-lr", "1e-5",
    "--hidden-dropout", "0.1", "--eval-interval", "4", "--eval-iters", "2",
)  # fmt: skip
LIVE = {
    "tensor parallel": (),
    "data parallel, distributed optimizer": ("--tensor-model-parallel-size", "1", "--use-distributed-optimizer"),
    "pipeline": ("--tensor-model-parallel-size", "1", "--pipeline-model-parallel-size", "2"),
}
OWN_THREADS = 4
"""A rank has at most so many more than at its first entry; a process group would have eight."""


def test_a_fault_restarts_pretrain_and_the_losses_are_those_of_the_undisturbed_run(train: Train) -> None:
    undisturbed = train()
    assert undisturbed.codes == {0: 0, 1: 0}, undisturbed.told()
    job = train(*FROM_CHECKPOINTS, faults="1:4=exception")
    assert job.codes == {0: 0, 1: 0}, job.told()
    assert len(job.entered(1)) == 2, job.told()
    assert not job.entered(2), job.told()
    assert job.last_losses() == {key: loss for key, loss in undisturbed.last_losses().items() if key[1] >= 2}
    injected = job.lines("fault_injected")[0]["at"]
    print(f"fault to pretrain {[line['at'] - injected for line in job.entered(1)]}")


@pytest.mark.parametrize("how", [(), FROM_CHECKPOINTS], ids=["from memory", "from checkpoints"])
def test_twenty_restarts_hold_no_more_than_the_first(train: Train, how: tuple[str, ...]) -> None:
    """A fault at each third step, after the checkpoint of the second; a few threads may be on their way out.

    What is in memory has the process groups of the ended iteration, until the next one has set up its model.
    """
    faults = ",".join(f"1:{call}=exception" for call in range(3, 63, 3))
    job = train("--train-iters", "46", "--save-interval", "1", *how, faults=faults)
    assert job.codes == {0: 0, 1: 0}, job.told()
    for rank in ("0", "1"):
        entered = [line for number in range(21) for line in job.entered(number) if line["rank"] == rank]
        assert len(entered) == 21, job.told()
        print(f"rank {rank}: {[(line['pages'], line['threads'], line['files']) for line in entered]}")
        early, late = ({name: median(line[name] for line in part) for name in (*HELD, "pages")}
                       for part in (entered[2:9], entered[14:]))  # fmt: skip
        assert all(late[name] <= early[name] for name in HELD), (early, late)
        first = entered[0 if how else 1]
        assert late["threads"] <= first["threads"] + OWN_THREADS, (first, late)
        assert late["pages"] <= early["pages"] * 1.05, (early, late)
        assert all(line["groups"] == [] for line in entered[1:])


def test_a_lost_rank_0_is_replaced_by_a_spare(train: Train) -> None:
    job = train("--inprocess-active-world-size", "2", faults="0:4=kill", world=3)
    assert job.codes == {0: -signal.SIGKILL, 1: 0, 2: 0}, job.told()
    assert sorted(line["rank"] for line in job.entered(1)) == ["0", "1"], job.told()


def test_rank_monitors_and_restarts_in_process_go_together(plain: Template, tmp_path: Path) -> None:
    job = MegatronLMJob(plain, tmp_path / "job", Plan(), world=2, store=False)
    try:
        words = ("--inprocess-restart", "--enable-ft-package", "--calc-ft-timeouts")
        job.train(TREE, *words, faults="1:4=exception", launched=("--nproc-per-node", "2")).finish(LIMIT)
        assert set(job.codes.values()) == {0}, job.errors("launcher")
        assert len(job.entered(1)) == 2, job.errors("launcher")
        assert not job.entered(2), job.errors("launcher")
        assert (job.directory / "saves" / "ft_state.json").read_text().startswith("{")
    finally:
        plain.sweep()
        job.clear()


@pytest.mark.parametrize("shape", LIVE)
def test_from_memory_no_step_and_no_bit_is_lost(train: Train, shape: str) -> None:
    """Faults before and in a save, at the begin of a step, in the optimizer and behind it; no checkpoint is loaded."""
    words = (*SCHEDULE, *LIVE[shape])
    undisturbed = train(*words, *FROM_CHECKPOINTS, saves=False)
    assert undisturbed.codes == {0: 0, 1: 0}, undisturbed.told()
    faults = "0:4@save=exception,1:6=exception,0:8@advance=exception,1:9@committed=exception"
    job = train(*words, "--save-interval", "4", faults=faults)
    assert job.codes == {0: 0, 1: 0}, job.told()
    assert len(job.lines("fault_injected")) == 4, job.told()
    for found in (MegatronLMJob.losses, MegatronLMJob.states):
        mine, expected = found(job), found(undisturbed)
        assert mine == {step: each for step, each in expected.items() if step in mine}
    for rank in ("0", "1"):
        done = [line["step"] for line in job.lines("step", rank=rank)]
        assert done == sorted(set(done)), f"rank {rank}: {done}"
        assert set(range(10)) - set(done) <= {6, 7}, "those that were interrupted behind their votes"
    firsts = {number: job.lines("step", iteration=number)[0]["step"] for number in (1, 2, 4)}
    assert firsts == {1: 4, 2: 5, 4: 8}, "the one of iteration 3 is interrupted"
    saved = {path.name for path in (job.directory / "saves").glob("iter_*")}
    assert saved == {"iter_0000004", "iter_0000008", "iter_0000010"}, "the interrupted save was done once more"


def test_a_failure_that_comes_up_again_from_memory_is_followed_by_a_checkpoint(train: Train) -> None:
    """The third one would end the job; the step after it is kept in memory again."""
    words = (*SCHEDULE, "--hidden-dropout", "0")  # a load puts the random numbers of a CPU back before it draws some
    undisturbed = train(*words, saves=False)
    job = train(*words, faults="1:6=exception,1:7=exception,0:10=exception")
    assert job.codes == {0: 0, 1: 0}, job.told()
    firsts = {number: job.lines("step", iteration=number)[0]["step"] for number in (2, 3)}
    assert firsts == {2: 4, 3: 6}
    assert job.losses() == undisturbed.losses()
