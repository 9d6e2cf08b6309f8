"""A rank ends, in every way a process can; the others go on without it, or with it where it lives."""

from __future__ import annotations

import signal

import pytest

from tests.harness.process.oracle import assert_latency_agrees, assert_nothing_lost, restart

from .conftest import Launch, crossed

DEATHS = {
    "kill": -signal.SIGKILL,
    "term": -signal.SIGTERM,
    "segv": -signal.SIGSEGV,
    "abort": -signal.SIGABRT,
    "os_exit_0": 0,
}
LEAVING = [("exit_3", 3), ("keyboard_interrupt", -signal.SIGINT)]
targets = pytest.mark.parametrize("target", [0, 1], ids="rank {}".format)


@crossed
def test_an_exception_restarts_everyone(launch: Launch, target: int, collective: bool) -> None:
    job = launch({(target, 0, 3): "exception"}, collective=collective).finish()
    assert_nothing_lost(job, restart("EXCEPTION", by=[target]))


@crossed
@pytest.mark.parametrize("death", DEATHS)
def test_a_dead_rank_is_left_behind(launch: Launch, death: str, target: int, collective: bool) -> None:
    job = launch({(target, 0, 3): death}, collective=collective).finish()
    assert_nothing_lost(job, restart("TERMINATED", by=[target], lost=[target]), codes={target: DEATHS[death]})


@crossed
@pytest.mark.parametrize(("death", "code"), LEAVING, ids=["exit 3", "ctrl-c"])
def test_a_base_exception_leaves_with_its_rank(
    launch: Launch, death: str, code: int, target: int, collective: bool
) -> None:
    job = launch({(target, 0, 3): death}, collective=collective).finish()
    assert_nothing_lost(job, restart("BASE_EXCEPTION", by=[target], lost=[target]), codes={target: code})


@targets
def test_sys_exit_0_restarts_the_peers_that_wait_for_the_rank(launch: Launch, target: int) -> None:
    job = launch({(target, 0, 3): "exit_0"}, collective=True).finish()
    assert_nothing_lost(job, restart("EXCEPTION", by=None, lost=[target]))


@targets
def test_sys_exit_0_is_that_ranks_completion(launch: Launch, target: int) -> None:
    job = launch({(target, 0, 3): "exit_0"}, collective=False).finish()
    assert [line["initial_rank"] for line in job.lines("done")] != []
    assert job.codes == {0: 0, 1: 0, 2: 0}
    assert job.events("restart") == []
    assert {line["initial_rank"] for line in job.lines("done")} == {0, 1, 2} - {target}


def test_a_fault_reaches_ranks_that_have_finished_already(launch: Launch) -> None:
    job = launch({(1, 0, 3): "kill"}, endless=False, after="leave").finish()
    assert_nothing_lost(job, restart("TERMINATED", by=[1], lost=[1]), codes={1: -signal.SIGKILL})


@pytest.mark.parametrize(("fault", "code"), [("exception", 0), ("kill", -signal.SIGKILL)], ids=["exception", "kill"])
def test_rank_0_may_host_the_store_while_others_fail(launch: Launch, fault: str, code: int) -> None:
    job = launch({(1, 0, 3): fault}, collective=True, store=False, world=2).finish()
    lost = [1] if code else []
    assert_nothing_lost(job, restart("EXCEPTION TERMINATED", by=[1], lost=lost), codes={1: code})


@pytest.mark.parametrize("fault", ["exception", "kill"])
def test_the_phases_add_up_to_the_latency_that_the_ranks_measured(launch: Launch, fault: str) -> None:
    targets = {iteration: 4 - iteration for iteration in range(3)}
    job = launch({(rank, iteration, 5): fault for iteration, rank in targets.items()}, world=5).finish()
    lost = fault == "kill"
    restarts = [restart("EXCEPTION TERMINATED", by=[rank], lost=[rank] * lost) for rank in targets.values()]
    assert_nothing_lost(job, *restarts, codes=dict.fromkeys(targets.values(), -signal.SIGKILL) if lost else {})
    assert_latency_agrees(job, witnessed=lost)


def test_five_ranks_survive_two_losses_and_an_exception(launch: Launch) -> None:
    faults = {(3, 0, 2): "kill", (0, 1, 2): "segv", (4, 2, 2): "exception"}
    job = launch(faults, world=5, collective=True).finish()
    first, second = restart("TERMINATED", by=[3], lost=[3]), restart("TERMINATED", by=[0], lost=[0])
    codes = {3: -signal.SIGKILL, 0: -signal.SIGSEGV}
    assert_nothing_lost(job, first, second, restart("EXCEPTION", by=[4]), codes=codes)


def test_an_event_says_what_the_cause_of_a_restart_is_called(launch: Launch) -> None:
    job = launch({(1, 0, 2): "exception", (0, 1, 5): "segv"}, step_seconds=0.5).finish()
    first, second = restart("EXCEPTION", by=[1]), restart("TERMINATED", by=[0], lost=[0])
    assert_nothing_lost(job, first, second, codes={0: -signal.SIGSEGV})
    names = ("initial_rank", "iteration", "ended_iteration", "class", "error_type", "action", "confidence")
    assert [[line[name] for name in names] for line in job.events("restart_verdict")] == [
        [0, 1, 0, "user_exception", "InjectedFault", "restart", 0.85],
        [1, 2, 1, "segmentation_fault", None, "restart", 0.88],
    ], "once each, by the rank that is then the first"


def test_a_wall_clock_an_hour_off_changes_nothing(launch: Launch) -> None:
    job = launch({(0, 0, 3): "exception", (2, 1, 3): "kill"}, collective=True, clock_ahead={"1": 3600.0}).finish()
    first, second = restart("EXCEPTION", by=[0]), restart("TERMINATED", by=[2], lost=[2])
    assert_nothing_lost(job, first, second, codes={2: -signal.SIGKILL})
