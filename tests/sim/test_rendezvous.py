"""The rendezvous keeps its rules: in seeded scenarios, with 2,000 nodes, and in all states of a small world."""

from __future__ import annotations

import pytest

from tests.harness.sim.explorer import Explorer, Violation
from tests.harness.sim.rendezvous import Failure, Job
from tests.harness.sim.rendezvous_checker import Launchers
from tests.harness.sim.rendezvous_mutants import MUTANTS, mutated
from tests.harness.sim.rendezvous_scenarios import Scenario

SEEDS = 250
SMALL = (
    (2, 2, (1, 0, 0), "any-failed"),
    (1, 2, (1, 1, 0), "any-failed"),
    (1, 2, (1, 1, 0), "min-healthy"),
    (1, 2, (0, 0, 1), "any-failed"),
)
LARGE = ((2, 3, (1, 1, 0), "any-failed"), (1, 2, (1, 1, 1), "min-healthy"), (1, 2, (1, 1, 1), "any-failed"))


def simulate(machines, seeds):
    for seed in seeds:
        Job(Scenario.draw(seed), machines).run()


@pytest.mark.exhaustive
def test_jobs_end_with_one_code_on_all_nodes_and_cycles_do_not_overlap():
    simulate(mutated(None), range(SEEDS))


@pytest.mark.nightly
def test_they_do_in_many_more_scenarios():
    simulate(mutated(None), range(SEEDS, 20_000))


@pytest.mark.exhaustive
def test_two_thousand_nodes_replace_those_that_are_lost():
    """50 spares; 20 nodes are lost, 5 cut off and healed, a worker fails, and the coordinator is lost."""
    least, spares = 2000, 50
    scenario = Scenario(
        7, least, least + spares, 1, "any-failed", tuple(0.001 * number for number in range(least + spares)),
        failures=((45.0, 500),), losses=tuple((10.0, number) for number in range(100, 120)),
        cuts=tuple((12.0, number, 10.0) for number in range(5)), successions=(30.0,), length=60.0,
    )  # fmt: skip
    job = Job(scenario, mutated(None))
    codes = job.run()
    assert {code for code in codes.values() if code != -9} == {0}
    assert (len(codes), job.coordinator.restarts) == (least + spares, 1)


@pytest.mark.parametrize("case", SMALL)
def test_every_state_of_a_small_job_keeps_the_rules(case, capsys):
    least, count, faults, policy = case
    figures = Explorer(Launchers(mutated(None), least, count, faults, policy)).explore()
    with capsys.disabled():
        print(f"\nrendezvous {case}: {figures.states} states, ends {sorted(map(str, figures.ends))}", end=" ")
    assert figures.states > 100


@pytest.mark.nightly
@pytest.mark.parametrize("case", LARGE)
def test_every_state_of_a_larger_job_keeps_the_rules(case):
    least, count, faults, policy = case
    assert Explorer(Launchers(mutated(None), least, count, faults, policy)).explore().states > 10_000


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_is_found(name, capsys):
    machines = mutated(name)
    found = _found(lambda: simulate(machines, range(SEEDS))) or _found(
        lambda: [Explorer(Launchers(machines, *case)).explore() for case in SMALL]
    )
    with capsys.disabled():
        print(f"\n{name}: {found}", end=" ")
    assert found


def _found(look):
    """How a mistake is found, "" when it is not."""
    try:
        look()
    except (Failure, Violation) as failure:
        return str(failure)[:100]
    except (AssertionError, KeyError, TypeError, ValueError) as failure:  # the machine's own check
        return repr(failure)[:100] or "a check"
    return ""
