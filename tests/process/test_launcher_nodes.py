"""ft_launcher on several nodes: one launcher each, on one machine, over a real torch store."""

from __future__ import annotations

import os
import re
import select
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.harness.process.host import alive, eventually, frozen, stop
from tests.harness.process.launch import Launch, Nodes, Start, assert_go_on


def hosts(log: str) -> bool:
    return "host the rendezvous" in log


def test_a_failure_on_one_node_restarts_all_nodes(nodes: Nodes) -> None:
    jobs = nodes(2, "killed", "--nnodes", "2", "--max-restarts", "1")
    ends = [job.finish() for job in jobs]
    assert [code for code, _ in ends] == [0, 0], ends
    assert sum(hosts(log) for _, log in ends) == 1
    second = [event for job in jobs for event in job.events if (event["event"], event["cycle"]) == ("start", 1)]
    assert sorted(event["rank"] for event in second) == [0, 1, 2, 3]
    assert all("was ended by SIGKILL" in log for _, log in ends)


def test_a_job_that_fails_ends_with_the_same_code_on_all_nodes(nodes: Nodes) -> None:
    assert [job.finish()[0] for job in nodes(2, "fails", "--nnodes", "2")] == [1, 1]


def test_a_spare_takes_the_place_of_a_node_that_is_lost(nodes: Nodes) -> None:
    """The loss uses up no restart, and is noticed by the connection that the kernel closes."""
    jobs = nodes(3, "restarted", "--nnodes", "2:3")
    target = next(job for job in first_active(jobs, 2) if not is_host(job))
    target.process.kill()
    ends = [job.finish() for job in jobs if job is not target]
    assert [code for code, _ in ends] == [0, 0], ends
    assert any("was closed, and it has not moved its lease for 1.5 s since" in log for _, log in ends)
    host = os.uname().nodename
    told = rf"cycle 1: 2 nodes, 0 spare; left: {re.escape(host)} \(.+\); joined: {re.escape(host)}\n"
    assert all(re.search(told, log) for _, log in ends), ends
    assert eventually(lambda: not any(map(alive, target.pids())), 10.0)


def test_the_standbys_of_a_spare_take_the_place_of_a_lost_node_too(nodes: Nodes) -> None:
    """They were started before the spare has heard of any cycle."""
    warm = ("--ft-warm-workers", "on", "--ft-warm-imports", "decimal", "--ft-log-level", "DEBUG")
    jobs = nodes(3, "imported", "--nnodes", "2:3", *warm)
    active = first_active(jobs, 2, "imported")
    target = next(job for job in active if not is_host(job))
    left = [job for job in jobs if job is not target]
    for job in left:
        job.await_log("a standby worker for local rank 0 is ready")
        job.await_log("a standby worker for local rank 1 is ready")
    target.process.kill()
    for job in left:
        found = {each["rank"]: each["warm"] for each in job.read(2, "imported", 1)}
        assert list(found.values()) == [True, True], found


def first_active(jobs: list[Launch], count: int, event: str = "start") -> list[Launch]:
    """The launchers whose workers have started, as they say by an event; the others are spares."""
    active = dict[int, Launch]()
    by_stream = {job.process.stdout: job for job in jobs}
    while len(active) < count:
        ready = select.select([each for each in by_stream if id(each) not in active], [], [], 60)[0]
        assert ready, f"the workers of {len(active)} launchers have started, {count} are awaited"
        for stream in ready:
            by_stream[stream].read(2, event)
            active[id(stream)] = by_stream[stream]
    return list(active.values())


def is_host(job: Launch) -> bool:
    """Whether it listens for the others."""
    inodes = set()
    for link in Path(f"/proc/{job.process.pid}/fd").iterdir():
        with suppress(OSError):
            inodes.add(os.readlink(link))
    port = int(job.arguments[job.arguments.index("--rdzv-endpoint") + 1].rpartition(":")[2])
    listening = [
        f"socket:[{fields[9]}]"
        for fields in map(str.split, Path("/proc/net/tcp").read_text().splitlines()[1:])
        if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port
    ]
    return bool(inodes & set(listening))


def test_a_launcher_that_was_stopped_names_its_pause_and_joins_again(nodes: Nodes, tmp_path: Path) -> None:
    """Its own silence is not the store's: it reads that it counts as lost, and ends its workers for that."""
    jobs = nodes(2, "gated", "--nnodes", "2")
    for job in jobs:
        assert eventually(lambda job=job: job.process.poll() is None and len(workers(job)) == 2, 60.0)
    paused = next(job for job in jobs if not is_host(job))
    (other,) = (job for job in jobs if job is not paused)
    stop(paused.process.pid)
    other.await_log("has not moved its lease for 5 s")
    paused.process.send_signal(signal.SIGCONT)
    other.await_log("cycle 1: 2 nodes")
    (tmp_path / "gate").touch()
    ends = [job.finish() for job in jobs]
    assert [code for code, _ in ends] == [0, 0], ends
    assert "this launcher stood still for" in ends[jobs.index(paused)][1], ends


def test_a_node_whose_worker_survives_sigkill_is_given_up_and_a_spare_takes_its_place(
    nodes: Nodes, tmp_path: Path
) -> None:
    """As a worker does that waits in the kernel for a device, or for NFS."""
    if not Path("/sys/fs/cgroup/freezer").is_dir():
        pytest.skip("a process that SIGKILL does not end needs the freezer of cgroup version 1")
    quick = ("--workers-stop-timeout", "0.5", "--workers-kill-timeout", "1")
    jobs = nodes(3, "killed_then_gated", "--nnodes", "2:3", "--max-restarts", "1", *quick)
    active = first_active(jobs, 2)
    stuck = next(job for job in active if not is_host(job))
    pid = next(each["pid"] for each in stuck.events if each["event"] == "start" and each["rank"] % 2 == 0)
    with frozen(pid):
        (tmp_path / "kill").touch()
        stuck.await_log("the job ends with code 1: ")
        assert f"pid {pid} survives SIGKILL (state D" in stuck.log
        assert stuck.process.wait(20.0) == 1
        others = [job for job in jobs if job is not stuck]
        for job in others:
            job.await_log("cycle 1: 2 nodes, 0 spare")
        (tmp_path / "gate").touch()
        ends = [job.finish() for job in others]
    assert [code for code, _ in ends] == [0, 0], ends


def workers(job: Launch) -> list[int]:
    """Return the worker processes of a launcher."""
    found = list[int]()
    for child in map(int, Path(f"/proc/{job.process.pid}/task/{job.process.pid}/children").read_text().split()):
        with suppress(OSError):
            if b"launcher_worker.py" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
    return found


def test_the_loss_of_the_coordinator_ends_all_nodes(nodes: Nodes) -> None:
    jobs = nodes(2, "family", "--nnodes", "2", "--workers-stop-timeout", "0.5")
    for job in jobs:
        job.read(2, "family")
    target = next(job for job in jobs if is_host(job))
    other = next(job for job in jobs if job is not target)
    target.process.send_signal(signal.SIGKILL)
    code, log = other.finish()
    assert code == 75
    assert "the rendezvous store is lost" in log
    assert "c10d" not in log


@pytest.mark.nightly
def test_a_job_that_is_suspended_as_a_whole_goes_on(nodes: Nodes) -> None:
    """For longer than a request may take: while a launcher is stopped itself, it waits for nothing."""
    jobs = nodes(2, "gated", "--nnodes", "2", "--rdzv-conf", "read_timeout=2", NVRX_STORE_ANSWERS_WITHIN="1")
    for job in jobs:
        job.read(2, "start")
    stop(*(job.process.pid for job in jobs))
    time.sleep(8.0)
    for job in jobs:
        job.process.send_signal(signal.SIGCONT)
    time.sleep(3.0)  # who counts as lost hears of it in this time
    assert_go_on(jobs, {0})


def test_a_host_of_the_rendezvous_that_stands_still_is_waited_for_no_longer_than_other_nodes(nodes: Nodes) -> None:
    """It accepts connections, and answers none; when it goes on, it has nobody to go on with."""
    conf = ("--rdzv-conf", "read_timeout=1,join_timeout=12")
    jobs = nodes(2, "waits", "--nnodes", "2", *conf, NVRX_STORE_ANSWERS_WITHIN="1")
    for job in jobs:
        job.read(2, "start")
    host = next(job for job in jobs if is_host(job))
    (other,) = (job for job in jobs if job is not host)
    stop(host.process.pid)
    code, log = other.finish()
    assert code == 75, log
    assert " for 12 s: it accepts connections, and answers none" in log
    host.process.send_signal(signal.SIGCONT)
    code, log = host.finish()
    assert code == 1, log
    assert "1 of 2 nodes have joined in 12 s" in log


def test_a_node_that_no_other_joins_reports_it(nodes: Nodes) -> None:
    (job,) = nodes(1, "done", "--nnodes", "2", "--rdzv-conf", "join_timeout=1")
    code, log = job.finish()
    assert code == 1
    assert "1 of 2 nodes have joined in 1 s" in log


def test_a_wrapped_call_goes_on_without_a_rank_of_each_node(nodes: Nodes, tmp_path: Path) -> None:
    jobs = nodes(2, "0,3", "--nnodes", "2", worker="launcher_wrapped.py")
    for job in jobs:
        job.await_log("in-process restart continues without rank")
    (tmp_path / "gate").touch()
    ends = [job.finish() for job in jobs]
    assert [code for code, _ in ends] == [0, 0], ends
    assert sorted(each["rank"] for job in jobs for each in job.events if each["event"] == "done") == [1, 2]


@pytest.mark.parametrize("has_imported", [False, True])
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_launcher_that_waits_for_the_rendezvous_ends_on_a_signal(
    launcher: Start, tmp_path: Path, signum: int, has_imported: bool
) -> None:
    """While it imports torch, and while torch connects to an endpoint that no machine has."""
    job = launcher("done", "--nnodes", "2", "--rdzv-endpoint", "192.0.2.1:29500", template=None)
    assert eventually(lambda: any((tmp_path / "run").glob("launcher-*/launcher.ipc")), 20)
    maps = Path(f"/proc/{job.process.pid}/maps")
    assert eventually(lambda: not has_imported or "libtorch_python" in maps.read_text(), 60)
    job.process.send_signal(signum)
    code, log = job.finish(20)
    assert code == 128 + signum
    assert f"the launcher ends with code {code}: it has received {signal.Signals(signum).name}" in log
    assert eventually(lambda: not list((tmp_path / "run").glob("launcher-*")), 5)


def test_arguments_that_the_ranks_of_all_nodes_refuse_are_not_retried(nodes: Nodes) -> None:
    ends = [job.finish() for job in nodes(2, "all", "--nnodes", "2", "--max-restarts", "3", worker="launcher_usage.py")]
    for code, log in ends:
        assert code == 1, log
        assert "that is not retried, unless --ft-retry-usage-errors is true" in log


def test_ranks_of_all_nodes_that_leave_a_wrapped_call_are_not_waited_for(nodes: Nodes) -> None:
    jobs = nodes(2, "all", "--nnodes", "2", "--ft-inprocess-grace", "600", worker="launcher_left_call.py")
    for job in jobs:
        code, log = job.finish()
        assert code == 1, log
        assert "has failed with exit code 17, with --max-restarts 0" in log
