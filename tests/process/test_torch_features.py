"""What torch offers for training on many ranks: after a restart it works again, with the right values."""

from __future__ import annotations

import json
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from tests.harness.process.job import Job, Template
from tests.harness.process.oracle import assert_nothing_left
from tests.harness.process.workers.collective_saves import FAULTY_SAVE, SAVES
from tests.harness.process.workers.features import FEATURES, TARGET

from .conftest import Launch

WRAPPER = {"soft_timeout": 20.0, "hard_timeout": 30.0}
TRAININGS = ("fsdp1", "fsdp2", "hsdp", "tensor parallel", "zero", "compile", "mesh")
LOADERS = ("loader fork", "loader spawn", "loader forkserver")
KILLED = -signal.SIGKILL
nightly = pytest.mark.nightly


@pytest.fixture
def template(live_template: Template) -> Template:
    """Its ranks have optimizers, whose first one imports torch._dynamo."""
    return live_template


def assert_went_on(job: Job, restarts: int, fault: str) -> None:
    """One restart for each fault, and all ranks left at the end that should be."""
    lost = {TARGET} if fault == "kill" else set()
    assert job.codes == {rank: KILLED if rank in lost else 0 for rank in range(job.world)}
    assert {line["iteration"] for line in job.events("restart")} == set(range(1, restarts + 1))
    last = job.lines("enter", iteration=restarts)
    assert {line["world_size"] for line in last} == {job.world - len(lost)}
    end_fork_servers(job, lost)
    assert_nothing_left(job)


def end_fork_servers(job: Job, lost: set[int]) -> None:
    """End the fork servers of multiprocessing, with their workers and files, that killed ranks have left behind.

    Without the wrapper they remain as well: a worker looks whether its parent is alive, which is the fork server.
    """
    for pid in job.template.leftovers():
        with suppress(OSError):
            is_one = b"multiprocessing.forkserver" in Path(f"/proc/{pid}/cmdline").read_bytes()
            if is_one and int(environment(pid)["RANK"]) in lost:
                os.kill(pid, signal.SIGKILL)
    for folder in job.temporary.glob("pymp-*") if lost else ():
        shutil.rmtree(folder)


def environment(pid: int) -> dict[str, str]:
    text = Path(f"/proc/{pid}/environ").read_text(errors="replace")
    return dict(line.split("=", 1) for line in text.split("\0") if "=" in line)


@pytest.mark.parametrize(
    ("features", "fault", "world"),
    [
        (TRAININGS, "exception", 4),
        (LOADERS[:1], "exception", 2),
        *(pytest.param((name,), "exception", 2, marks=nightly) for name in LOADERS[1:]),
        *(pytest.param((name,), "kill", 4, marks=nightly) for name in TRAININGS),
        *(pytest.param((name,), "kill", 3, marks=nightly) for name in LOADERS),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, tuple) else str(value),
)
def test_a_feature_works_again_after_a_restart(
    prepare: Launch, features: tuple[str, ...], fault: str, world: int
) -> None:
    job = prepare(world=world)
    plan = json.dumps({"features": features, "fault": fault, "wrapper": WRAPPER})
    job.start("tests.harness.process.workers.features", **{FEATURES: plan}).finish(150)
    assert_went_on(job, len(features), fault)
    right = {(line["feature"], line["initial_rank"]) for line in job.lines("right")}
    assert right == {(name, rank) for name in features for rank, code in job.codes.items() if code == 0}


@pytest.mark.parametrize("place", ["inside", pytest.param("before", marks=nightly)])
@pytest.mark.parametrize("fault", ["exception", "kill"])
@pytest.mark.parametrize("atomic", [False, pytest.param(True, marks=nightly)], ids=["outside", "atomic"])
@pytest.mark.parametrize("asynchronous", [False, pytest.param(True, marks=nightly)], ids=["save", "async_save"])
def test_a_collective_save_is_whole_or_not_there(
    prepare: Launch, asynchronous: bool, atomic: bool, fault: str, place: str
) -> None:
    job = prepare(world=3)
    plan = {"asynchronous": asynchronous, "atomic": atomic, "fault": fault, "place": place, "wrapper": WRAPPER}
    job.start("tests.harness.process.workers.collective_saves", **{SAVES: json.dumps(plan)}).finish(120)
    assert_went_on(job, 1, fault)
    assert min(line["number"] for line in job.lines("loaded")) >= FAULTY_SAVE - 1, "a save that had ended is lost"
