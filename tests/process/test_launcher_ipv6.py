"""ft_launcher over IPv6: rendezvous, store of in-process restart and the workers' process groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nvrx_core.parsing import endpoint_text
from tests.harness.process.etcd import Etcd, etcd_in
from tests.harness.process.host import free_ports
from tests.harness.process.launch import Launch, Start, rendezvous_options
from tests.harness.process.netns import Network, network

LOOPBACK = "::1"
night = pytest.mark.nightly


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    with etcd_in(tmp_path / "etcd", LOOPBACK) as running:
        yield running


@pytest.fixture
def hosts() -> Iterator[Network]:
    with network(2, ipv6=True) as hosts:
        yield hosts


def goes_on_without_a_rank_of_each(jobs: list[Launch], gate: Path) -> None:
    """Two nodes run `launcher_wrapped.py 0,3`: a group, and an in-process restart by which ranks 1 and 2 go on."""
    for job in jobs:
        job.await_log("in-process restart continues without rank")
    gate.touch()
    ends = [job.finish() for job in jobs]
    assert [code for code, _ in ends] == [0, 0], ends
    assert sorted(each["rank"] for job in jobs for each in job.events if each["event"] == "done") == [1, 2]


@pytest.mark.parametrize("form", ["::1:{}", pytest.param("[::1]:{}", marks=night)])
def test_two_nodes_meet_at_an_address_of_ipv6(launcher: Start, form: str) -> None:
    logs = logs_of_two_that_meet(launcher, *rendezvous_options(form.format(free_ports())))
    assert any("host the rendezvous at [::1]:" in log for log in logs)


def logs_of_two_that_meet(launcher: Start, *where: str) -> list[str]:
    """Let one rank of each of two nodes join a group."""
    options = (*where, "--nnodes", "2", "--nproc-per-node", "1")
    jobs = [launcher("-", *options, worker="launcher_meets.py", OMP_NUM_THREADS="1") for _ in range(2)]
    ends = [job.finish() for job in jobs]
    assert [code for code, _ in ends] == [0, 0], ends
    assert [each["total"] for job in jobs for each in job.events if each["event"] == "done"] == [2.0] * 2
    return [log for _, log in ends]


@night  # a shorter form of `test_hosts_without_ipv4_run_a_job`
def test_a_wrapped_call_goes_on_over_ipv6(launcher: Start, tmp_path: Path) -> None:
    where = rendezvous_options(endpoint_text(LOOPBACK, free_ports()))
    jobs = [launcher("0,3", *where, "--nnodes", "2", worker="launcher_wrapped.py") for _ in range(2)]
    goes_on_without_a_rank_of_each(jobs, tmp_path / "gate")


@pytest.mark.parametrize("address", ["::1", pytest.param("[::1]", marks=night)])
def test_the_workers_of_one_node_meet_at_its_master_addr(launcher: Start, tmp_path: Path, address: str) -> None:
    job = launcher("0", "--master-addr", address, worker="launcher_wrapped.py")
    job.await_log("in-process restart continues without rank 0")
    (tmp_path / "gate").touch()
    code, log = job.finish()
    assert code == 0, log
    assert "host the store of in-process restart at [::1]:" in log


@pytest.mark.parametrize("scheme", ["", pytest.param("http://", marks=night)])
def test_an_etcd_of_ipv6_is_a_rendezvous(launcher: Start, etcd: Etcd, scheme: str) -> None:
    logs_of_two_that_meet(launcher, "--rdzv-backend", "etcd-v2", *rendezvous_options(f"{scheme}{etcd.endpoint}"))


def test_hosts_without_ipv4_run_a_job(launcher: Start, hosts: Network, tmp_path: Path) -> None:
    where = (*rendezvous_options(endpoint_text(hosts.addresses[0], 29500)), "--nnodes", "2")
    options = {"worker": "launcher_wrapped.py", "GLOO_SOCKET_IFNAME": "eth0"}
    jobs = [launcher("0,3", *where, host=hosts.command(number), **options) for number in range(2)]
    goes_on_without_a_rank_of_each(jobs, tmp_path / "gate")


def test_an_address_whose_port_is_uncertain_is_refused_before_anything_starts(launcher: Start) -> None:
    code, log = launcher("done", "--nnodes", "2", "--rdzv-endpoint", "::1").finish()
    assert code == 2
    assert "put the address in brackets, as in [::1]:29500" in log


def test_torchruns_way_to_write_any_port_starts_one_node(launcher: Start) -> None:
    code, log = launcher("done", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0").finish()
    assert code == 0, log
