"""Launchers on hosts of their own (network namespaces), between which the network is cut and healed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.process.host import alive
from tests.harness.process.launch import Launch, Start, events_of, meeting_place
from tests.harness.process.netns import Network, network

LEASE = 5.0
"""Seconds without a sign of life after which a node is lost."""
PERIOD, GAP = 0.37, 0.15
"""Seconds between two gaps in which all that a host sends is lost, and of one."""


@pytest.fixture
def hosts() -> Iterator[Network]:
    with network(3) as hosts:
        yield hosts


@pytest.fixture
def start(launcher: Start, hosts: Network) -> Start:
    numbers = itertools.count()

    def start(case: str, *options: str) -> Launch:
        """Start a launcher on the next host; the first one hosts the rendezvous."""
        where = meeting_place(f"{hosts.addresses[0]}:29500")
        return launcher(case, *where, *options, host=hosts.command(next(numbers)))

    return start


def test_a_node_that_is_cut_off_ends_its_workers_first_and_joins_again(
    start: Start, hosts: Network, tmp_path: Path
) -> None:
    """Its place is taken by the spare; healed, it takes the place of another one that is lost."""
    options = ("--nnodes", "2:3", "--rdzv-conf", "last_call_timeout=0")
    first, victim = start("cut_off", *options), start("cut_off", *options)
    victim.read(2, "start")
    spare = start("cut_off", *options)
    pids = victim.pids()
    hosts.cut(1)
    spare.read(1, "start", 1)
    assert not any(map(alive, pids)), "workers of two cycles at a time"
    victim.await_log("the rendezvous store has not answered for 4 s")
    hosts.heal(1)
    spare.process.kill()
    victim.read(2, "start", 2)
    (tmp_path / "gate").touch()
    ends = [job.finish() for job in (first, victim)]
    assert [code for code, _ in ends] == [0, 0], ends


@pytest.mark.parametrize("outgoing", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_a_node_whose_link_is_cut_one_way_is_lost_like_one_that_is_cut_off(
    start: Start, hosts: Network, tmp_path: Path, outgoing: bool
) -> None:
    """It hears the others and they do not hear it, or they hear it and it does not hear them."""
    options = ("--nnodes", "2:3", "--rdzv-conf", "last_call_timeout=0")
    first, victim = start("cut_off", *options), start("cut_off", *options)
    victim.read(2, "start")
    spare = start("cut_off", *options)
    pids = victim.pids()
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
    assert sum(lossy(hosts, 1) for _ in range(int(1.5 * LEASE / PERIOD))) > 0
    (tmp_path / "gate").touch()
    ends = [job.finish() for job in (first, slow)]
    assert [code for code, _ in ends] == [0, 0], ends
    assert max(each["iteration"] for each in events_of(tmp_path, "cycle_started")) == 1
    assert all("has not moved its lease" not in log and "has not answered" not in log for _, log in ends), ends


def lossy(hosts: Network, number: int) -> int:
    """Lose what a host sends for a part of a period; returns how many packets."""
    hosts.cut_one_way(number, outgoing=True)
    time.sleep(GAP)
    lost = hosts.lost(number)
    hosts.slow(number)
    time.sleep(PERIOD - GAP)
    return lost
