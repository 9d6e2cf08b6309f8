"""Simulated schedules in virtual time: the invariants hold while troubles strike, then every rank comes to its end."""

import itertools
import json
import pathlib
from typing import Any

import pytest

from .options import Options
from .planted import PLANTED, planted
from .schedule import Failure, Schedule
from .simulate import main, replay_command, run, search

KEPT = json.loads(pathlib.Path(__file__).with_name("seeds").joinpath("kept.json").read_text())
GUARDED_TWICE = {"the discarded return"}  # a rank looks at the decision itself, too


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: f"{kept['seed']}: {kept['why']}")
def test_a_kept_seed_passes(kept: dict[str, Any]) -> None:
    run(kept["seed"], tuple(kept["ranks"]))


def test_the_first_schedules_pass() -> None:
    search(range(500), (1, 6))


@pytest.mark.exhaustive
def test_as_many_schedules_as_fit_pass(capsys: pytest.CaptureFixture[str]) -> None:
    figures = search(itertools.count(1000), (2, 8), seconds=40)
    with capsys.disabled():
        print(f"\n{figures}", end=" ")


def test_a_seed_is_the_same_schedule_each_time() -> None:
    histories = set()
    for _ in range(2):
        schedule = Schedule(Options.draw(7))
        schedule.run()
        histories.add(schedule.world.history())
    assert len(histories) == 1


@pytest.mark.parametrize("name", sorted(set(PLANTED) - GUARDED_TWICE))
def test_a_planted_mistake_is_found(name: str) -> None:
    with planted(name), pytest.raises(Failure, match=r"(?s)I\d|deadlock|still going on|for ever"):
        search(range(2000), (2, 5))


def test_a_failing_schedule_prints_what_replays_it(capsys: pytest.CaptureFixture[str]) -> None:
    with planted("a fault is kept to oneself"):
        status = main(["--schedules", "20", "--ranks", "3", "--seed", "5"])
    assert status == 1
    told = capsys.readouterr().out
    command, reason, options, *history = told.splitlines()
    assert command.startswith("python -m tests.sim.simulate --schedules 1 --ranks 3..3 --seed ")
    assert reason
    assert "faults=" in options
    assert "enters" in "".join(history)


def test_the_command_line_prints_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--schedules", "3", "--ranks", "2..4"]) == 0
    assert capsys.readouterr().out.startswith("3 schedules, ")
    assert replay_command(9, (3, 16)) == "python -m tests.sim.simulate --schedules 1 --ranks 3..16 --seed 9"
