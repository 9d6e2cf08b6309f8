"""What stands around a fit goes on with it: callbacks, loggers, progress bars, limits of time, later starts."""

from __future__ import annotations

import csv
from collections.abc import Callable

import pytest

from tests.harness.lightning.account import how_it_ended, resumed_steps
from tests.harness.lightning.setting import Fault, Setting
from tests.harness.process.job import Job

DISTURBED = Setting(faults=(Fault(1, 8),))


def rows_of(job, name="csv"):
    (file,) = (job.directory / "logs" / name).glob("version_*/metrics.csv")
    return list(csv.DictReader(file.read_text().splitlines()))


def test_callbacks_are_called_at_a_restart_and_loggers_get_its_figures(run):
    job = run(Setting(faults=(Fault(1, 8),), loggers=("csv",)))
    assert [(line["attempt"], line["trains"]) for line in job.lines("on_restart")] == [(1, True)] * 2
    assert len(job.lines("on_exception")) == 2
    (row,) = (row for row in rows_of(job) if row["nvrx/restarts"])
    assert (float(row["nvrx/restarts"]), float(row["nvrx/lost_steps"]), int(row["step"])) == (1, 3, 5)
    assert 0 < float(row["nvrx/restart_seconds"]) < 60
    assert [int(row["step"]) for row in rows_of(job) if row["loss"]] == list(range(20))


def test_a_new_rank_0_logs_where_the_old_one_did(run):
    job = run(Setting(faults=(Fault(0, 12, "kill"),), loggers=("csv", "tensorboard"), checkpoint={"every_n_epochs": 1}))
    rows = rows_of(job)  # there is one version only
    assert [row["nvrx/restarts"] for row in rows if row["nvrx/restarts"]] == ["1.0"]
    assert [int(row["step"]) for row in rows if row["loss"]] == list(range(30))
    assert len(list((job.directory / "logs" / "tensorboard").glob("version_*/events*"))) == 2
    assert len(list((job.directory / "logs" / "tensorboard").iterdir())) == 1


def test_a_new_rank_0_without_a_checkpoint_logs_each_step_once(run):
    job = run(Setting(faults=(Fault(0, 8, "kill"),), loggers=("csv",), checkpoint={"every_n_epochs": 9}))
    rows = rows_of(job)
    assert [int(row["step"]) for row in rows if row["loss"]] == list(range(len([row for row in rows if row["loss"]])))
    assert [row["nvrx/restarts"] for row in rows if row["nvrx/restarts"]] == ["1.0"]


@pytest.mark.parametrize("bar", ["tqdm", "rich"])
def test_progress_bars_go_on(bar, run, undisturbed):
    setting = Setting(faults=(Fault(0, 8), Fault(1, 13, attempt=1)), bar=bar, validate=True)
    job = run(setting)
    assert how_it_ended(job) == undisturbed(setting), job.errors(0)
    assert "failed while a restart was prepared" not in job.errors(0)


def test_the_time_of_a_fit_runs_on_through_its_restarts(run):
    """Two seconds in all, of which the fault takes more than one back."""
    setting = Setting(
        faults=(Fault(1, 12),), step_seconds=0.1, trainer={"max_epochs": -1, "max_time": {"seconds": 3}}, samples=8000
    )
    job = run(setting)
    assert job.codes == {0: 0, 1: 0}, job.errors(0)
    begun, ended = job.lines("train_start")[0]["at"], job.lines("fitted")[0]["at"]
    assert 2.5 < ended - begun < 20
    assert job.lines("fitted")[0]["step"] < 30


def started_by(run: str, restarts: int, job: Job | None = None) -> Callable[[int], dict[str, str | None]]:
    """What torchrun sets, and the folder of another job."""
    folder = {} if job is None else {"NVRX_TEST_CHECKPOINTS": str(job.directory / "checkpoints")}
    return lambda rank: {"TORCHELASTIC_RUN_ID": run, "TORCHELASTIC_RESTART_COUNT": str(restarts), **folder}


def test_a_job_that_is_started_again_goes_on_from_its_newest_checkpoint(run, start, undisturbed):
    setting = Setting(faults=(Fault(0, 8, "exit"), Fault(1, 8, "exit")), logs=True)
    first = run(setting, each=started_by("one", 0))
    assert set(first.codes.values()) == {3}
    again = start(Setting(logs=True), each=started_by("one", 1, first)).finish(60)
    assert resumed_steps(again) == {0: 5}
    assert how_it_ended(again) == undisturbed(Setting())
    assert "the launcher has started this job again (run one of agent" in again.errors(0)
    assert "step=5.ckpt, step 5, which this job has saved" in again.errors(0)
    assert "The dirpath has changed" not in again.errors(0)


def test_each_fit_of_a_job_that_is_started_again_goes_on_from_its_own_checkpoint(run, start):
    """Both save into one folder; the first one had ended, and nothing of it is left to do."""
    faults = Fault(0, 28, "exit"), Fault(1, 28, "exit")
    first = run(Setting(faults=faults, then=("fit",)), each=started_by("one", 0))
    assert set(first.codes.values()) == {3}
    again = start(Setting(then=("fit",)), each=started_by("one", 1, first)).finish(60)
    assert again.codes == {0: 0, 1: 0}, again.errors(0)
    ends = [(line["step"], line["epoch"]) for line in again.lines("fitted") if line["initial_rank"] == 0]
    assert ends == [(20, 2), (30, 3)]
    assert [line["step"] for line in again.lines("train_start") if line["initial_rank"] == 0][-1] == 25
    assert len({line["weights"] for line in again.lines("fitted")[-2:]}) == 1


def test_a_job_that_is_started_again_and_loses_rank_0_in_the_set_up_goes_on_from_its_checkpoint(run, start):
    """No agent counts a restart after a change of membership."""
    failed = Setting(faults=tuple(Fault(rank, 8, "exit") for rank in range(3)), samples=120)
    first = run(failed, world=3, each=started_by("one", 0))
    lost = Setting(faults=(Fault(0, 0, "kill", where="setup"),), samples=120)
    again = start(lost, world=3, each=started_by("one", 0, first)).finish(60)
    assert {rank for rank, code in again.codes.items() if code} == {0}, again.errors(1)
    assert resumed_steps(again) == {1: 5}


def test_the_end_of_an_epoch_that_follows_a_checkpoint_takes_place_though_rank_0_is_lost_after_it(run, start):
    """The others know, too, that the checkpoint is one of the job that was started again."""
    failed = Setting(faults=tuple(Fault(rank, 13, "exit") for rank in range(3)), samples=120)
    first = run(failed, world=3, each=started_by("one", 0))
    lost = Setting(faults=(Fault(0, 10, "kill"),), samples=120)
    again = start(lost, world=3, each=started_by("one", 1, first)).finish(60)
    assert {rank for rank, code in again.codes.items() if code} == {0}, again.errors(1)
    assert resumed_steps(again) == {0: 10, 1: 10}
    assert {line["attempt"] for line in again.lines("epoch_ended") if line["step"] == 10} == {0, 1}


def test_a_job_that_is_started_again_does_not_go_on_from_the_checkpoint_of_an_older_one(run, start, undisturbed):
    first = run(Setting(), each=started_by("one", 0))
    again = start(Setting(), each=started_by("two", 1, first)).finish(60)
    assert resumed_steps(again) == {0: 0}
    assert how_it_ended(again) == undisturbed(Setting())
    assert "the fit begins anew. The newest is" in again.errors(0)
    assert "step=20.ckpt, of another job. To go on from one, pass ckpt_path= to fit" in again.errors(0)


def test_a_fit_that_began_from_a_checkpoint_of_the_users_goes_back_to_it(run, start):
    last = {"every_n_train_steps": 10, "save_last": True}
    first = run(Setting(checkpoint=last))
    again = start(
        Setting(checkpoint=last, ckpt_path="last", trainer={"max_epochs": 3}, faults=(Fault(1, 23),)),
        each=lambda rank: {"NVRX_TEST_CHECKPOINTS": str(first.directory / "checkpoints")},
    ).finish(60)
    assert resumed_steps(again) == {0: 20, 1: 20}
    assert {(line["step"], line["error"]) for line in again.lines("fitted")} == {(30, None)}


def test_a_job_that_is_started_for_the_first_time_begins_anew(run, start):
    first = run(Setting())
    again = start(Setting(), each=lambda rank: {"NVRX_TEST_CHECKPOINTS": str(first.directory / "checkpoints")})
    assert resumed_steps(again.finish(60)) == {0: 0}


def test_data_is_prepared_by_another_rank_where_the_first_one_is_lost(run):
    job = run(Setting(faults=(Fault(0, 0, "kill", where="prepare"),)), world=3)
    assert [(line["initial_rank"], line["attempt"]) for line in job.lines("prepared")] == [(0, 0), (1, 1)]
    assert {rank for rank, code in job.codes.items() if code} == {0}


def test_a_loader_that_cannot_be_continued_is_named(run):
    job = run(Setting(faults=(Fault(1, 8),), data="iterable", samples=40, loader={"num_workers": 1}))
    assert job.codes == {0: 0, 1: 0}, job.errors(0)
    assert "its data set is iterable" in job.errors(0)
