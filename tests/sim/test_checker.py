"""Every interleaving of small jobs: the invariants hold, every run ends."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tests.harness.sim.checker import Checker, Config, Figures, Violation
from tests.harness.sim.job import Step
from tests.harness.sim.liveness import _before, live_names
from tests.harness.sim.mutation import mutated
from tests.harness.sim.state_spaces import NIGHTLY, PAGE, SPACES, listed, total, with_figures
from tests.harness.sim.steps import Steps

SMALL = (
    Config(ranks=2, faults=1, leaves=1, atomic=1),
    pytest.param(Config(ranks=2, crashes=1, kills=1), marks=pytest.mark.exhaustive),
    Config(ranks=2, crashes=1, ghosts=True),
    pytest.param(Config(ranks=2, nodes=1), marks=pytest.mark.exhaustive),
    pytest.param(Config(ranks=2, nodes=1, asks=True), marks=pytest.mark.exhaustive),
    Config(ranks=2, hangs=1),
    pytest.param(Config(ranks=2, suspicions=1), marks=pytest.mark.exhaustive),
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
    Config(ranks=2, whole=True, leaves=2),
    pytest.param(Config(ranks=2, whole=True, crashes=1, leaves=1), marks=pytest.mark.exhaustive),
    pytest.param(Config(ranks=2, whole=True, faults=1, leaves=1), marks=pytest.mark.exhaustive),
    pytest.param(Config(ranks=2, whole=True, nodes=1, leaves=1), marks=pytest.mark.exhaustive),
    pytest.param(Config(ranks=2, whole=True, breaks=1, leaves=1), marks=pytest.mark.exhaustive),
    pytest.param(Config(ranks=3, whole=True, leaves=2), marks=pytest.mark.exhaustive),
    Config(ranks=2, second=True, faults=1),
    pytest.param(Config(ranks=2, second=True, quits=1), marks=pytest.mark.exhaustive),
    Config(ranks=2, second=True, faults=1, discards=((1, 0),)),
    pytest.param(Config(ranks=2, second=True, faults=1, errors=((1, 0),)), marks=pytest.mark.exhaustive),
    pytest.param(Config(ranks=2, second=True, crashes=1), marks=pytest.mark.exhaustive),
    Config(ranks=2, second=True, hosted=True, crashes=1),
    Config(ranks=3, second=True),
)


@pytest.mark.parametrize("config", SMALL, ids=str)
def test_every_run_of_a_small_job_ends_well(config: Config) -> None:
    assert Checker(config).explore().states > 10


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "faults", [pytest.param(name, marks=[pytest.mark.nightly] * (name in NIGHTLY)) for name in SPACES]
)
def test_every_run_ends_well(faults: str, capsys: pytest.CaptureFixture[str]) -> None:
    figures = Checker(SPACES[faults]).explore()
    with capsys.disabled():
        print(f"\n{SPACES[faults]}: {figures}", end=" ")
    assert figures.states > 10_000
    as_listed = pytest.approx(listed(PAGE.read_text())[faults], rel=0.05)
    assert figures.states == as_listed, "run: python -m tests.harness.sim.state_spaces"


def test_the_page_lists_every_state_space_and_their_sum() -> None:
    text = PAGE.read_text()
    assert set(SPACES) >= NIGHTLY
    assert list(listed(text)) == list(SPACES)
    assert total(text) == sum(listed(text).values())


def test_the_page_has_the_figures_of_a_count() -> None:
    counted = {name: Figures(states=1000 + number, transitions=2000, rounds=3) for number, name in enumerate(SPACES)}
    text = with_figures(PAGE.read_text(), counted)
    assert listed(text) == {name: figures.states for name, figures in counted.items()}
    assert total(text) == sum(figures.states for figures in counted.values())
    with pytest.raises(ValueError, match="no total"):
        total("")


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


def test_a_variable_is_live_until_it_is_read_for_the_last_time() -> None:
    def flow() -> Iterator[None]:
        first, second = 1, 2
        yield
        both = first + second
        yield
        first, second = both, both
        yield
        assert first == second

    live, suspended = list[set[str]](), flow()
    for _ in suspended:
        live.append({*live_names(suspended.gi_code, suspended.gi_frame.f_lasti)})  # type: ignore[attr-defined]
    assert live == [{"first", "second"}, {"both"}, {"first", "second"}]


@pytest.mark.parametrize(
    ("instruction", "names", "live"),
    [
        ("LOAD_FAST", "a", "abc"),
        ("LOAD_FAST_CHECK", "a", "abc"),
        ("STORE_FAST", "b", "c"),
        ("LOAD_FAST_LOAD_FAST", ("a", "d"), "abcd"),
        ("STORE_FAST_STORE_FAST", ("b", "c"), ""),
        ("STORE_FAST_LOAD_FAST", ("b", "b"), "c"),
        ("STORE_FAST_LOAD_FAST", ("b", "a"), "ac"),
        ("LOAD_CONST", 1, "bc"),
        ("BINARY_OP", 0, "bc"),
    ],
)
def test_an_instruction_of_any_cpython_loads_or_stores_one_variable_or_two(
    instruction: str, names: object, live: str
) -> None:
    here = SimpleNamespace(opname=instruction, argval=names)
    assert _before(here, frozenset("bc")) == frozenset(live)  # type: ignore[arg-type]
