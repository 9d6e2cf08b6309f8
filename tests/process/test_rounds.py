"""Faults that occur while a fault is being handled, and restarts that go on for long."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.harness.process.oracle import assert_nothing_lost, restart
from tests.harness.process.workers.plan import BEFORE_GROUP, BEFORE_INIT, ON_ENTRY
from tests.harness.process.workers.record import HELD

from .conftest import Launch, crossed

KILLED = -signal.SIGKILL
targets = pytest.mark.parametrize("target", [0, 1], ids="rank {}".format)
meanwhile = pytest.mark.parametrize("collective", [False, True], ids=["alone", "in a collective"])
faults = pytest.mark.parametrize("fault", ["exception", "kill"])


def expected(fault: str, target: int) -> tuple[list[int], dict[int, int]]:
    return ([target], {target: KILLED}) if fault == "kill" else ([], {})


@meanwhile
def test_two_deaths_at_once_cost_one_restart(launch: Launch, tmp_path: Path, collective: bool) -> None:
    faults = {(0, 0, 3): "kill", (2, 0, 3): "kill"}
    job = launch(faults, world=4, collective=collective, together=str(tmp_path / "moment")).finish()
    assert_nothing_lost(job, restart("TERMINATED", by=None, lost=[0, 2]), codes={0: KILLED, 2: KILLED})
    assert all(set(line["culprits"]) <= {0, 2} for line in job.events("restart"))


def test_an_exception_and_a_death_at_once_cost_one_restart(launch: Launch, tmp_path: Path) -> None:
    faults = {(0, 0, 3): "kill", (2, 0, 3): "exception"}
    job = launch(faults, collective=True, together=str(tmp_path / "moment")).finish()
    assert_nothing_lost(job, restart("TERMINATED EXCEPTION", by=None, lost=[0]), codes={0: KILLED})


@faults
@crossed
def test_a_fault_on_entering_the_next_iteration_costs_one_more(
    launch: Launch, target: int, collective: bool, fault: str
) -> None:
    job = launch({(2, 0, 3): "exception", (target, 1, ON_ENTRY): fault}, collective=collective).finish()
    lost, codes = expected(fault, target)
    second = restart("EXCEPTION TERMINATED", by=[target], lost=lost)
    assert_nothing_lost(job, restart("EXCEPTION", by=[2]), second, codes=codes)


@crossed
def test_a_death_between_barrier_and_entry_is_carried_into_the_next_round(
    launch: Launch, target: int, collective: bool
) -> None:
    job = launch({(2, 0, 3): "exception"}, collective=collective, die_in_assignment={str(target): 1}).finish()
    lines = job.events("restart")
    assert {rank for line in lines for rank in line["lost"]} == {target}
    assert max(line["iteration"] for line in lines) <= 2
    assert job.codes == {0: 0, 1: 0, 2: 0} | {target: KILLED}
    assert {line["initial_rank"] for line in job.lines("done", result=2)} == {0, 1, 2} - {target}


@faults
@targets
def test_a_fault_while_the_others_are_inside_init_process_group_costs_one_restart(
    launch: Launch, target: int, fault: str
) -> None:
    job = launch({(target, 0, BEFORE_GROUP): fault}, collective=True).finish()
    lost, codes = expected(fault, target)
    assert_nothing_lost(job, restart("EXCEPTION TERMINATED", by=[target], lost=lost), codes=codes)


@faults
@targets
def test_a_fault_between_the_store_and_the_group_costs_one_restart(launch: Launch, target: int, fault: str) -> None:
    job = launch({(2, 0, 3): "exception", (target, 1, BEFORE_INIT): fault}, collective=True).finish()
    lost, codes = expected(fault, target)
    second = restart("EXCEPTION TERMINATED", by=[target], lost=lost)
    assert_nothing_lost(job, restart("EXCEPTION", by=[2]), second, codes=codes)


@targets
def test_a_rank_that_dies_inside_init_process_group_costs_one_restart(launch: Launch, target: int) -> None:
    job = launch({}, collective=True, late={"2": 30.0})
    for rank in range(3):
        job.await_line("enter", initial_rank=rank)
    time.sleep(0.3)
    job.kill(target)
    job.finish()
    assert_nothing_lost(job, restart("TERMINATED", by=[target], lost=[target]), codes={target: KILLED})


@faults
def test_a_fault_in_init_process_group_of_a_restart_costs_one_restart(launch: Launch, fault: str) -> None:
    job = launch({(2, 0, 3): "exception", (0, 1, BEFORE_GROUP): fault}, collective=True).finish()
    lost, codes = expected(fault, 0)
    second = restart("EXCEPTION TERMINATED", by=[0], lost=lost)
    assert_nothing_lost(job, restart("EXCEPTION", by=[2]), second, codes=codes)


@meanwhile
def test_twenty_restarts_leave_threads_files_children_and_memory_flat(launch: Launch, collective: bool) -> None:
    faults = {(iteration % 3, iteration, 2): "exception" for iteration in range(20)}
    job = launch(faults, collective=collective, steps=3).finish()
    assert_nothing_lost(job, *(restart("EXCEPTION", by=[iteration % 3]) for iteration in range(20)))
    for rank in range(3):
        usage = job.lines("usage", initial_rank=rank)
        for held in HELD:  # what an aborted group leaves may be on its way out at any one moment: hence least and most
            early, late = max(line[held] for line in usage[1:6]), min(line[held] for line in usage[-5:])
            assert late <= early, f"rank {rank} {held}: {early}, then {late}"
        # The allocator takes an arena now and then for the threads of a group; a lost group costs 1 MiB each time.
        assert usage[-1]["pages"] - usage[3]["pages"] < 8 << 8, "more than 8 MiB in 17 restarts"


def test_a_second_call_in_the_same_process_starts_afresh(launch: Launch) -> None:
    job = launch({(1, 0, 3): "exception", (2, 1, 3): "kill"}, collective=True, calls=2).finish()
    first, second = restart("EXCEPTION", by=[1]), restart("TERMINATED", by=[2], lost=[2])
    assert_nothing_lost(job, first, second, codes={2: KILLED})
    assert [line["iteration"] for line in job.lines("enter", call=1)] == [0, 0]
    assert sorted(line["rank"] for line in job.lines("enter", call=1)) == [0, 1]
    assert all(set(line["changed"]) <= {"RANK", "WORLD_SIZE"} for line in job.lines("done"))


@faults
@meanwhile
def test_a_reserve_takes_the_place_of_a_lost_rank(launch: Launch, collective: bool, fault: str) -> None:
    job = launch({(0, 0, 3): fault}, collective=collective, active=2).finish()
    lost, codes = expected(fault, 0)
    assert_nothing_lost(job, restart("EXCEPTION TERMINATED", by=[0], lost=lost), codes=codes, spares=0 if lost else 1)
    assert {line["initial_rank"] for line in job.lines("enter", iteration=0)} == {0, 1}
    assert {line["initial_rank"] for line in job.lines("enter", iteration=1)} == ({1, 2} if lost else {0, 1})


def test_a_lost_reserve_costs_one_restart(launch: Launch) -> None:
    job = launch({(0, 0, 10_000): "exception"}, active=2, endless=True)
    job.await_line("enter", initial_rank=1)
    job.kill(2)
    job.finish()
    assert {rank for line in job.events("restart") for rank in line["lost"]} == {2}
    assert job.codes == {0: 0, 1: 0, 2: KILLED}


def test_last_call_wait_is_honoured(launch: Launch) -> None:
    job = launch({(1, 0, 3): "exception"}, wrapper={"last_call_wait": 1.0}).finish()
    assert_nothing_lost(job, restart("EXCEPTION", by=[1]))
    (injected,) = job.lines("fault_injected")
    assert min(line["at"] for line in job.lines("enter", iteration=1)) >= injected["at"] + 1.0
