"""How a fit ends that cannot go on: with the user's own exception, and at once where somebody wants it to end."""

from __future__ import annotations

import signal

import pytest

from tests.harness.lightning.account import resumed_steps
from tests.harness.lightning.setting import Fault, Setting
from tests.harness.process import host


def errors(job):
    return {line["initial_rank"]: line["error"] for line in job.lines("fitted")}


def test_an_error_that_comes_again_and_again_ends_the_fit_with_the_users_exception(run):
    job = run(Setting(faults=(Fault(1, 8, attempt=None),)))
    assert errors(job) == {0: "RestartAbort", 1: "RuntimeError"}
    assert len(job.lines("fault")) == 4  # the first made progress, and three more in a row did not
    assert "RuntimeError: a fault" in job.errors(1)
    assert set(job.codes.values()) == {1}
    assert len([line for line in job.lines("on_exception") if line["initial_rank"] == 1]) == 4 + 1


def test_faults_with_progress_in_between_do_not_end_the_fit(run, undisturbed):
    faults = tuple(Fault(1, 2 + 3 * attempt, attempt=attempt) for attempt in range(5))
    job = run(Setting(faults=faults, checkpoint={"every_n_train_steps": 1, "save_top_k": 1}))
    assert errors(job) == {0: None, 1: None}
    assert len(resumed_steps(job)) == 6


@pytest.mark.parametrize(
    ("options", "text"), [({"max_restarts": 1}, "max_iterations"), ({"min_ranks": 2}, "min_world_size")]
)
def test_the_limits_of_the_options_end_the_fit(options, text, run):
    kind = "kill" if "min_ranks" in options else "raise"
    faults = tuple(Fault(1, 3 + 5 * attempt, kind, attempt=attempt) for attempt in range(3))
    job = run(Setting(faults=faults, options=options))
    assert errors(job)[0] == ("PeerExited" if kind == "kill" else "RestartAbort")
    assert job.codes[0] == (128 + signal.SIGKILL if kind == "kill" else 1)
    assert text in job.errors(0)


def test_without_initial_weights_a_restart_before_the_first_checkpoint_is_refused(run):
    job = run(Setting(faults=(Fault(1, 3),), options={"keep_initial_weights": False}))
    assert errors(job) == {0: "RestartAbort", 1: "RestartAbort"}
    assert "keep_initial_weights=True" in job.errors(0)


@pytest.mark.parametrize(("kind", "code"), [("interrupt", 1), ("exit", 3)])
@pytest.mark.parametrize("rank", [0, 1])
def test_ctrl_c_and_sys_exit_on_one_rank_end_the_fit_on_all(rank, kind, code, run):
    job = run(Setting(faults=(Fault(rank, 8, kind),)))
    assert job.codes == {0: code, 1: code}
    assert errors(job)[1 - rank] == ("PeerExited" if kind == "exit" else "RestartAbort")
    assert f"initial rank {rank} has ended the fit" in job.errors(1 - rank)
    assert list(resumed_steps(job)) == [0]


def test_sigterm_ends_the_fit_at_once(start):
    job = start(Setting(step_seconds=0.1, trainer={"max_epochs": 100}))
    job.await_line("seen", step=3)
    for rank in job.pids:
        job.kill(rank, signal.SIGTERM)
    job.finish(30)
    assert list(resumed_steps(job)) == [0]
    assert errors(job) == {0: "SIGTERMException", 1: "SIGTERMException"}
    assert job.codes == {0: 143, 1: 143}


@pytest.mark.parametrize("rank", [0, 1])
def test_sigterm_to_one_rank_ends_the_fit_on_all(rank, start):
    job = start(Setting(step_seconds=0.1, trainer={"max_epochs": 100}))
    job.await_line("seen", step=3)
    job.kill(rank, signal.SIGTERM)
    job.finish(30)
    assert list(resumed_steps(job)) == [0]
    assert errors(job) == {rank: "SIGTERMException", 1 - rank: "PeerExited"}
    assert job.codes == {0: 143, 1: 143}


def test_the_loss_of_the_rank_that_hosts_the_store_ends_the_job(run):
    job = run(Setting(faults=(Fault(0, 8, "kill"),)), store=False)
    assert job.codes == {0: -signal.SIGKILL, 1: 75}
    assert "the control store" in job.errors(1)
    assert not host.tagged(job.template.tag).keys() & set(job.pids.values())
