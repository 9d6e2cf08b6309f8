"""Every method of `RankMonitorClient`, in this process, which a monitor process watches without timeouts."""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nvrx_core.fault_tolerance import (
    FaultToleranceConfig,
    RankInfo,
    RankMonitorClient,
    RankMonitorClientError,
    RankMonitorServer,
    client as module,
    recorder,
)
from nvrx_core.fault_tolerance.server import RankMonitorProcess
from nvrx_core.progress.page import ProgressField, SectionField

PR_SET_SECCOMP, SECCOMP_MODE_STRICT = 22, 1
NO_TIMEOUTS: dict[str, Any] = {
    "initial_rank_heartbeat_timeout": None,
    "rank_heartbeat_timeout": None,
    "rank_section_timeouts": {"step": None, "save": 600.0},
    "log_level": "ERROR",
}
FIRST = r"call init_workload_monitoring\(\) first"
LEARNED = {
    "current_timeouts": {
        "heartbeat": {"initial": 500.0, "subsequent": 400.0, "were_calculated": True},
        "section": {
            "section": {"step": 300.0, "save": 900.0, "data": 250.5},
            "out_of_section": 200.0,
            "calculated_sections": ["data", "step"],
            "is_out_of_section_calculated": True,
        },
    }
}


@pytest.fixture(scope="module")
def monitor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankMonitorProcess]:
    path = tmp_path_factory.mktemp("monitor") / "rank.socket"
    monitor = RankMonitorServer.run_in_subprocess(FaultToleranceConfig(**NO_TIMEOUTS), path)
    yield monitor
    monitor.terminate()


@pytest.fixture
def at_monitor(monitor: RankMonitorProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FT_RANK_MONITOR_IPC_SOCKET", str(monitor._listener.path))
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("LOCAL_RANK", "1")


@pytest.fixture
def make(at_monitor: None) -> Iterator[Callable[..., RankMonitorClient]]:
    made: list[RankMonitorClient] = []

    def make(**arguments: Any) -> RankMonitorClient:
        made.append(RankMonitorClient(**arguments))
        return made[-1]

    yield make
    for client in made:
        client.shutdown_workload_monitoring()


@pytest.fixture
def client(make: Callable[..., RankMonitorClient]) -> RankMonitorClient:
    made = make()
    made.init_workload_monitoring()
    return made


# Initialisation


def test_a_client_that_is_not_initialised_says_so() -> None:
    client = RankMonitorClient()
    assert (client.is_initialized, client.cfg, client.rank_info) == (False, None, None)
    calls: list[Callable[[], object]] = [
        client.send_heartbeat,
        lambda: client.start_section("step"),
        lambda: client.end_section("step"),
        client.end_all_sections,
        client.calculate_and_set_hb_timeouts,
        client.calculate_and_set_section_timeouts,
        lambda: client.timeouts_calc,
        lambda: client.page,
    ]
    for call in calls:
        with pytest.raises(RankMonitorClientError, match=FIRST):
            call()
    client.shutdown_workload_monitoring()
    assert client.state_dict() == {"current_timeouts": {}}


def test_without_a_monitor_a_rank_is_told_how_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv("FT_RANK_MONITOR_IPC_SOCKET", raising=False)
    with pytest.raises(RankMonitorClientError, match=r"Start the script with ft_launcher, or call .*start_local_monit"):
        RankMonitorClient().init_workload_monitoring()
    monkeypatch.setenv("FT_RANK_MONITOR_IPC_SOCKET", str(tmp_path / "nobody"))
    with pytest.raises(RankMonitorClientError, match=r"nobody does not answer: .*No such file"):
        RankMonitorClient().init_workload_monitoring()


def test_a_rank_that_has_no_number_cannot_be_monitored(at_monitor: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK")
    with pytest.raises(RuntimeError, match="the rank is unknown"):
        RankMonitorClient().init_workload_monitoring()


def test_a_client_has_the_configuration_of_its_monitor(client: RankMonitorClient, monitor: RankMonitorProcess) -> None:
    assert client.is_initialized
    assert client.cfg == FaultToleranceConfig(**NO_TIMEOUTS)
    assert client.rank_info == RankInfo(3, 1, os.uname().nodename, os.getpid())
    assert (client.hb_timeouts.initial, client.section_timeouts.section) == (None, {"step": None, "save": 600.0})
    assert [client.page[field] for field in (ProgressField.RANK, ProgressField.WARMUP_STEPS)] == [3, 5]
    assert monitor.page[ProgressField.ATTACHED_PID] == os.getpid()


def test_a_rank_is_initialised_once_until_it_is_shut_down(client: RankMonitorClient) -> None:
    with pytest.raises(RankMonitorClientError, match="was called before; shut it down first"):
        client.init_workload_monitoring()
    client.start_section("step")
    client.shutdown_workload_monitoring()
    client.shutdown_workload_monitoring()
    assert not client.is_initialized
    with pytest.raises(RankMonitorClientError, match=FIRST):
        client.send_heartbeat()
    client.init_workload_monitoring(num_warmup_iters=7)
    client.start_section("step")
    assert client.page[ProgressField.WARMUP_STEPS] == 7


def test_a_monitor_does_not_count_a_rank_that_has_shut_down(
    client: RankMonitorClient, monitor: RankMonitorProcess
) -> None:
    assert monitor.page[ProgressField.ATTACHED_AT] > 0
    client.shutdown_workload_monitoring()
    assert monitor.page[ProgressField.ATTACHED_AT] == 0


def test_another_client_of_the_process_takes_its_place(
    client: RankMonitorClient, make: Callable[..., RankMonitorClient]
) -> None:
    client.start_section("step")
    other = make()
    other.init_workload_monitoring()
    assert not client.is_initialized
    other.start_section("step")
    with pytest.raises(RankMonitorClientError, match=FIRST):
        client.end_section("step")


# Sections and heartbeats


def test_heartbeats_are_counted(client: RankMonitorClient, monitor: RankMonitorProcess) -> None:
    for _ in range(3):
        client.send_heartbeat()
    assert monitor.page[ProgressField.HEARTBEATS] == 3
    assert client.timeouts_calc.subsequent > 0


def test_sections_may_cross(client: RankMonitorClient, monitor: RankMonitorProcess) -> None:
    client.start_section("outer")
    client.start_section("inner")
    client.end_section("outer")
    slots = monitor.page.sections()
    assert [bool(monitor.page.words[slots[name]]) for name in ("outer", "inner")] == [False, True]
    client.end_section("inner")


def test_all_sections_end_at_once(client: RankMonitorClient, monitor: RankMonitorProcess) -> None:
    client.end_all_sections()
    for name in ("outer", "inner", "step"):
        client.start_section(name)
    client.end_all_sections()
    assert not any(monitor.page.words[slot + SectionField.OPENED_AT] for slot in monitor.page.sections().values())
    with pytest.raises(RankMonitorClientError, match="no section is open"):
        client.end_section("step")
    client.start_section("step")


def test_a_strict_client_refuses_other_sections(make: Callable[..., RankMonitorClient]) -> None:
    client = make(strict_sections=True)
    client.init_workload_monitoring()
    client.start_section("save")
    with pytest.raises(RankMonitorClientError, match="strict_sections is on, and rank_section_timeouts has 'step', 's"):
        client.start_section("data")


def test_thousands_of_sections_and_heartbeats_take_no_memory(client: RankMonitorClient) -> None:
    def work(number: int) -> None:
        for _ in range(number):
            client.start_section("step")
            client.end_section("step")
            for _ in range(10):
                client.send_heartbeat()

    work(10)
    files = len(os.listdir("/proc/self/fd"))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        work(1_000)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 10_000
    assert len(os.listdir("/proc/self/fd")) == files


def test_an_empty_section_costs_no_system_call(client: RankMonitorClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as Megatron-LM opens before each step: in a process that may only read and write (seccomp(2), strict mode).

    So it sends no message and wakes no thread. The mode forbids to read the time stamp counter, too: no clock is read.
    """
    monkeypatch.setattr(recorder, "_now", itertools.count(1).__next__)
    (reader, writer), prctl = os.pipe(), ctypes.CDLL(None, use_errno=True).prctl
    client.start_section("checkpointing")  # the first one declares it
    client.end_section("checkpointing")
    child = os.fork()
    if child == 0:
        gc.disable()
        slot, words = client.page.sections()["checkpointing"], client.page.words
        if prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0) == 0:
            for _ in range(10_000):
                client.start_section("checkpointing")
                client.end_section("checkpointing")
            os.write(writer, b"%d" % words[slot + SectionField.COUNT])
        os._exit(0)  # which is a system call: the kernel kills it
    os.close(writer)
    try:
        assert os.read(reader, 9) == b"10001"
    finally:
        os.close(reader)
        os.waitpid(child, 0)


# Learned timeouts


@pytest.mark.parametrize("when", ["before", "after"])
def test_learned_timeouts_are_taken_from_a_checkpoint(
    make: Callable[..., RankMonitorClient], monitor: RankMonitorProcess, when: str
) -> None:
    client = make()
    if when == "before":
        client.load_state_dict(LEARNED)
        assert client.state_dict()["current_timeouts"]["heartbeat"] == LEARNED["current_timeouts"]["heartbeat"]
    client.init_workload_monitoring()
    if when == "after":
        client.load_state_dict(LEARNED)
    page = monitor.page
    assert page[ProgressField.HEARTBEAT_TIMEOUT] == 400_000_000_000
    assert page[ProgressField.OUT_TIMEOUT] == 200_000_000_000
    seconds = {name: page.words[slot + SectionField.TIMEOUT] / 1e9 for name, slot in page.sections().items()}
    assert seconds == {"step": 300.0, "save": 600.0, "data": 250.5}
    learned = client.state_dict()["current_timeouts"]
    assert learned["heartbeat"] == LEARNED["current_timeouts"]["heartbeat"]
    assert learned["section"]["calculated_sections"] == ["data", "step"]


def test_what_is_no_state_dict_changes_nothing(client: RankMonitorClient) -> None:
    before = client.state_dict()
    with pytest.raises(RankMonitorClientError, match=r"not what state_dict\(\) has returned"):
        client.load_state_dict({"current_timeouts": {"heartbeat": {"initial": "soon"}}})
    assert client.state_dict() == before


def test_one_rank_alone_learns_from_what_it_has_measured(client: RankMonitorClient) -> None:
    assert not client.calculate_and_set_hb_timeouts(skip_if_not_ready=True)
    with pytest.raises(RankMonitorClientError, match="cannot be calculated yet: no rank has sent two heartbeats"):
        client.calculate_and_set_hb_timeouts()
    assert not client.calculate_and_set_section_timeouts(["step"], skip_if_not_ready=True)
    with pytest.raises(RankMonitorClientError, match="never measured on any rank: step"):
        client.calculate_and_set_section_timeouts(["step"])
    client.send_heartbeat()
    client.send_heartbeat()
    client.start_section("step")
    client.end_section("step")
    measured = client.timeouts_calc
    assert client.calculate_and_set_hb_timeouts()
    assert client.calculate_and_set_section_timeouts(["step"], calc_out_of_section=False)
    assert client.hb_timeouts.subsequent == 5 * measured.subsequent
    assert client.section_timeouts.section == {"step": 5 * measured.sections["step"], "save": 600.0}
    assert client.section_timeouts.out_of_section is None


@pytest.mark.parametrize(("least", "enforced"), [(None, 60), (2.0, 2)], ids=["of the setting", "of the client"])
def test_a_learned_timeout_of_a_moment_is_enforced_from_a_minimum_up(
    make: Callable[..., RankMonitorClient], least: float | None, enforced: int
) -> None:
    client = make(least_learned=least)
    client.init_workload_monitoring()
    client.start_section("step")
    client.end_section("step")
    client.calculate_and_set_section_timeouts(["step"], calc_out_of_section=False)
    page = client.page
    assert page.words[page.sections()["step"] + SectionField.TIMEOUT] == enforced * 1_000_000_000


def test_the_exit_of_a_monitored_process_waits_for_threads_of_torch(
    make: Callable[..., RankMonitorClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = list[bool]()
    monkeypatch.setattr(module, "await_at_exit", lambda: waits.append(True))
    make().init_workload_monitoring()
    assert waits == [True]
