"""A fit goes on from the memory of its ranks: no step is done again, and all is as in the training without a fault."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator

import pytest

from tests.harness.lightning.account import (
    how_it_ended,
    resumed_steps,
    rows_of,
    trained_on,
    what_counted,
    what_is_shown,
)
from tests.harness.lightning.setting import Fault, Setting
from tests.harness.process.job import Job, Template
from tests.harness.process.workers.plan import Plan

from .conftest import FIT

TENS = {"every_n_train_steps": 10, "save_top_k": -1}
FULL = Setting(
    checkpoint=TENS, options={"resume": "memory"}, dropout=0.2, batch_norm=True, validate=True, epoch_metrics=True,
    loggers=("csv",),
)  # fmt: skip
"""Two epochs of 10 steps, with a validation after each."""
SHARDED = dataclasses.replace(FULL, strategy="InProcessModelParallelStrategy", batch_norm=False)
FALLEN_BACK = "this restart does not go on from memory, but from a checkpoint"


def at(*points: tuple[str, int, int]) -> tuple[Fault, ...]:
    """A fault in each attempt: where, the rank, and the step (at an end or a start of an epoch, its number)."""
    return tuple(Fault(rank, step, where=where, attempt=number) for number, (where, rank, step) in enumerate(points))


def kill(where: str, rank: int, step: int) -> tuple[Fault, ...]:
    return (Fault(rank, step, "kill", where=where),)


Twin = Callable[[Setting], Job]


@pytest.fixture(scope="module")
def twin(lightning_template: Template, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twin]:
    """The same training under Lightning's own strategy, without faults, once for all tests."""
    jobs: dict[str, Job] = {}

    def twin(setting: Setting) -> Job:
        undisturbed = dataclasses.replace(
            setting, faults=(), active=0, options={}, strategy=setting.plain().strategy
        ).written()
        if (key := json.dumps(undisturbed)) not in jobs:
            job = Job(lightning_template, tmp_path_factory.mktemp("twin") / "job", Plan(), world=2)
            jobs[key] = job.start(FIT, **undisturbed).finish(60)
        return jobs[key]

    yield twin
    lightning_template.sweep()


def assert_as_in(job: Job, undisturbed: Job) -> None:
    """What the ranks have trained on, validated, logged, saved and shown, and the bits of the weights."""
    expected = how_it_ended(undisturbed)
    assert {rank: end for rank, end in how_it_ended(job).items() if rank in expected} == expected
    assert trained_on(job) == trained_on(undisturbed)
    assert [row for row in rows_of(job) if "nvrx/restarts" not in row] == rows_of(undisturbed)
    assert saved(job) == saved(undisturbed)


def saved(job: Job) -> list[str]:
    return max(line["saved"] for line in job.lines("fitted"))


POINTS = {
    "in a batch": (
        (
            ("train", 1, 0), ("batch_start", 0, 2), ("train", 1, 3), ("backward", 0, 3), ("before_step", 1, 3),
            ("scheduler", 0, 7), ("batch_end", 1, 7), ("after_stop", 0, 7), ("batch_end", 1, 12),
        ),
        (0, 2, 3, 3, 3, 7, 7, 7, 12),
    ),
    "between epochs": (
        (
            ("dump", 1, 10), ("validation", 0, 10), ("validation_last", 1, 10), ("epoch_end", 0, 0),
            ("epoch_start", 1, 1), ("train", 1, 10), ("validation", 1, 20), ("train_end", 0, 0),
        ),
        (10, 10, 10, 10, 10, 10, 20, 20),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", POINTS)
def test_no_step_is_repeated(case, run, twin):
    points, steps = POINTS[case]
    options = {"resume": "memory", "wrapper": {"no_progress_limit": None}}
    setting = dataclasses.replace(FULL, faults=at(*points), options=options)
    job, undisturbed = run(setting), twin(setting)
    assert job.codes == {0: 0, 1: 0}, job.errors(0)
    assert tuple(resumed_steps(job).values()) == (0, *steps), job.errors(0)
    assert_as_in(job, undisturbed)
    assert what_counted(job) == what_counted(undisturbed)
    assert what_is_shown(job) == what_is_shown(undisturbed)
    assert FALLEN_BACK not in job.errors(0)


VOTES = (("vote", 1, 3), ("vote", 0, 8), ("vote", 1, 10), ("vote", 0, 17))
CASES = {
    "steps that one rank has done": dataclasses.replace(FULL, faults=at(*VOTES)),
    "steps that one rank has done, with sharded parameters": dataclasses.replace(SHARDED, faults=at(*VOTES)),
    "steps that one rank has done, with a scale": dataclasses.replace(FULL, amp=True, faults=at(*VOTES)),
    "sharded parameters": dataclasses.replace(
        SHARDED, faults=at(("train", 1, 3), ("backward", 0, 7), ("batch_end", 1, 8), ("validation", 0, 10))
    ),
    "accumulated gradients": dataclasses.replace(
        FULL, trainer={"accumulate_grad_batches": 3, "val_check_interval": 4},
        faults=at(("train", 1, 2), ("backward", 0, 3), ("batch_end", 0, 4), ("train", 1, 6)),
    ),
    "a schedule of known length, and workers": dataclasses.replace(
        FULL, warmup=True, loader={"num_workers": 2}, faults=at(("train", 1, 3), ("scheduler", 0, 13))
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_training_of_another_kind_is_as_without_the_faults(case, run, twin):
    setting = CASES[case]
    job, undisturbed = run(setting), twin(setting)
    assert job.codes == {0: 0, 1: 0}, job.errors(0)
    assert len(resumed_steps(job)) == len(setting.faults) + 1
    assert_as_in(job, undisturbed)
    assert what_counted(job) == what_counted(undisturbed)
    assert what_is_shown(job) == what_is_shown(undisturbed)
    assert [line["scale"] for line in job.lines("fitted")] == [line["scale"] for line in undisturbed.lines("fitted")]
    assert FALLEN_BACK not in job.errors(0)


@pytest.mark.parametrize(
    ("where", "rank", "step"),
    [("train", 0, 3), ("before_step", 1, 13), pytest.param("validation", 1, 10, marks=pytest.mark.nightly)],
)
def test_a_reserve_takes_the_place_of_a_killed_rank_with_its_state(where, rank, step, run, twin):
    setting = dataclasses.replace(FULL, active=2, epoch_metrics=False, faults=kill(where, rank, step))
    job = run(setting, world=3)
    assert {initial for initial, code in job.codes.items() if code} == {rank}, job.errors(1 - rank)
    assert resumed_steps(job) == {0: 0, 1: step}, job.errors(1 - rank)
    assert_as_in(job, twin(setting))


@pytest.mark.parametrize(("where", "rank", "step"), [("train", 0, 3), ("validation", 1, 10)])
def test_the_others_go_on_without_a_killed_rank(where, rank, step, run):
    setting = dataclasses.replace(FULL, batch_norm=False, samples=120, faults=kill(where, rank, step))
    job = run(setting, world=3)
    assert {initial for initial, code in job.codes.items() if code} == {rank}, job.errors(2)
    assert resumed_steps(job) == {0: 0, 1: step}, job.errors(2)
    assert all(set(seen.values()) == {1} and len(seen) == 120 for seen in trained_on(job).values())
    assert len({weights for _, _, weights, _ in how_it_ended(job).values()}) == 1


def test_a_rank_that_was_to_take_a_place_knows_the_checkpoints_of_those_that_are_lost(run):
    first, second = kill("train", 0, 13), (Fault(1, 0, "kill", where="setup", attempt=1),)
    setting = dataclasses.replace(FULL, active=2, epoch_metrics=False, faults=first + second)
    job = run(setting, world=4)
    assert {initial for initial, code in job.codes.items() if code} == {0, 1}, job.errors(2)
    assert resumed_steps(job) == {0: 0, 2: 10}, job.errors(2)
    assert f"{FALLEN_BACK}: no rank has the state of step 13 in memory any more" in job.errors(2) + job.errors(3)


DEFAULT = dataclasses.replace(FULL, options={"resume": "auto"})
WITHIN = dataclasses.replace(DEFAULT, checkpoint={"every_n_train_steps": 3, "save_top_k": -1})


def test_by_default_sharded_parameters_stay_too(run, twin):
    setting = dataclasses.replace(WITHIN, strategy=SHARDED.strategy, batch_norm=False, faults=at(("train", 1, 5)))
    job, undisturbed = run(setting), twin(setting)
    assert job.codes == {0: 0, 1: 0}, job.errors(0)
    assert resumed_steps(job) == {0: 0, 1: 5}, job.errors(0)
    assert_as_in(job, undisturbed)


def test_by_default_a_reserve_gets_the_state_that_has_saved_nothing_itself(run, twin):
    setting = dataclasses.replace(WITHIN, active=2, epoch_metrics=False, faults=kill("train", 0, 5))
    job = run(setting, world=3)
    assert {initial for initial, code in job.codes.items() if code} == {0}, job.errors(1)
    assert resumed_steps(job) == {0: 0, 1: 5}, job.errors(1)
    assert_as_in(job, twin(setting))


def test_by_default_a_fit_repeats_no_step_once_it_has_saved_within_an_epoch(run, twin):
    setting = dataclasses.replace(WITHIN, faults=at(("train", 1, 2), ("batch_end", 0, 5), ("validation", 1, 10)))
    job, undisturbed = run(setting), twin(setting)
    assert job.codes == {0: 0, 1: 0}, job.errors(0)
    assert tuple(resumed_steps(job).values()) == (0, 0, 5, 10), job.errors(0)
    assert_as_in(job, undisturbed)
    assert FALLEN_BACK not in job.errors(0)


@pytest.mark.parametrize(
    "checkpoint", [TENS, {"every_n_epochs": 1, "save_top_k": -1}], ids=["steps of an epoch", "epochs"]
)
def test_by_default_a_fit_that_saves_at_epochs_goes_on_from_a_checkpoint(checkpoint, run, twin):
    setting = dataclasses.replace(DEFAULT, checkpoint=checkpoint, logs=True, faults=at(("train", 1, 13)))
    job, undisturbed = run(setting), twin(setting)
    assert job.codes == {0: 0, 1: 0}, job.errors(0)
    assert tuple(resumed_steps(job).values()) == (0, 10), job.errors(0)
    assert_as_in(job, undisturbed)
    assert f"{FALLEN_BACK}: the fit has saved no checkpoint in the middle of an epoch" in job.errors(0)
    assert "will go on from a checkpoint" not in job.errors(0)


def test_by_default_a_state_with_objects_is_not_copied_and_no_line_is_written_before_a_fault(run):
    setting = dataclasses.replace(WITHIN, callbacks=("objects",), faults=at(("train", 1, 2), ("train", 0, 8)))
    job = run(setting)
    assert job.codes == {0: 0, 1: 0}, job.errors(0)
    assert tuple(resumed_steps(job).values()) == (0, 0, 6), job.errors(0)
    assert f"{FALLEN_BACK}: the state of the Trainer cannot be copied: that of ObjectState has an obj" in job.errors(0)
    assert "; a restart goes on from a checkpoint" not in job.errors(0)


def test_ranks_agree_to_copy_no_state_any_more_that_one_of_them_cannot_use(run):
    """A state that asks other ranks would wait for one that is not asked for its own."""
    checkpoint, trainer = {"every_n_train_steps": 7, "save_top_k": -1}, {"max_epochs": 6}
    setting = dataclasses.replace(
        FULL, checkpoint=checkpoint, trainer=trainer, callbacks=("uneven",), faults=at(("train", 1, 55))
    )
    job = run(setting)
    assert job.codes == {0: 0, 1: 0}, job.errors(0)
    assert tuple(resumed_steps(job).values()) == (0, 49), job.errors(0)
    assert f"{FALLEN_BACK}: the state of the Trainer cannot be copied: that of UnevenState has 20 MB" in job.errors(0)


FALLBACKS = {
    "an optimizer that was begun anew": (
        dataclasses.replace(FULL, callbacks=("anew",), faults=at(("train", 1, 13))), 2,
        "the optimizer is another one than at the begin of the attempt",
    ),
    "a hook before the step that a callback has registered": (
        dataclasses.replace(FULL, callbacks=("hooking",), logs=True, faults=at(("train", 1, 13))), 2,
        "a hook before the step of an optimizer would run after the evaluation of the batch",
    ),
    "a pruned layer": (
        dataclasses.replace(FULL, callbacks=("pruning",), faults=at(("train", 1, 13))), 2,
        "the parameters have other names than at the begin of the attempt",
    ),
    "a lost shard": (
        dataclasses.replace(SHARDED, samples=120, checkpoint={"every_n_train_steps": 3}, faults=kill("train", 1, 5)),
        3, "the parameters are sharded, and of 3 ranks 2 are left",
    ),
    "manual optimization": (
        Setting(manual=True, options={"resume": "memory"}, logs=True, faults=at(("train", 1, 13))), 2,
        "with manual optimization, a batch may have several steps",
    ),
    "a hook before the step": (
        Setting(hooks_step=True, options={"resume": "memory"}, logs=True, faults=at(("train", 1, 13))), 2,
        "a hook before the step of an optimizer would run after the evaluation of the batch",
    ),
    "averaged weights": (
        Setting(callbacks=("averaging",), options={"resume": "memory"}, logs=True, faults=at(("train", 1, 13))), 2,
        "StochasticWeightAveraging has a state that is not copied at each step",
    ),
    "a large state": (
        Setting(callbacks=("large",), options={"resume": "memory"}, logs=True, faults=at(("train", 1, 13))), 2,
        "the state of the Trainer cannot be copied: that of LargeState has 20 MB, more than 16",
    ),
}  # fmt: skip


def test_a_state_that_cannot_be_copied_once_costs_no_later_step(run):
    setting = Setting(callbacks=("failing",), options={"resume": "memory"}, checkpoint=TENS, faults=at(("train", 1, 8)))
    job = run(setting)
    assert job.codes == {0: 0, 1: 0}, job.errors(0)
    assert tuple(resumed_steps(job).values()) == (0, 8), job.errors(0)
    assert "the state of the Trainer cannot be copied: ValueError: not now" in job.errors(0)
    assert FALLEN_BACK not in job.errors(0)


def test_attempts_that_fail_again_and_again_from_memory_use_a_checkpoint_before_the_job_is_ended(run, twin):
    setting = dataclasses.replace(FULL, faults=at(*[("train", 1, 13)] * 3))
    job = run(setting)
    assert job.codes == {0: 0, 1: 0}, job.errors(0)
    assert tuple(resumed_steps(job).values()) == (0, 13, 13, 10), job.errors(0)
    assert f"{FALLEN_BACK}: attempts from step 13 have failed alike, without another step" in job.errors(0)
    assert_as_in(job, twin(setting))


def test_ranks_that_are_lost_one_after_the_other_cost_no_step(run, twin):
    """Each is lost where it goes on, at the same batch: none of them can fail again."""
    ranks = (0, 1, 3)
    lost = tuple(Fault(rank, 13, "kill", attempt=attempt) for attempt, rank in enumerate(ranks))
    setting = dataclasses.replace(FULL, active=2, epoch_metrics=False, faults=lost)
    job = run(setting, world=5)
    assert job.codes == {rank: -9 if rank in ranks else 0 for rank in range(5)}, job.errors(4)
    assert tuple(resumed_steps(job).values()) == (0, 13, 13, 13), job.errors(4)
    assert_as_in(job, twin(setting))


@pytest.mark.parametrize("case", FALLBACKS)
def test_where_memory_cannot_serve_the_checkpoint_does_and_a_line_says_why(case, run):
    setting, world, reason = FALLBACKS[case]
    job = run(setting, world=world)
    assert job.codes[0] == 0, job.errors(0)
    assert list(resumed_steps(job).values()) == [0, 3 if world == 3 else 10], job.errors(0)
    assert f"{FALLEN_BACK}: {reason}" in job.errors(0)
