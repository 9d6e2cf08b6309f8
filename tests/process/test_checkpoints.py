"""The disk fails, or a rank dies while it writes: the last good checkpoint is used, and each step counted once."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.harness.process.job import Job
from tests.harness.process.oracle import assert_checkpoint, assert_nothing_lost, restart

from .conftest import Launch

KILLED = -signal.SIGKILL
HARD = {"soft_timeout": 1.1, "hard_timeout": 2.2, "termination_grace_time": 0.2}
SAVES: dict[str, Any] = {"collective": True, "steps": 8, "save_every": 2, "step_seconds": 0.005}


def folder(job: Job) -> Path:
    """The checkpoints, as the ranks see them: in the mount namespace of the template."""
    return Path(f"/proc/{job.template.pid}/root{job.directory}/checkpoints")


def resumed(job: Job, iteration: int) -> set[int]:
    return {line["step"] for line in job.lines("resume", iteration=iteration)}


@pytest.mark.parametrize(
    ("disk", "words"),
    [("full", ["Errno 28", "No space left on device"]), ("fsync", ["Errno 5", "Input/output error"])],
    ids=["disk full", "fsync fails"],
)
def test_a_disk_that_fails_costs_a_restart_and_names_the_checkpoint(
    launch: Launch, disk: str, words: list[str]
) -> None:
    job = launch({}, disk=disk, **SAVES).finish()
    assert_nothing_lost(job, restart("EXCEPTION", by=[0]))
    message = job.events("restart", iteration=1)[0]["cause"]["message"]
    assert all(word in message for word in (*words, "step-00000004.ckpt")), message
    assert resumed(job, 1) == {2}, "the checkpoint before was not used"
    assert_checkpoint(folder(job), 8)


@pytest.mark.parametrize("damage", ["flip", "truncate", "tear", "empty"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(launch: Launch, damage: str) -> None:
    job = launch({(1, 0, 5): "exception"}, disk=damage, **SAVES).finish()
    assert_nothing_lost(job, restart("EXCEPTION", by=[1]))
    assert resumed(job, 1) == {2}
    assert all("step-00000004.ckpt is damaged" in job.errors(rank) for rank in range(3))
    assert_checkpoint(folder(job), 8)


def test_a_rank_that_dies_in_a_save_leaves_the_checkpoint_before(launch: Launch) -> None:
    job = launch({}, disk="kill", **SAVES).finish()
    assert_nothing_lost(job, restart("TERMINATED", by=[0], lost=[0]), codes={0: KILLED})
    assert resumed(job, 1) == {2}
    assert_checkpoint(folder(job), 8)


def test_a_save_that_hangs_is_killed_and_leaves_the_checkpoint_before(launch: Launch) -> None:
    job = launch({}, disk="hang", wrapper=HARD, **SAVES).finish()
    assert job.codes[0] in (-signal.SIGTERM, KILLED)
    assert_nothing_lost(job, restart("SOFT_TIMEOUT HARD_TIMEOUT", by=None, lost=[0]), codes={0: job.codes[0]})
    assert resumed(job, 1) == {2}
    assert_checkpoint(folder(job), 8)


@pytest.mark.parametrize(("fault", "lost"), [("exception", []), ("kill", [2])], ids=["exception", "kill"])
def test_a_fault_elsewhere_leaves_whole_checkpoints(launch: Launch, fault: str, lost: list[int]) -> None:
    job = launch({(2, 0, 5): fault, (1, 1, 7): "exception"}, **SAVES).finish()
    first, second = restart("EXCEPTION TERMINATED", by=[2], lost=lost), restart("EXCEPTION", by=[1])
    assert_nothing_lost(job, first, second, codes=dict.fromkeys(lost, KILLED))
    assert resumed(job, 1) == {4}
    assert resumed(job, 2) == {6}
    assert_checkpoint(folder(job), 8)
