"""The monitor processes: replaced when lost, silent when nothing happens, and gone with their rank."""

from __future__ import annotations

import os
import select
import signal
import time
import types
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest
import torch.distributed as dist

from nvrx_core.flow import run
from nvrx_core.inprocess.call.monitor_link import LEAVES_WITHIN
from nvrx_core.inprocess.monitor.process_ports import MonitoredProcess
from nvrx_core.liveness.awake_clock import AwakeClock
from nvrx_core.progress.page import ProgressField
from nvrx_core.store.keys import StoreKeys
from tests.harness.process import host
from tests.harness.process.job import Job
from tests.harness.process.oracle import assert_nothing_lost, restart

from .conftest import Launch

SOFT = {"soft_timeout": 1.5}


def monitor(tmp_path: Path, rank: int) -> int:
    """The pid of the monitor process; before, the file has that of the fork server, which the test process adopts."""
    path, found = tmp_path / f"monitor-{rank}.pid", list[int]()

    def read() -> bool:
        found[:] = map(int, path.read_text().split()) if path.exists() else []
        return any(host.alive(pid) and host.parent(pid) != os.getpid() for pid in found)

    assert host.eventually(read, 20)
    return found[0]


def files(tmp_path: Path) -> dict[str, str]:
    named = {"monitor_process_pidfile": "monitor-{rank}.pid", "monitor_process_logfile": "monitor-{rank}.log"}
    return {name: str(tmp_path / file) for name, file in named.items()}


@pytest.mark.parametrize("harm", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_lost_monitor_is_replaced_and_a_later_hang_is_still_found(
    launch: Launch, tmp_path: Path, harm: signal.Signals
) -> None:
    """On either rank, alone or while the others wait for it in a collective."""
    cases = {(target, collective): tmp_path / f"{target}-{collective}" for target in (0, 1) for collective in (0, 1)}
    jobs = {case: hanging(launch, *case, place) for case, place in cases.items()}
    for (target, _), job in jobs.items():
        job.await_line("step", initial_rank=target, step=2)
    first = {case: monitor(place, case[0]) for case, place in cases.items()}
    for pid in first.values():
        os.kill(pid, harm)
    for case, place in cases.items():
        assert host.eventually(lambda: monitor(place, case[0]) != first[case], 20), f"{case}: not replaced"  # noqa: B023
        assert host.eventually(lambda: not host.alive(first[case]), 10), f"{case}: still there"  # noqa: B023
        (place / "go").touch()
    for job in jobs.values():
        job.finish()
    for (target, collective), job in jobs.items():
        assert_nothing_lost(job, restart("SOFT_TIMEOUT", by=None if collective else [target]))
        assert job.events("monitor_replaced", initial_rank=target)


def hanging(launch: Launch, target: int, collective: int, place: Path) -> Job:
    """A job whose target hangs when told to."""
    place.mkdir()
    fault = {(target, 0, 3): "hang_sleep"}
    settings = SOFT | files(place)
    return launch(fault, world=2, collective=bool(collective), gate=str(place / "go"), wrapper=settings)


def test_monitors_and_fork_servers_that_are_stopped_end_with_their_job(launch: Launch, tmp_path: Path) -> None:
    go = tmp_path / "go"
    job = launch({}, world=2, gate=str(go), wrapper=files(tmp_path))
    monitors = [monitor(tmp_path, rank) for rank in range(2)]
    fork_servers = [host.parent(pid) for pid in monitors]
    job.await_line("step", initial_rank=1)
    host.stop(*fork_servers, monitors[1])
    go.touch()
    job.finish()
    assert_nothing_lost(job)


def test_a_rank_that_vanishes_with_its_monitor_is_found_by_the_others(launch: Launch, tmp_path: Path) -> None:
    jobs = {target: vanishing(launch, target, tmp_path / str(target)) for target in (0, 1)}
    for job in jobs.values():
        job.finish()
    for target, job in jobs.items():
        expected = restart("UNRESPONSIVE", by=[target], lost=[target])
        assert_nothing_lost(job, expected, codes={target: -signal.SIGKILL})


def vanishing(launch: Launch, target: int, place: Path) -> Job:
    """A job one of whose ranks is killed with all that watches it."""
    place.mkdir()
    job = launch({(2, 0, 10_000): "exception"}, wrapper={"heartbeat_timeout": 3.0} | files(place))
    job.await_line("step", initial_rank=target)
    watcher = monitor(place, target)
    kill_node(host.parent(watcher), watcher, job.pids[target])
    return job


def kill_node(*pids: int) -> None:
    host.stop(*pids)  # so that none sees another die
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def test_a_rank_that_dies_before_its_monitor_process_has_started_is_reported_at_once(launch: Launch) -> None:
    """Not only when the lease that it never had would have run out."""
    job = launch({(1, 0, 0): "kill"}).finish()
    assert_nothing_lost(job, restart("TERMINATED", by=[1], lost=[1]), codes={1: -signal.SIGKILL})
    (death,) = job.events("fault", initial_rank=1)
    assert death["monotonic"] - job.lines("enter", initial_rank=1)[0]["at"] < 5.0


def test_a_call_that_is_over_while_its_monitor_process_starts_does_not_wait_for_it(launch: Launch) -> None:
    job = launch({(1, -1, "monitor-ready"): "delay:10"}, world=2, steps=5, step_seconds=0.1).finish()
    assert_nothing_lost(job)
    (done,) = job.lines("done", initial_rank=1)
    assert done["at"] - job.lines("step", initial_rank=1)[-1]["at"] < LEAVES_WITHIN / 2


@pytest.mark.nightly
def test_a_rank_that_vanishes_before_its_monitor_has_a_lease_is_found_by_the_others(
    launch: Launch, tmp_path: Path
) -> None:
    """It has entered the call, and its monitor process starts for as long as it may."""
    job = launch({(1, -1, "monitor-ready"): "delay:4"}, wrapper={"heartbeat_timeout": 3.0} | files(tmp_path))
    watcher, keys = monitor(tmp_path, 1), StoreKeys("job", 0, 0)
    assert host.eventually(lambda: {keys.verdict(0), keys.lease(0), keys.lease(2)} <= keys_of(job), 20)
    kill_node(host.parent(watcher), watcher, job.pids[1])
    job.finish()
    assert_nothing_lost(job, codes={1: -signal.SIGKILL}, absent=(1,))


def keys_of(job: Job) -> set[str]:
    assert job.endpoint is not None
    address, _, port = job.endpoint.rpartition(":")
    return set(dist.TCPStore(address, int(port), timeout=timedelta(seconds=5)).list_keys())


def test_a_rank_that_was_stopped_with_its_monitor_leaves_when_the_others_have_completed(
    launch: Launch, tmp_path: Path
) -> None:
    job = launch({}, steps=20, step_seconds=0.1, wrapper={"heartbeat_timeout": 3.0} | files(tmp_path))
    job.await_line("step", initial_rank=1, step=1)
    watcher = monitor(tmp_path, 1)
    node = (host.parent(watcher), watcher, job.pids[1])
    host.stop(*node)
    job.finish_ranks(30.0, ranks=(0, 2))
    read_late = {key for k in (-1, 0) for key in StoreKeys("job", 0, 0).round(k).read_late}
    assert host.eventually(lambda: keys_of(job) <= read_late, 10), keys_of(job)
    for pid in reversed(node):
        os.kill(pid, signal.SIGCONT)
    job.finish()
    assert job.codes == {0: 0, 1: 1, 2: 0}, job.errors(1)
    assert {line["iteration"] for line in job.lines("enter", initial_rank=1)} == {0}
    assert "was declared lost by the others" in job.errors(1)


def test_a_monitor_writes_its_log_and_its_pid_where_it_is_told(launch: Launch, tmp_path: Path) -> None:
    go = tmp_path / "go"
    job = launch({(1, 0, 3): "kill"}, world=2, gate=str(go), wrapper=files(tmp_path))
    pids = [monitor(tmp_path, rank) for rank in range(2)]
    assert all(pid in host.tagged(job.template.tag) for pid in pids)
    assert not set(pids) & set(job.pids.values())
    go.touch()
    job.finish()
    assert_nothing_lost(job, restart("TERMINATED", by=[1], lost=[1]), codes={1: -signal.SIGKILL})
    for rank, pid in enumerate(pids):
        text = (tmp_path / f"monitor-{rank}.log").read_text()
        assert f"monitor_process pid={pid} of rank {rank}, target_pid={job.pids[rank]}" in text
    told = (tmp_path / "monitor-1.log").read_text().splitlines()
    assert len(told) > 1, "the monitor of a dead rank has something to say"
    assert (tmp_path / "monitor-1.log").stat().st_mode & 0o022 == 0, "others may write the log"


def test_an_idle_wrapper_sleeps(launch: Launch) -> None:
    jobs = {store: launch({}, world=2, steps=1, step_seconds=9.0, store=store) for store in (True, False)}
    for job in jobs.values():
        for rank in range(2):
            job.await_line("enter", initial_rank=rank)
    time.sleep(1.0)
    seconds, host_of_store = 5.0, jobs[False].pids[0]
    busy = wakeups(jobs[True], seconds)
    most = {pid: (5 + (3 * 2 if pid == host_of_store else 0)) * seconds for pid in busy}
    named = {
        pid: f"rank {rank}, store {'outside' if store else 'in rank 0'}"
        for store, job in jobs.items()
        for rank, pid in job.pids.items()
    }
    assert all(busy[pid] <= most[pid] for pid in busy), f"wake-ups in {seconds} s: {busy}; {named}"
    for job in jobs.values():
        job.finish()
    for job in jobs.values():
        assert_nothing_lost(job)


def wakeups(job: Job, seconds: float) -> dict[int, int]:
    """Voluntary context switches of each process of all jobs; the store outside, this job's, is not the wrapper's.

    Rank 0, where it hosts the store, also answers the leases of all monitor processes: that is the server's work.
    """
    ours = job.template.leftovers().keys() - {job.store_pid}
    before = {pid: host.switches(pid) for pid in ours}
    time.sleep(seconds)
    return {pid: host.switches(pid) - count for pid, count in before.items()}


@pytest.mark.parametrize("handled", [False, True], ids=["SIGTERM ends it", "it handles SIGTERM"])
def test_a_stopped_rank_does_not_go_on_before_the_signal_that_ends_it(handled: bool) -> None:
    for _ in range(20):
        assert len(written_after_the_stop(handled)) <= handled, "more than the call it was in"


def written_after_the_stop(handled: bool) -> bytes:
    """What a process that writes all the time, and is stopped, has written before its monitor process ended it."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        write_all_the_time(writing, handled)
    os.close(writing)
    os.read(reading, 1)
    host.stop(pid)
    while select.select([reading], [], [], 0)[0]:
        os.read(reading, 1 << 16)
    pidfd = os.pidfd_open(pid)
    plan = types.SimpleNamespace(member=0, rank_pid=pid, rank_pidfd=pidfd, grace=0.2)
    page = dict.fromkeys(ProgressField, 0)
    process = MonitoredProcess(cast(Any, plan), cast(Any, page), AwakeClock())
    run(_terminate(process))
    os.waitpid(pid, 0)
    rest = os.read(reading, 1 << 16)
    for descriptor in (reading, pidfd):
        os.close(descriptor)
    return rest


async def _terminate(process: MonitoredProcess) -> None:
    await process.terminate("a test")


def write_all_the_time(descriptor: int, handled: bool) -> NoReturn:
    """Never returns; a handler ends the process at once."""
    if handled:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    while True:
        os.write(descriptor, b".")
