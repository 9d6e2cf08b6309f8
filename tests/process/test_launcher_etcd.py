"""Launchers that meet in a real etcd: any of them may be lost, the one that runs the coordinator and etcd included."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvrx_core.store.etcd_store import EtcdStore
from tests.harness.process.etcd import Etcd, etcd_in
from tests.harness.process.host import eventually, stop
from tests.harness.process.launch import Launch, Start, assert_go_on, events_of, rendezvous_options

LEADS = "this launcher runs the coordinator"


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    with etcd_in(tmp_path / "etcd") as running:
        yield running


@pytest.fixture
def start(launcher: Start, etcd: Etcd) -> Start:
    def start(case: str, *options: str, **more: str) -> Launch:
        return launcher(case, "--rdzv-backend", "etcd-v2", *rendezvous_options(etcd.endpoint), *options, **more)

    return start


def test_the_launcher_of_the_coordinator_may_be_lost(start: Start) -> None:
    """Its place is taken by the spare, and another launcher runs the coordinator; the others hear of it at once."""
    options = ("--nnodes", "2:3")
    first = start("restarted", *options)
    first.await_log(LEADS)
    others = [start("restarted", *options) for _ in range(2)]
    first.read(2, "start")
    first.process.kill()
    ends = [job.finish() for job in others]
    assert [code for code, _ in ends] == [0, 0], ends
    assert sum(LEADS in log for _, log in ends) == 1
    assert all("the connection of node 0 was closed, and it has not moved" in log for _, log in ends), ends
    starts = {(each["cycle"], each["rank"]) for job in others for each in job.events if each["event"] == "start"}
    assert {rank for cycle, rank in starts if cycle == 1} == {0, 1, 2, 3}


def test_a_launcher_that_leaves_hands_the_coordinator_over_at_once(start: Start) -> None:
    jobs = [start("restarted", "--nnodes", "1:2")]
    jobs[0].await_log(LEADS)
    jobs.append(start("restarted", "--nnodes", "1:2"))
    jobs[0].read(2, "start")
    jobs[0].process.send_signal(signal.SIGTERM)
    code, log = jobs[1].finish()
    assert code == 0, log
    assert LEADS in log


def test_etcd_may_be_killed_and_started_again(start: Start, etcd: Etcd, tmp_path: Path) -> None:
    """No worker notices; what was to be told is told when it is there again."""
    jobs = [start("gated", "--nnodes", "2") for _ in range(2)]
    for job in jobs:
        job.read(2, "start")
    etcd.kill()
    (tmp_path / "gate").touch()
    time.sleep(1.0)
    etcd.start()
    ends = [job.finish() for job in jobs]
    assert [code for code, _ in ends] == [0, 0], ends
    assert all(each["cycle"] == 0 for job in jobs for each in job.events)


@pytest.mark.parametrize("seconds", [22.0, pytest.param(7.0, marks=pytest.mark.nightly)])
def test_etcd_that_stands_still_costs_a_cycle(start: Start, etcd: Etcd, seconds: float) -> None:
    """It accepts connections and is silent: for longer than a lease, and for longer than a request has to be answered.

    Each launcher kills its workers, and joins again when etcd answers.
    """
    jobs = [start("gated", "--nnodes", "2") for _ in range(2)]
    for job in jobs:
        job.read(2, "start")
    etcd.kill(signal.SIGSTOP)
    time.sleep(seconds)
    etcd.kill(signal.SIGCONT)
    for job in jobs:
        job.read(2, "start", cycle=1)
    assert_go_on(jobs, {0, 1})


def test_a_job_that_is_suspended_as_a_whole_goes_on(start: Start, etcd: Etcd) -> None:
    """For longer than a lease, as by `scontrol suspend`: nobody is lost, and no worker notices."""
    jobs = [start("gated", "--nnodes", "2") for _ in range(2)]
    for job in jobs:
        job.read(2, "start")
    stop(*(job.process.pid for job in jobs))
    etcd.kill(signal.SIGSTOP)
    time.sleep(7.0)
    etcd.kill(signal.SIGCONT)
    for job in jobs:
        job.process.send_signal(signal.SIGCONT)
    time.sleep(3.0)  # who counts as lost hears of it in this time
    assert_go_on(jobs, {0})


KEYS_GONE = "the keys of this job are gone: the store was started again without its data, or no launcher"


def test_etcd_that_is_started_again_without_its_data_ends_the_job(start: Start, etcd: Etcd, tmp_path: Path) -> None:
    jobs = [start("waits", "--nnodes", "2") for _ in range(2)]
    for job in jobs:
        job.read(2, "start")
    etcd.kill()
    shutil.rmtree(tmp_path / "etcd")
    etcd.start()
    ends = [job.finish() for job in jobs]
    assert [code for code, _ in ends] == [75, 75], ends
    assert all(KEYS_GONE in log for _, log in ends)
    assert all("Traceback" not in log for _, log in ends)


def test_launchers_that_all_stood_still_until_their_keys_had_expired_end(start: Start, etcd: Etcd) -> None:
    """As on machines that were suspended; the keys expire after 60 s, and are deleted at once here."""
    jobs = [start("waits", "--nnodes", "2") for _ in range(2)]
    for job in jobs:
        job.read(2, "start")
        stop(job.process.pid)
    assert EtcdStore(etcd.endpoint, prefix="nvrx-rendezvous/").forget("")
    for job in jobs:
        job.process.send_signal(signal.SIGCONT)
    ends = [job.finish() for job in jobs]
    assert [code for code, _ in ends] == [75, 75], ends
    assert all(KEYS_GONE in log for _, log in ends)


def test_a_spare_that_stood_still_at_the_end_of_the_job_ends_as_the_others(start: Start, tmp_path: Path) -> None:
    """The name can be used again: the next job does not begin with its loss, which is noticed after the end."""
    options = ("gated", "--nnodes", "1:2", "--rdzv-conf", "last_call_timeout=0,same_command=0")
    first = start(*options)
    first.read(2, "start")
    spare = start(*options)
    assert eventually(lambda: len(events_of(tmp_path, "joined")) == 2, 60.0)
    stop(spare.process.pid)
    time.sleep(2.0)  # its loss is noticed 5 s after its last renewal, while it is waited for at the end
    (tmp_path / "gate").touch()
    code, log = first.finish()
    assert code == 0, log
    spare.process.send_signal(signal.SIGCONT)
    code, log = spare.finish()
    assert code == 0, log
    assert "all workers are done" in log
    code, log = start("done", "--nnodes", "1", "--rdzv-conf", "same_command=0").finish()
    assert code == 0, log


def test_the_name_of_a_job_can_be_used_again(start: Start) -> None:
    """After its end, and after all its launchers were killed: the next job of this name goes on from there."""
    assert start("done", "--nnodes", "1").finish()[0] == 0
    killed = start("waits", "--nnodes", "1")
    killed.read(2, "start")
    killed.process.kill()
    code, log = start("done", "--nnodes", "1", "--rdzv-conf", "same_command=0").finish()
    assert code == 0, log


def test_without_etcd_it_is_said_where_it_was_sought(start: Start, etcd: Etcd) -> None:
    etcd.kill()
    code, log = start("done", "--nnodes", "1", "--rdzv-conf", "store_connect_wait_seconds=0.5").finish()
    assert code == 1
    assert f"no answer from etcd at {etcd.endpoint} within " in log
