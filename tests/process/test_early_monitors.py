"""Faults between a rank's entry and the first answer of the store to its monitor process.

`monitor_after` widens the time before the fork of the monitor process, and the failpoint `monitor-ready` that after it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.harness.process import host
from tests.harness.process.job import Job
from tests.harness.process.oracle import assert_no_process_left, assert_nothing_lost, restart

from .conftest import Launch
from .test_networks import QUICK, STORE_LOST, behind_proxies

NEVER = 600.0
HOST_DIES = "tests.harness.process.workers.host_dies"
SHORT = {"soft_timeout": 1.0, "hard_timeout": 2.0}
ENDS = {
    "os_exit_0": ("TERMINATED", 0), "kill": ("TERMINATED", -signal.SIGKILL), "segv": ("TERMINATED", -signal.SIGSEGV),
    "exit_3": ("BASE_EXCEPTION", 3), "keyboard_interrupt": ("BASE_EXCEPTION", -signal.SIGINT),
}  # fmt: skip


def fork_servers(job: Job, ranks: Iterable[int] = (0, 1)) -> list[int]:
    """The fork servers of these ranks, which hold pidfds of them."""
    signs = [f"\nPid:\t{job.pids[rank]}\n" for rank in ranks]
    others = job.template.leftovers().keys() - set(job.pids.values())
    return [pid for pid in others if any(sign in described(pid) for sign in signs)]


def described(pid: int) -> str:
    with suppress(OSError):
        return "".join(path.read_text() for path in Path(f"/proc/{pid}/fdinfo").iterdir())
    return ""


@pytest.mark.parametrize("end", ENDS)
def test_a_rank_that_ends_before_the_fork_is_reported_at_once(launch: Launch, end: str) -> None:
    job = launch({(1, 0, 0): end}, monitor_after={"1": NEVER}).finish()
    kind, code = ENDS[end]
    assert_nothing_lost(job, restart(kind, by=[1], lost=[1]), codes={1: code})
    (death,) = job.events("fault", faulty_initial_rank=1)
    assert death["monotonic"] - job.lines("fault_injected")[0]["at"] < 5.0


@pytest.mark.parametrize("hang", ["hang_sleep", "gil_held", "gil_locked", "stop"])
def test_a_hang_that_begins_before_the_fork_is_found(launch: Launch, hang: str) -> None:
    job = launch({(1, 0, 0): hang}, wrapper=SHORT, monitor_after={"1": 0.5}).finish()
    lost = [1] if hang in ("gil_locked", "stop") else []
    code = {"gil_locked": -signal.SIGTERM, "stop": -signal.SIGKILL}.get(hang, 0)
    assert_nothing_lost(job, restart("SOFT_TIMEOUT HARD_TIMEOUT", by=[1], lost=lost), codes={1: code})


def test_a_soft_timeout_may_be_shorter_than_the_start_of_a_monitor_process(launch: Launch) -> None:
    names = ("monitor_process_interval", "monitor_thread_interval", "progress_watchdog_interval")
    short = {"soft_timeout": 0.1, **dict.fromkeys(names, 0.05)}
    job = launch({(1, 0, 0): "hang_sleep"}, wrapper=short, monitor_after={"1": 0.5}).finish()
    assert_nothing_lost(job, restart("SOFT_TIMEOUT", by=[1]))


def test_a_pause_before_the_fork_costs_its_length_and_nothing_else(launch: Launch) -> None:
    settings, late = SHORT | {"heartbeat_timeout": 8.0}, {"0": 3.0, "1": 3.0}
    job = launch({}, world=2, steps=40, step_seconds=0.2, wrapper=settings, monitor_after=late)
    for rank in (0, 1):
        job.await_line("enter", initial_rank=rank)
    node = [*fork_servers(job), *job.pids.values()]
    assert len(node) == 4
    host.stop(*node)
    time.sleep(4.0)
    for pid in node:
        os.kill(pid, signal.SIGCONT)
    job.finish()
    assert_nothing_lost(job)


def test_a_rank_whose_fork_server_is_killed_before_the_fork_leaves(launch: Launch) -> None:
    job = launch({(0, 0, 10_000): "exception"}, wrapper=QUICK, monitor_after={"1": NEVER})
    job.await_line("enter", initial_rank=1)
    (server,) = fork_servers(job, [1])
    os.kill(server, signal.SIGKILL)
    job.finish()
    assert_nothing_lost(job, restart("BASE_EXCEPTION", by=[1], lost=[1]), codes={1: 1})
    assert "no monitor process could be kept running" in job.errors(1)


@pytest.mark.parametrize("harm", ["monitor_kill", "monitor_stop"])
def test_a_monitor_process_that_is_lost_before_it_has_reached_the_store_is_replaced(launch: Launch, harm: str) -> None:
    faults = {(1, -1, "monitor-ready"): "delay:1", (1, 0, 0): harm, (1, 0, 4): "hang_sleep"}
    job = launch(faults, world=2, wrapper={"soft_timeout": 1.5}).finish()
    assert_nothing_lost(job, restart("SOFT_TIMEOUT", by=[1]))
    assert job.events("monitor_replaced", initial_rank=1)


def test_a_rank_whose_monitor_process_alone_cannot_connect_leaves_at_once(prepare: Launch) -> None:
    settings = QUICK | {"heartbeat_timeout": 6.0}
    job = prepare({(0, 0, 10_000): "exception"}, wrapper=settings, monitor_after={"1": 2.0})
    with behind_proxies(job, [1]) as proxies:
        job.await_line("enter", initial_rank=1)
        proxies[1].refuse()
        job.finish()
    assert_nothing_lost(job, restart("UNRESPONSIVE", by=[1], lost=[1]), codes={1: STORE_LOST})
    entered, (lost,) = job.lines("enter", initial_rank=1)[0]["at"], job.events("store_lost", initial_rank=1)
    assert lost["monotonic"] - entered < 6.0, "it waited until the store had been silent for long enough"


def test_the_monitor_process_of_a_dying_host_does_not_try_to_reach_its_store(prepare: Launch) -> None:
    job = prepare(world=2, store=False)
    job.start(HOST_DIES).finish()
    assert job.codes == {0: -signal.SIGKILL, 1: STORE_LOST}
    assert_no_process_left(job)


def test_whoever_waits_for_the_processes_of_a_pid_file_waits_for_the_report_of_an_early_death(
    launch: Launch, tmp_path: Path
) -> None:
    go, files = tmp_path / "go", {"monitor_process_pidfile": str(tmp_path / "monitor-{rank}.pid")}
    faults = {(1, 0, 0): "kill", (1, -1, "monitor-ready"): "delay:1"}
    job = launch(faults, wrapper=files, monitor_after={"1": NEVER}, gate=str(go))
    job.await_line("enter", initial_rank=1)
    path = tmp_path / "monitor-1.pid"
    assert [int(path.read_text())] == fork_servers(job, [1])
    go.touch()
    job.finish_ranks(20, ranks=[1])
    done = subprocess.run([sys.executable, "-m", "nvrx_core.inprocess.wait_daemon", path], timeout=20, check=False)
    assert done.returncode == 0
    assert job.events("fault", faulty_initial_rank=1), "the rank's death is not reported yet"
    job.finish()
    assert_nothing_lost(job, restart("TERMINATED", by=[1], lost=[1]), codes={1: -signal.SIGKILL})


def test_short_calls_one_after_the_other_leave_nothing(launch: Launch) -> None:
    job = launch({}, world=2, steps=1, calls=30).finish()
    assert job.codes == {0: 0, 1: 0}
    assert len(job.lines("done")) == 60
    assert_nothing_lost(job)
