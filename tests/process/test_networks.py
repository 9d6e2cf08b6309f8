"""The network between a rank and the store: slow, silent, and silent for a while."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.harness.process import host
from tests.harness.process.job import Job
from tests.harness.process.oracle import assert_no_process_left, assert_nothing_lost, assert_promises, restart
from tests.harness.process.proxy import Proxy

from .conftest import Launch

STORE_LOST = 75
DISCARDED = 1
QUICK = {"heartbeat_interval": 0.2, "monitor_process_interval": 0.2, "heartbeat_timeout": 2.0}


@contextmanager
def behind_proxies(job: Job, ranks: Iterable[int], delay: float = 0.0) -> Iterator[dict[int, Proxy]]:
    """Starts the job, with a proxy between each of `ranks` and the store."""
    with ExitStack() as stack:
        job.start_store()
        assert job.endpoint is not None
        proxies = {rank: stack.enter_context(Proxy(job.endpoint, delay)) for rank in ranks}
        job.routes = {rank: proxy.endpoint for rank, proxy in proxies.items()}
        stack.callback(job.template.sweep)
        job.start()
        yield proxies


def test_a_slow_store_is_no_death(prepare: Launch) -> None:
    job = prepare({(1, 0, 3): "exception", (2, 1, 3): "kill"}, wrapper=QUICK | {"heartbeat_timeout": 1.0})
    with behind_proxies(job, range(3), delay=0.05):
        job.finish()
    first, second = restart("EXCEPTION", by=[1]), restart("TERMINATED", by=[2], lost=[2])
    assert_nothing_lost(job, first, second, codes={2: -9})


def test_a_rank_that_was_cut_off_and_returns_is_fenced(prepare: Launch) -> None:
    job = prepare({(0, 0, 10_000): "exception"}, wrapper=QUICK)
    with behind_proxies(job, [1]) as proxies:
        job.await_line("step", initial_rank=1, step=2)
        proxies[1].cut()
        assert host.eventually(lambda: len(job.lines("enter", iteration=1)) == 2, 20), "not declared lost"
        assert 1 not in job.codes
        proxies[1].heal()
        job.finish()
    assert_nothing_lost(job, restart("UNRESPONSIVE", by=[1], lost=[1]), codes={1: DISCARDED})
    assert "declared lost by the others" in job.errors(1)


def test_a_connection_that_is_lost_is_opened_again_while_the_store_lives(prepare: Launch) -> None:
    jobs = {end: prepare({(0, 0, 3): "exception"}) for end in ("reset", "forget")}
    with ExitStack() as stack:
        for end, job in jobs.items():
            job.plan = replace(job.plan, gate=str(job.directory / "go"))
            proxies = stack.enter_context(behind_proxies(job, [1, 2]))
            for rank in (1, 2):
                job.await_line("step", initial_rank=rank, step=2)
                getattr(proxies[rank], end)()
            (job.directory / "go").touch()
        for job in jobs.values():
            job.finish()
    for end, job in jobs.items():
        assert_nothing_lost(job, restart("EXCEPTION", by=[0]))
        assert not job.events("monitor_replaced"), end


def test_a_store_that_vanishes_silently_ends_all_ranks_in_time(prepare: Launch) -> None:
    whole, part = prepare({(0, 0, 10_000): "exception"}), prepare({(0, 0, 10_000): "exception"}, wrapper=QUICK)
    with behind_proxies(whole, range(3)) as all_three, behind_proxies(part, [1]) as one:
        for job in (whole, part):
            job.await_line("step", initial_rank=1, step=2)
        for proxy in (*all_three.values(), *one.values()):
            proxy.cut()
        part.finish(20)
        whole.finish(20)
    assert whole.codes == dict.fromkeys(range(3), STORE_LOST)
    assert_nothing_lost(part, restart("UNRESPONSIVE", by=[1], lost=[1]), codes={1: STORE_LOST})
    for job, rank in ((whole, 0), (whole, 1), (whole, 2), (part, 1)):
        assert f"the control store at {job.routes[rank]} is lost" in job.errors(rank)
    assert_no_process_left(whole)
    assert_promises(whole)


def test_a_store_that_vanishes_before_the_monitor_process_has_reached_it_ends_the_rank_in_time(prepare: Launch) -> None:
    job = prepare({(0, 0, 10_000): "exception"}, wrapper=QUICK)
    with behind_proxies(job, [1]) as proxies:
        job.await_line("enter", initial_rank=1)
        proxies[1].cut()
        job.finish(20)
    assert_nothing_lost(job, restart("UNRESPONSIVE", by=[1], lost=[1]), codes={1: STORE_LOST})
    assert f"the control store at {job.routes[1]} is lost" in job.errors(1)


def test_a_store_that_falls_silent_while_a_rank_enters_ends_the_rank_in_time(prepare: Launch) -> None:
    """While it opens its first connection, its second one, and while it joins the others."""
    short = {"soft_timeout": 1.5, "hard_timeout": 2.0, "heartbeat_timeout": 2.0, "barrier_timeout": 4.0}
    jobs = {number: prepare({(0, 0, 10_000): "exception"}, wrapper=short) for number in (1, 2, 3)}
    with ExitStack() as stack:
        for number, job in jobs.items():
            (proxy,) = stack.enter_context(behind_proxies(job, [1], delay=0.05)).values()
            assert host.eventually(lambda: proxy.connections >= number, 10)  # noqa: B023
            proxy.cut()
        for job in jobs.values():
            job.finish(30)
    for number, job in jobs.items():
        assert job.codes[1] in (1, STORE_LOST), number
        assert f"the control store {'on' if job.codes[1] == 1 else 'at'} {job.routes[1]}" in job.errors(1), number
        assert_no_process_left(job)


def test_the_proxy_tells_connections_of_one_port_apart() -> None:
    """A port that a rank connects from may have been that of another connection, to another peer."""
    with ExitStack() as stack:
        store, other = (stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=16)) for _ in range(2))
        proxy = stack.enter_context(Proxy(f"127.0.0.1:{store.getsockname()[1]}"))
        for _ in range(8):
            through = stack.enter_context(connected(0, int(proxy.endpoint.rpartition(":")[2])))
            connected(through.getsockname()[1], other.getsockname()[1]).close()
        assert host.eventually(lambda: proxy.connections == 8, 10)
        assert len(proxy.connections_of(os.getpid())) == 8


def connected(port: int, peer: int) -> socket.socket:
    """A connection from a port that may be in use."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("127.0.0.1", port))
    made.connect(("127.0.0.1", peer))
    return made


DEAF = {"soft_timeout": 4.0, "hard_timeout": 8.0, **QUICK}


@pytest.mark.parametrize("stage", ["function", "reserve"])
def test_a_rank_whose_connections_fall_silent_behind_a_proxy_hears_of_a_fault_in_time(
    prepare: Launch, tmp_path: Path, stage: str
) -> None:
    """They are opened again: the monitor process, whose connection lives, sees the round end without the rank."""
    job = prepare(
        {(0, 0, 3): "exception"}, wrapper=DEAF, gate=str(tmp_path / "go"), active=2 if stage == "reserve" else None
    )
    with behind_proxies(job, [2]) as proxies:
        job.await_line("step", initial_rank=1, step=2)
        assert host.eventually(lambda: bool(proxies[2].connections_beside(job.pids[2])), 10)
        proxies[2].mute(job.pids[2])
        (tmp_path / "go").touch()
        job.finish()
    assert_nothing_lost(job, restart("EXCEPTION", by=[0]), spares=int(stage == "reserve"))
    assert "the connections to the control store are opened again" in job.errors(2)


def test_a_rank_that_only_its_monitor_process_connects_ends_in_time(prepare: Launch, tmp_path: Path) -> None:
    job = prepare({(0, 0, 3): "exception"}, wrapper=DEAF, gate=str(tmp_path / "go"))
    with behind_proxies(job, [1]) as proxies:
        job.await_line("step", initial_rank=1, step=2)
        assert host.eventually(lambda: bool(proxies[1].connections_beside(job.pids[1])), 10)
        proxies[1].mute(job.pids[1], later=True)
        (tmp_path / "go").touch()
        job.finish()
    assert job.codes[1] in (-signal.SIGTERM, -signal.SIGKILL, STORE_LOST)
    assert (job.codes[0], job.codes[2]) == (0, 0)
    (failed,) = job.lines("fault_injected")
    entered = max(line["at"] for line in job.lines("enter"))
    assert entered - failed["at"] < DEAF["hard_timeout"] + DEAF["heartbeat_timeout"] + 2.0
    assert_no_process_left(job)
