"""No step is lost in memory, and no survivor goes on from mixed or torn state: in all states of small jobs."""

from __future__ import annotations

import pytest

from tests.harness.sim.explorer import Explorer, Violation
from tests.harness.sim.live_mutants import (
    ALTERNATING,
    LOST,
    MUTANTS,
    ONCE,
    REPLICAS,
    RESERVE,
    SHARDED,
    TWICE,
    UNKNOWING,
    UNTOLD,
    mutated,
)
from tests.harness.sim.live_state import LiveSpace


def explore(name=None, **sizes):
    with mutated(name) as (training, memory):
        figures = Explorer(LiveSpace(training, memory, **sizes)).explore()
        print(f"\n{sizes}: {figures}", end=" ")
        return figures


@pytest.mark.parametrize(
    "sizes",
    [
        ONCE,
        LOST,
        pytest.param(SHARDED, marks=pytest.mark.exhaustive),
        pytest.param(UNTOLD, marks=pytest.mark.exhaustive),
    ],
    ids=["replicas", "a lost rank", "shards", "untold"],
)
def test_a_fault_anywhere_costs_no_step(sizes):
    assert explore(**sizes).rounds == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("sizes", [TWICE, UNKNOWING], ids=["replicas", "a rank does not know its vote"])
def test_two_faults_cost_no_step(sizes):
    assert explore(**sizes).rounds == 2


@pytest.mark.nightly
@pytest.mark.parametrize(
    "sizes",
    [
        REPLICAS,
        RESERVE,
        {**TWICE, "steps": 2},
        {**RESERVE, "kills": 1},
        {"processes": 3, "steps": 1, "faults": 2, "kills": 2},
        ALTERNATING,
        {**RESERVE, "kills": 1, "tells": False},
        {**TWICE, "tells": False},
    ],
    ids=[
        "replicas of shards",
        "reserves",
        "two steps",
        "reserves and a lost rank",
        "two lost ranks",
        "all in turn",
        "untold reserves",
        "two untold faults",
    ],
)
def test_reserves_that_return_and_more_faults_cost_no_step(sizes):
    assert explore(**sizes).rounds >= 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MUTANTS)
def test_each_mutant_is_detected(name):
    with pytest.raises(Violation):
        explore(name, **MUTANTS[name][3])
