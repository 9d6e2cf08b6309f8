"""Launchers on hosts of their own (network namespaces), between which the network is cut and healed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.process.host import alive
from tests.harness.process.launch import Launch, Start, events_of, rendezvous_options
from tests.harness.process.netns import Network, network

GAPS = 20
"""In 7.4 s, each without what a host sends; a node without a sign of life for 5 s would be lost."""


@pytest.fixture
def hosts() -> Iterator[Network]:
    with network(3) as hosts:
        yield hosts


@pytest.fixture
def start(launcher: Start, hosts: Network) -> Start:
    numbers = itertools.count()

    def start(case: str, *options: str, on: int = -1, endpoint: str = "") -> Launch:
        """Start a launcher on the next host, or on another one; that on the first one hosts the rendezvous."""
        where = rendezvous_options(f"{endpoint or hosts.addresses[0]}:29500")
        return launcher(case, *where, *options, host=hosts.command(next(numbers) if on < 0 else on))

    return start


def with_a_spare(start: Start) -> list[Launch]:
    """Start two nodes that take part, and a third one once their workers run."""
    options = ("--nnodes", "2:3", "--rdzv-conf", "last_call_timeout=0")
    started = [start("cut_off", *options) for _ in range(2)]
    started[1].read(2, "start")
    return [*started, start("cut_off", *options)]


def test_a_node_that_is_cut_off_ends_its_workers_first_and_joins_again(
    start: Start, hosts: Network, tmp_path: Path
) -> None:
    """Its place is taken by the spare; healed, it takes the place of another one that is lost."""
    first, target, spare = with_a_spare(start)
    pids = target.pids()
    hosts.cut(1)
    spare.read(1, "start", 1)
    assert not any(map(alive, pids)), "workers of two cycles at a time"
    target.await_log("the rendezvous store has not answered for 4 s")
    hosts.heal(1)
    spare.process.kill()
    target.read(2, "start", 2)
    (tmp_path / "gate").touch()
    ends = [job.finish() for job in (first, target)]
    assert [code for code, _ in ends] == [0, 0], ends


@pytest.mark.parametrize("outgoing", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_a_node_whose_link_is_cut_one_way_is_lost_like_one_that_is_cut_off(
    start: Start, hosts: Network, tmp_path: Path, outgoing: bool
) -> None:
    """It hears the others and they do not hear it, or they hear it and it does not hear them."""
    first, target, spare = with_a_spare(start)
    pids = target.pids()
    hosts.cut_one_way(1, outgoing=outgoing)
    spare.read(1, "start", 1)
    assert not any(map(alive, pids)), "workers of two cycles at a time"
    (tmp_path / "gate").touch()
    ends = [job.finish() for job in (first, spare)]
    assert [code for code, _ in ends] == [0, 0], ends
    assert max(each["iteration"] for each in events_of(tmp_path, "cycle_started")) == 1


def test_a_slow_link_that_loses_packets_is_no_loss_of_a_node(start: Start, hosts: Network, tmp_path: Path) -> None:
    """A worker is killed behind it, too: one restart, and none for the link."""
    first, slow = (start("killed_then_gated", "--nnodes", "2", "--max-restarts", "1") for _ in range(2))
    for job in (first, slow):
        job.read(2, "start")
    hosts.slow(1)
    (tmp_path / "kill").touch()
    for job in (first, slow):
        job.read(2, "start", 1)
    assert hosts.lose_some(1, GAPS) > 0
    (tmp_path / "gate").touch()
    ends = [job.finish() for job in (first, slow)]
    assert [code for code, _ in ends] == [0, 0], ends
    assert max(each["iteration"] for each in events_of(tmp_path, "cycle_started")) == 1
    assert all("has not moved its lease" not in log and "has not answered" not in log for _, log in ends), ends


@pytest.mark.parametrize(
    ("cut", "is_healed"), [(0, True), (0, False), pytest.param(1, False, marks=pytest.mark.nightly)]
)
def test_two_nodes_that_are_cut_from_each_other(
    start: Start, hosts: Network, tmp_path: Path, cut: int, is_healed: bool
) -> None:
    """Whichever is cut off, the one that does not host the rendezvous ends its workers, within its lease."""
    options = (
        "--nnodes",
        "2",
        "--rdzv-conf",
        "join_timeout=20,read_timeout=3" if is_healed else "join_timeout=15,read_timeout=3",
    )
    host, other = start("cut_off", *options), start("cut_off", *options)
    for job in (host, other):
        job.read(2, "start")
    hosts.cut(cut)
    host.await_log("has not moved its lease for 5 s")
    assert not any(map(alive, other.pids())), "a node that is cut off keeps no worker longer than its lease"
    if is_healed:
        hosts.heal(cut)
    (tmp_path / "gate").touch()
    ends = [job.finish() for job in (host, other)]
    assert [code for code, _ in ends] == ([0, 0] if is_healed else [1, 75]), ends
    if is_healed:
        again = [
            each["rank"]
            for job in (host, other)
            for each in job.events
            if (each["event"], each["cycle"]) == ("done", 1)
        ]
        assert sorted(again) == [0, 1, 2, 3]
    else:
        assert "1 of 2 nodes have joined in 15 s" in ends[0][1]
        assert f"the rendezvous store is lost: no way to {hosts.addresses[0]}:29500 for 15 s" in ends[1][1]


@pytest.mark.parametrize("gap", [2.0, pytest.param(60.0, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("order", [(2, 1, 0), pytest.param((0, 2, 1), marks=pytest.mark.nightly)])
def test_launchers_find_each_other_in_any_order(start: Start, order: tuple[int, ...], gap: float) -> None:
    """The host of the rendezvous may be the last one."""
    jobs = list[Launch]()
    for host in order:
        time.sleep(gap if jobs else 0.0)
        jobs.append(start("done", "--nnodes", "3", on=host))
    ends = [job.finish() for job in jobs]
    assert [code for code, _ in ends] == [0, 0, 0], ends
    assert sorted(each["rank"] for job in jobs for each in job.events if each["event"] == "done") == list(range(6))


def test_an_endpoint_where_no_launcher_is_says_what_was_tried(start: Start, hosts: Network) -> None:
    """The address of another host, where nobody listens, and one that no host has."""
    options = ("--nnodes", "2", "--rdzv-conf", "store_connect_wait_seconds=0.5")
    jobs = {address: start("done", *options, on=0, endpoint=address) for address in (hosts.addresses[1], "10.77.0.99")}
    for address, job in jobs.items():
        code, log = job.finish()
        assert code == 1, log
        assert f"nobody hosts the rendezvous at {address}:29500: to listen there failed (Cannot assign requested" in log
        assert "--rdzv-endpoint must be an address of one of the job's nodes" in log
