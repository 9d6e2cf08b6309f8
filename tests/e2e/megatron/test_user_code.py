"""What training functions on megatron-core do besides training."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nvrx_megatron import manifest

from tests.harness.megatron.job import Launch, MegatronJob
from tests.harness.megatron.plan import Plan
from tests.harness.process.job import Template
from tests.harness.process.template import WHOLE_END

Train = Callable[..., MegatronJob]


@pytest.fixture
def train(megatron: Template, tmp_path: Path) -> Iterator[Train]:
    """Runs a job to its end, that trains in a way of `user_code`."""
    yield from ways_of("tests.harness.megatron.user_code", megatron, tmp_path)


@pytest.fixture
def guided(megatron: Template, tmp_path: Path) -> Iterator[Train]:
    """Runs a job to its end, that saves as the guide writes it, in a way of `guide_code`."""
    for train in ways_of("tests.harness.megatron.guide_code", megatron, tmp_path):
        yield functools.partial(train, save_every=2, optimizer="sgd")


def ways_of(module: str, megatron: Template, tmp_path: Path) -> Iterator[Train]:
    jobs: list[MegatronJob] = []

    def train(way: str, *words: str, world: int = 2, **plan: object) -> MegatronJob:
        jobs.append(MegatronJob(megatron, tmp_path / f"job-{len(jobs)}", Plan(tp=2, **plan), world=world))  # type: ignore[arg-type]
        jobs[-1].begin(module, way, *words).finish()
        return jobs[-1]

    yield train
    megatron.sweep()
    for job in jobs:
        job.clear()


def test_the_function_can_be_called_again_and_restarts_again(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreters are torn down at the end, with the process groups that they hold."""
    monkeypatch.setenv(WHOLE_END, "1")
    job = train("twice")
    assert job.codes == {0: 0, 1: 0}, job.told()
    assert [len(job.lines("enter", iteration=1, call=call)) for call in (0, 1)] == [2, 2], job.told()
    assert all(len({line["sum"] for line in job.lines("weights", initial_rank=rank)}) == 1 for rank in (0, 1))
    assert all(line["groups"] == [] for line in job.entered(1))


def test_a_thread_that_waits_in_a_collective_keeps_no_restart(train: Train) -> None:
    job = train("thread")
    assert job.codes == {0: 0, 1: 0}, job.told()
    assert len(job.entered(1)) == 2, job.told()


def test_a_rank_that_exits_with_an_error_is_replaced_by_a_spare(train: Train) -> None:
    job = train("exit", world=3, active=2)
    assert job.codes == {0: 0, 1: 3, 2: 0}, job.told()
    assert sorted(line["rank"] for line in job.entered(1)) == ["0", "1"]


def test_a_signal_handler_that_exits_in_a_save_leaves_whole_checkpoints(train: Train) -> None:
    job = train("signal", world=3, active=2, save_every=2, saves="torch", optimizer="sgd",
                faults="1:0@checkpoint-write#2=term")  # fmt: skip
    assert job.codes == {0: 0, 1: 3, 2: 0}, job.told()
    checkpoints = sorted((job.directory / "checkpoints").glob("step-*"))
    assert [manifest.damage(folder) for folder in checkpoints] == [None, None]


def test_without_a_spare_a_rank_that_exits_early_ends_the_job_with_the_reason(train: Train) -> None:
    job = train("clean exit")
    assert job.codes == {0: 1, 1: 0}, job.told()
    assert "1" in job.errors(0)


def test_a_flag_that_cannot_be_is_refused_before_anything_is_started(train: Train) -> None:
    job = train("", "--inprocess-soft-timeout", "100")
    assert set(job.codes.values()) == {1}, job.told()
    assert "soft_timeout" in job.errors(0)
    assert not job.lines("enter")


@pytest.mark.parametrize("way", ["exception", "failed future", "exception while it is pending"])
def test_checkpoints_of_the_module_survive_a_save_that_is_not_finished(guided: Train, way: str) -> None:
    """The guide makes them once, outside of the function that is called anew after the fault."""
    job = guided(way)
    assert job.codes == {0: 0, 1: 0}, job.told()
    assert len(job.entered(1)) == 2, job.told()
    assert not job.entered(2), job.told()
    assert {line["step"] for line in job.lines("resume", iteration=1)} == {2}, job.told()
    folder = job.directory / "checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000004-0", "step-00000006-0"]
    assert [manifest.damage(path) for path in folder.iterdir()] == [None, None]
    assert all(len({line["sum"] for line in job.lines("weights", initial_rank=rank)}) == 1 for rank in (0, 1))


def test_saves_that_are_polled_go_on_after_a_restart(guided: Train) -> None:
    """The attempt that the fault has left to the module is over, and the next save begins."""
    job = guided("exception while a polled save is pending")
    assert job.codes == {0: 0, 1: 0}, job.told()
    assert {line["step"] for line in job.lines("resume", iteration=1)} == {2}, job.told()
    folder = job.directory / "checkpoints"
    assert "step-00000004-0" in {path.name for path in folder.iterdir()}, job.told()
    assert {manifest.damage(path) for path in folder.iterdir()} == {None}
    assert all(job.errors(rank).count("is dropped: a restart has ended") == 1 for rank in (0, 1)), job.told()


def test_a_save_is_polled_while_one_rank_has_written_and_another_has_not(guided: Train) -> None:
    """The thread of the first is in a collective of the job's group then, and that of the other is not yet."""
    job = guided("writes that end apart")
    assert job.codes == {0: 0, 1: 0}, job.told()
    assert not job.entered(1), job.told()
    assert [line["ended"] for line in job.lines("polled")] == [[False] * 3] * 2, job.told()
    assert all(line["complete"] for line in job.lines("finished")), job.told()


def test_an_error_of_the_first_rank_in_a_save_is_raised_on_all_ranks(guided: Train) -> None:
    job = guided("error of the first rank")
    assert job.codes == {0: 0, 1: 0}, job.told()
    assert sorted(line["initial_rank"] for line in job.lines("refused")) == [0, 1], job.told()
    assert not job.entered(1), job.told()


def test_the_losses_of_experts_are_logged_as_without_a_fault(launch: Launch) -> None:
    """megatron-core adds them up over a step in a global variable, which the interrupted step has begun to fill."""
    job = launch(module="tests.harness.megatron.moe", steps=3).finish()
    assert job.codes == {0: 0, 1: 0}, job.told()
    assert [line["state"] for line in job.entered(1)] == [[], []], job.told()
    for rank in (0, 1):
        before, after = (
            [
                (line["step"], line["loss"], line["load_balancing_loss"])
                for line in job.lines("logged", initial_rank=rank, iteration=iteration)
            ]
            for iteration in (0, 1)
        )
        assert (len(before), len(after)) == (2, 3)
        assert after[:2] == before
