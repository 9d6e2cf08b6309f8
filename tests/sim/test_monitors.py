"""Rank monitors end a hung rank in time, and no other: in seeded scenarios, and in all states of a small world."""

from __future__ import annotations

import pytest

from tests.harness.sim.explorer import Explorer, Violation
from tests.harness.sim.monitor_checker import Ticks
from tests.harness.sim.monitor_mutants import MUTANTS, mutated
from tests.harness.sim.monitors import LOST_FOR, Failure, Host, Scenario

SEEDS = 100


def simulate(modules, seeds):
    for seed in seeds:
        Host(Scenario.draw(seed), modules).run()


@pytest.mark.exhaustive
def test_hung_ranks_are_ended_in_time_and_no_others():
    with mutated(None) as modules:
        simulate(modules, range(SEEDS))


@pytest.mark.nightly
def test_hung_ranks_are_ended_in_time_and_no_others_in_many_more_scenarios():
    with mutated(None) as modules:
        simulate(modules, range(SEEDS, 20_000))


@pytest.mark.parametrize("by_sections", [False, True])
@pytest.mark.parametrize("lost_for", [None, LOST_FOR])
def test_the_rank_that_is_behind_is_ended_first(by_sections, lost_for):
    """Whatever the order in which the monitors look, and though one of them is lost as its rank hangs."""
    losses = {rank: [(10.0, lost_for)] if lost_for and rank == 1 else [] for rank in range(3)}
    for hangs_at in (9.0, 10.0, 11.7):
        scenario = Scenario(3, 5.0, by_sections, (0.3, 0.35, 0.4), {1: hangs_at}, losses)
        with mutated(None) as modules:
            host = Host(scenario, modules)
            ended = host.run()
        assert ended[0] == 1
        assert host.ranks[1].ended_at - host.ranks[1].moved_at < 6.5 + (lost_for or 0.0)
        assert all(host.ranks[rank].ended_at >= host.ranks[rank].moved_at + 10.0 for rank in ended[1:])


@pytest.mark.parametrize("by_sections", [False, True])
def test_a_monitor_that_is_lost_in_the_middle_of_its_turn_delays_the_end_by_its_absence_and_a_turn(by_sections):
    """Rank 1 is excused until 46.3 s, since rank 0 hung; the question after that is lost with the monitor."""
    for lost_at in (46.3 + 0.01 * step for step in range(20)):
        scenario = Scenario(2, 20.0, by_sections, (3.0, 3.1), {0: 4.0}, {0: [], 1: [(lost_at, 0.53)]})
        with mutated(None) as modules:
            assert Host(scenario, modules).run() == [0, 1]


def test_ranks_that_train_are_never_ended_whatever_becomes_of_their_monitors():
    losses = {rank: [(float(second), 1.0) for second in range(rank, 100, 3)] for rank in range(3)}
    with mutated(None) as modules:
        assert Host(Scenario(3, 2.0, True, (0.5, 0.6, 0.7), {}, losses), modules).run() == []


def test_every_state_of_a_rank_and_its_monitor_keeps_the_rules(capsys):
    with mutated(None) as modules:
        ticks = Ticks(modules)
        states = Explorer(ticks).explore().states
    with capsys.disabled():
        print(f"\nrank monitor: {states} states, {ticks.ended} ends, {ticks.killed} kills", end=" ")
    assert states > 100
    assert ticks.ended
    assert ticks.killed
    assert ticks.excused


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_is_found(name, capsys):
    with mutated(name) as modules:
        found = _found(lambda: Explorer(Ticks(modules)).explore()) or _found(lambda: simulate(modules, range(SEEDS)))
    with capsys.disabled():
        print(f"\n{name}: {found}", end=" ")
    assert found


def _found(look):
    """How a mistake is found, "" when it is not."""
    try:
        look()
    except (Failure, Violation) as failure:
        return str(failure)[:100]
    except (AssertionError, TypeError) as failure:  # the machine's own check
        return repr(failure)[:100]
    return ""
