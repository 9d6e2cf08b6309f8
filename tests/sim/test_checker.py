"""Every interleaving of small jobs: the invariants hold, every run ends."""

from collections.abc import Iterator

import pytest

from tests.harness.sim.checker import Checker, Config, Violation
from tests.harness.sim.job import Step
from tests.harness.sim.mutation import mutated
from tests.harness.sim.steps import Steps

SMALL = (
    Config(ranks=2, faults=1, leaves=1, atomic=1),
    Config(ranks=2, crashes=1, kills=1),
    Config(ranks=2, crashes=1, ghosts=True),
    Config(ranks=2, nodes=1),
    Config(ranks=2, nodes=1, asks=True),
    Config(ranks=2, hangs=1),
    Config(ranks=2, suspicions=1),
    Config(ranks=2, faults=2, discards=((1, 0),)),
    Config(ranks=2, faults=1, errors=((1, 0),)),
    Config(ranks=2, faults=1, quits=1),
    Config(ranks=2, faults=2, limit=2),
    Config(ranks=3, faults=1, atomic=1),
    Config(ranks=1, faults=1, crashes=1),
    Config(ranks=2, exits=1, faults=1),
    Config(ranks=2, breaks=1),
    Config(ranks=2, hosted=True),
    Config(ranks=2, hosted=True, crashes=1),
    Config(ranks=2, hosted=True, leaves=1),
    Config(ranks=2, faults=1, fails=(("keys", -1, 0),)),
    Config(ranks=2, faults=1, fails=(("keys", 0, 1), ("recover", 0, 0))),
    Config(ranks=2, fails=(("initialize", 0, 1),)),
)
LARGE = (
    Config(ranks=2, crashes=2, faults=1, ghosts=True),
    Config(ranks=2, crashes=1, faults=2, atomic=1),
    Config(ranks=2, crashes=1, hangs=1, kills=1),
    Config(ranks=2, faults=1, suspicions=1),
    Config(ranks=2, nodes=1, suspicions=1),
    Config(ranks=2, nodes=1, faults=1, kills=1),
    Config(ranks=2, nodes=1, faults=1, kills=1, asks=True),
    Config(ranks=2, crashes=1, faults=1, errors=((1, 0),)),
    Config(ranks=2, faults=1, quits=2),
    Config(ranks=2, nodes=1, quits=1),
    Config(ranks=2, crashes=1, faults=2, limit=2),
    Config(ranks=3, faults=2, atomic=1),
    Config(ranks=3, crashes=1, faults=1),
    Config(ranks=3, crashes=1, discards=((1, 1),)),
    Config(ranks=2, exits=1, faults=1, crashes=1),
    Config(ranks=2, faults=1, breaks=2),
    Config(ranks=2, hosted=True, crashes=1, faults=1, leaves=1),
    Config(ranks=2, crashes=1, faults=1, fails=(("initialize", 1, 0), ("recover", 1, 1))),
)


@pytest.mark.parametrize("config", SMALL, ids=str)
def test_every_run_of_a_small_job_ends_well(config: Config) -> None:
    assert Checker(config).explore().states > 10


@pytest.mark.exhaustive
@pytest.mark.parametrize("config", LARGE, ids=str)
def test_every_run_ends_well(config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    figures = Checker(config).explore()
    with capsys.disabled():
        print(f"\n{config}: {figures}", end=" ")
    assert figures.states > 10_000


def test_a_violation_lists_the_steps_that_lead_to_it() -> None:
    with mutated("no arrival for a dead rank") as tools, pytest.raises(AssertionError) as found:
        tools.checker.Checker(tools.job.Config(ranks=2, crashes=1)).explore()
    assert "  1. " in str(found.value)
    assert "dies" in str(found.value)
    assert "round -1: Record(" in str(found.value)


def test_a_search_that_grows_too_large_fails() -> None:
    with pytest.raises(Violation, match="more than 50 states: ranks=2, faults=1"):
        Checker(Config(ranks=2, faults=1)).explore(limit=50)


def test_a_cycle_of_states_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(steps: Steps, *_: object) -> Iterator[Step]:
        yield "begins anew", steps.first()

    monkeypatch.setattr(Steps, "_monitor_process", forgets)
    with pytest.raises(Violation, match="circles"):
        Checker(Config(ranks=1)).explore()
