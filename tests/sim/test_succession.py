"""The succession of coordinators keeps its rules, whatever launcher stands still between whichever operations."""

from __future__ import annotations

import pytest

from tests.harness.sim.succession import MUTANTS, Succession

SEEDS = 300


@pytest.mark.exhaustive
def test_no_decision_of_a_term_follows_the_fence_of_a_later_one_and_terms_only_grow():
    for seed in range(SEEDS):
        Succession(seed).run()


@pytest.mark.nightly
@pytest.mark.parametrize("launchers", [2, 4])
def test_they_do_in_many_more_schedules(launchers):
    for seed in range(5_000):
        Succession(seed, launchers=launchers).run()


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_is_found(name, capsys):
    for seed in range(SEEDS):
        try:
            Succession(seed, name).run()
        except AssertionError as failure:
            with capsys.disabled():
                print(f"\n{name}: {str(failure).splitlines()[0]}", end=" ")
            return
    pytest.fail("it is not found")
