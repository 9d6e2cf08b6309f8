"""Launchers on hosts of their own (network namespaces), between which the network is cut and healed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.process.host import alive
from tests.harness.process.launch import Launch, Start, meeting_place
from tests.harness.process.netns import Network, network


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
