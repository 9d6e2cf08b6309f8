"""Simulated faults: what is understood, where they are injected, how often."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from nvrx_lightning.monitoring.faults import SimulatedFaultParams, SimulatedFaults

from nvrx_core.testing import FaultKind, InjectedFault


def made(given: Any) -> SimulatedFaults:
    faults = SimulatedFaults.of(given)
    assert faults is not None
    return faults


def test_none_is_none() -> None:
    assert SimulatedFaults.of(None) is None


@pytest.mark.parametrize(
    "given",
    [
        "1:3:backward=exception, 0:0:setup=kill",
        {(1, 3, "backward"): FaultKind.EXCEPTION, (0, 0, "setup"): "kill"},
        {("1", "3", "backward"): "exception"},
        SimulatedFaults.of("1:3:backward=exception"),
    ],
)
def test_a_fault_is_injected_into_its_rank_at_its_step_and_phase_once(given: Any) -> None:
    step, faults = 2, made(given)
    assert made("1:3:backward=kill").finder(0, lambda: step, None)("backward") is None
    find = faults.finder(1, lambda: step, None)
    assert find("forward") is None
    inject = find("backward")
    assert inject is not None
    inject()
    step = 3
    with pytest.raises(InjectedFault):
        inject()
    inject()


def test_a_rank_that_takes_the_place_of_a_lost_one_does_not_inherit_its_faults() -> None:
    faults = made("0:3:data=exception, 1:4:data=exception")
    faults.finder(1, lambda: 3, None)
    inject = faults.finder(0, lambda: 3, None)("data")
    assert inject is not None
    inject()


def test_a_fault_is_injected_in_the_first_cycle_of_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    assert made("1:3:step_or_so=kill".replace("step_or_so", "data")).finder(1, lambda: 3, None)("data") is not None
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert made("1:3:data=kill").finder(1, lambda: 3, None)("data") is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("1:3=kill", r"\('1', '3'\) is no \(rank, step, phase\); write it as in '1:3:backward=kill'"),
        ("a:3:data=kill", r"is no \(rank, step, phase\)"),
        ("1:3:lunch=kill", "'lunch' is no phase; write one of setup, data, forward, backward"),
        ("1:3:data=naught", "'naught' is no kind of fault; write one of rank_killed, rank_hung, exception"),
        (SimpleNamespace(fault_type="naught", base_delay=1.0), "'naught' is no kind of fault"),
    ],
)
def test_what_is_not_understood_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SimulatedFaults.of(given)


def test_the_peers_parameters_pick_the_same_rank_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    injected = list[tuple[Any, float]]()
    monkeypatch.setattr("nvrx_core.testing.injection.inject_fault", lambda kind, delay: injected.append((kind, delay)))
    peers = SimpleNamespace(fault_type=SimpleNamespace(value="random"), base_delay=5, rand_delay=2, rank_to_fail=None)
    for given in (peers, SimulatedFaultParams("random", 5.0, 2.0)):
        for rank in range(4):
            made(given).begin(rank, 4)
    assert len(injected) == 2
    assert injected[0] == injected[1]
    kind, delay = injected[0]
    assert kind in (FaultKind.KILL, FaultKind.STOP)
    assert 5.0 <= delay <= 7.0


def test_a_rank_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    injected = list[Any]()
    monkeypatch.setattr("nvrx_core.testing.injection.inject_fault", lambda kind, delay: injected.append((kind, delay)))
    for rank in range(3):
        made(SimulatedFaultParams("rank_hung", 1.0, rank_to_fail=2)).begin(rank, 3)
    assert injected == [(FaultKind.STOP, 1.0)]
    made("1:3:data=kill").begin(1, 3)
    assert len(injected) == 1
