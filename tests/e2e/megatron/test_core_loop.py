"""Own loops on megatron-core: a fault, a restart, and the losses and weights of the undisturbed run."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.harness.megatron.job import Launch, MegatronJob
from tests.harness.process.job import Template

SHAPES: dict[str, dict[str, Any]] = {
    "tp": {"tp": 2},
    "pp": {"pp": 2},
    "dp": {},
    "torch adam": {"tp": 2, "optimizer": "torch"},
    "distributed optimizer": {"distributed": True},
}
HANGS = {"soft": 8.0, "hard": 24.0}
"""Timeouts that neither a step nor the making of the model exceeds on a busy machine."""
FAULTS: dict[str, dict[str, Any]] = {
    "exception": {"faults": "1:0:3=exception"}, "hang": {"faults": "1:0:3=hang_sleep", **HANGS},
}  # fmt: skip
CASES = [
    *((shape, "exception") for shape in SHAPES),
    ("tp", "hang"),
    *(pytest.param(shape, "hang", marks=pytest.mark.nightly) for shape in ("pp", "dp")),
]
LOSSES = [
    *(("tp", target) for target in (0, 1)),
    *((shape, 0) for shape in ("pp", "dp")),
    *(pytest.param(shape, 1, marks=pytest.mark.nightly) for shape in ("pp", "dp")),
]


@pytest.fixture(scope="module")
def undisturbed(megatron: Template, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., MegatronJob]]:
    """The run of a shape that nothing disturbs, once for all tests."""

    @functools.cache
    def run(shape: str) -> MegatronJob:
        return MegatronJob.run(megatron, tmp_path_factory.mktemp("undisturbed") / "job", **SHAPES[shape])

    yield run
    megatron.sweep()


def assert_same_training(job: MegatronJob, other: MegatronJob) -> None:
    assert set(job.codes.values()) == {0}, job.told()
    assert job.losses() == other.losses(), job.told()
    assert job.weights() == other.weights()


@pytest.mark.parametrize(("shape", "fault"), CASES)
def test_a_fault_restarts_and_the_training_is_that_of_the_undisturbed_run(
    launch: Launch, undisturbed: Callable[[str], MegatronJob], shape: str, fault: str
) -> None:
    job = launch(**SHAPES[shape], **FAULTS[fault]).finish()
    assert_same_training(job, undisturbed(shape))
    assert len(job.entered(1)) == 2, job.told()
    assert not job.entered(2), job.told()
    assert [line["groups"] for line in job.entered(1)] == [[], []]


@pytest.mark.parametrize(("shape", "target"), LOSSES)
def test_a_lost_rank_is_replaced_by_a_spare(
    launch: Launch, undisturbed: Callable[[str], MegatronJob], shape: str, target: int
) -> None:
    job = launch(3, **SHAPES[shape], active=2, faults=f"{target}:0:3=kill").finish()
    assert job.codes == {rank: -signal.SIGKILL if rank == target else 0 for rank in range(3)}, job.told()
    assert sorted(line["rank"] for line in job.entered(1)) == ["0", "1"]
    assert job.losses() == undisturbed(shape).losses(), job.told()
    assert job.weights() == undisturbed(shape).weights()


def test_the_names_that_megatron_core_does_not_promise_are_there(launch: Launch) -> None:
    job = launch(1, module="tests.harness.megatron.canary").finish()
    assert job.codes == {0: 0}, job.told()


def test_a_save_that_takes_longer_than_a_step_is_no_hang(launch: Launch) -> None:
    job = launch(tp=2, save_every=4, saves="torch", slow_save=9.0, **HANGS).finish()
    assert job.codes == {0: 0, 1: 0}, job.told()
    assert not job.entered(1), job.told()


def test_nodes_are_replaced_as_a_whole(launch: Launch, undisturbed: Callable[[str], MegatronJob]) -> None:
    """Two nodes of two ranks, of which one is spare, on one host."""
    job = launch(4, tp=2, active=2, granularity="node", nodes=2, faults="1:0:3=kill").finish()
    assert {rank: code for rank, code in job.codes.items() if rank != 1} == {0: 1, 2: 0, 3: 0}, job.told()
    assert sorted(line["initial_rank"] for line in job.entered(1)) == [2, 3]
    assert job.losses() == undisturbed("tp").losses()
