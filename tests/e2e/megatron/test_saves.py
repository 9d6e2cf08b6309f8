"""Checkpoints of own loops, by megatron-core and by torch: whatever breaks a save, the next load finds a whole one."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nvrx_megatron import manifest

from tests.harness.megatron.job import Launch, MegatronJob
from tests.harness.process import host
from tests.harness.process.job import Template

KINDS = ("sync", "async", "torch")
RESUMED = [*KINDS, pytest.param("persistent", marks=pytest.mark.nightly)]
SPAWNED = ("async",)
"""Those in which megatron-core's process of results is spawned, as it is a user's."""
PLACES = ("checkpoint-write", "checkpoint-rename", "checkpoint-marker")
AT_LOAD = 240.0
"""Seconds for a job: megatron-core's first save starts a process that imports torch, which may take a minute."""
PATIENT = {"soft": 100.0, "hard": 115.0}
"""Timeouts that do not take that first save for a hang."""

Undisturbed = Callable[[str], MegatronJob]
OPTIMIZERS = {"torch": "sgd"}
"""The optimizer of each kind: torch's `load` fills what is there, and a new Adam has no state."""


@pytest.fixture(scope="module")
def undisturbed(megatron: Template, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Undisturbed]:
    """The run that nothing disturbs, for each kind of save."""

    @functools.cache
    def run(optimizer: str) -> MegatronJob:
        return MegatronJob.run(megatron, tmp_path_factory.mktemp("undisturbed") / "job", tp=2, optimizer=optimizer)

    yield lambda kind: run(OPTIMIZERS.get(kind, "megatron"))
    megatron.sweep()


def checkpoints(job: MegatronJob) -> list[Path]:
    return sorted((job.directory / "checkpoints").glob("step-*"))


def assert_trained(job: MegatronJob, undisturbed: MegatronJob) -> None:
    """The training is that of the undisturbed run, and each checkpoint is whole."""
    assert job.weights() == undisturbed.weights(), job.told()
    expected = undisturbed.losses()
    assert all(expected[key] == loss for key, loss in job.losses().items())
    assert [folder.name for folder in checkpoints(job)] == ["step-00000004-0", "step-00000006-0"]
    assert [manifest.damage(folder) for folder in checkpoints(job)] == [None, None]


@pytest.mark.parametrize("kind", RESUMED)
def test_a_restart_resumes_from_the_newest_checkpoint(launch: Launch, undisturbed: Undisturbed, kind: str) -> None:
    optimizer = OPTIMIZERS.get(kind, "megatron")
    job = launch(
        tp=2, save_every=2, saves=kind, forks_results=kind not in SPAWNED, optimizer=optimizer, soft=60.0, hard=100.0,
        faults="1:0:5=exception",
    ).finish(150)  # fmt: skip
    assert set(job.codes.values()) == {0}, job.told()
    assert_trained(job, undisturbed(kind))
    resumed = {line["step"] for line in job.lines("resume", iteration=1)}
    assert len(resumed) == 1
    assert resumed <= ({4} if kind in ("sync", "torch") else {0, 2, 4})


@pytest.mark.parametrize("place", PLACES)
def test_a_rank_killed_in_a_save_leaves_a_whole_checkpoint(
    launch: Launch, undisturbed: Undisturbed, place: str
) -> None:
    job = launch(3, tp=2, active=2, save_every=2, saves="torch", optimizer="sgd", faults=f"0:0@{place}#2=kill").finish(
        60
    )
    assert job.codes == {0: -signal.SIGKILL, 1: 0, 2: 0}, job.told()
    assert job.injections() == [f"0:0@{place}#2"]
    assert job.weights() == undisturbed("torch").weights()
    assert {line["step"] for line in job.lines("resume", iteration=1)} == {4 if place == "checkpoint-marker" else 2}
    assert all(manifest.damage(folder) is None for folder in checkpoints(job))


@pytest.mark.parametrize("kind", ["async", pytest.param("persistent", marks=pytest.mark.nightly)])
def test_a_background_writer_is_gone_before_the_next_iteration(launch: Launch, kind: str) -> None:
    """The writer is stopped, so that it would write for ever."""
    job = launch(
        tp=2, save_every=2, saves=kind, forks_results=True, soft=60.0, hard=100.0, stop_writers=True,
        faults="1:0:3=exception",
    ).finish(120)  # fmt: skip
    assert set(job.codes.values()) == {0}, job.told()
    writers = [line["pid_of_writer"] for line in job.lines("writer", iteration=0)]
    assert writers
    entered = min(line["at"] for line in job.entered(1))
    assert all(line["gone"] for line in job.lines("writers", iteration=1)), job.told()
    assert entered
    assert not [pid for pid in writers if host.alive(pid)]


@pytest.mark.nightly
@pytest.mark.parametrize("number", range(50))
def test_a_save_killed_at_any_moment_leaves_a_whole_checkpoint(
    launch: Launch, undisturbed: Undisturbed, number: int
) -> None:
    kind = KINDS[number % 3]
    job = launch(3, tp=2, active=2, save_every=2, saves=kind, optimizer=OPTIMIZERS.get(kind, "megatron"), **PATIENT)
    target = number % 2
    job.await_line("save", AT_LOAD, initial_rank=target, iteration=0, step=4)
    host.eventually(functools.partial(bool, False), number * 0.01)
    os.kill(job.pids[target], signal.SIGKILL)
    job.finish(AT_LOAD)
    assert job.codes[1 - target] == job.codes[2] == 0, job.told()
    assert job.weights() == undisturbed(kind).weights()
    assert all(manifest.damage(folder) is None for folder in checkpoints(job))
