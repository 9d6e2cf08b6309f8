"""Each injected mistake is found: by the checker, the simulation, or a state machine; who, and how soon, is printed."""

import hypothesis
import pytest
from hypothesis.stateful import run_state_machine_as_test

from tests.harness.sim.mutants import MUTANTS
from tests.harness.sim.mutation import mutated

SCHEDULES = 2_000
FOUND = r"(?s)I\d+:|deadlock|still going on|for ever|that is over|circles|internal error"


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_detected(name, capsys):
    bug, found = MUTANTS[name], []
    with mutated(name) as tools:
        if bug.config is not None:
            found.append(_by_checker(tools, vars(bug.config)))
        if bug.simulated:
            found.append(_by_simulation(tools))
        if bug.machine:
            found.append(_by_machine(tools, bug.machine))
    with capsys.disabled():
        print(f"\n{name}: {', '.join(found)}", end=" ")
    assert found


def _by_checker(tools, config):
    checker = tools.checker.Checker(tools.job.Config(**config))
    with pytest.raises(tools.checker.Violation, match=FOUND):
        checker.explore(limit=300_000)
    return f"checker, {len(checker.numbers):,} states"


def _by_simulation(tools):
    simulate, tried = tools.simulate, []
    with pytest.raises(simulate.Failure, match=FOUND):
        _simulate(simulate, tried)
    return f"simulation, {len(tried):,} schedules"


def _simulate(simulate, tried):
    for seed in range(SCHEDULES):
        tried.append(seed)
        simulate.Schedule(simulate.Options.draw(seed)).run()


def _by_machine(tools, name):
    machine = getattr(tools.machines, name)
    settings = hypothesis.settings(
        tools.machines.SETTINGS, report_multiple_bugs=False, phases=[hypothesis.Phase.generate]
    )
    with pytest.raises((AssertionError, TypeError)):
        run_state_machine_as_test(machine, settings=settings)
    return f"machine {name}"


def test_a_mutant_that_no_longer_applies_fails_with_its_text(monkeypatch):
    bug = MUTANTS["no arrival for a dead rank"]
    monkeypatch.setitem(MUTANTS, "moved", type(bug)(changes=(("round", "no such text", ""),)))
    with pytest.raises(AssertionError, match=r"applies 0 times to .*round: adapt it to\nno such text"):
        mutated("moved").__enter__()
