"""Simulated schedules in virtual time: the invariants hold while faults occur, then every rank comes to its end."""

import dataclasses
import json
import os
import pathlib
from typing import Any

import pytest

from tests.harness.sim.mutation import mutated
from tests.harness.sim.options import Options
from tests.harness.sim.schedule import Schedule
from tests.harness.sim.simulate import SEEDS, main, replay_command, run, search

KEPT = [json.loads(path.read_text()) for path in sorted(SEEDS.glob("*.json"))]
BLOCK = 10_000
"""Schedules of one test, which has to end within `faulthandler_timeout` on a busy machine, too."""


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: f"{kept['seed']}: {kept['why']}")
def test_a_kept_seed_passes(kept: dict[str, Any]) -> None:
    run(kept["seed"], tuple(kept["ranks"]))


@pytest.mark.parametrize(
    ("options", "harsher"),
    [
        (Options.draw(2584), {"crashes": 1, "hangs": 1, "kills": 1, "pauses": 1, "calls": 2}),
        (
            Options.draw(198, 3, 3),
            {"crashes": 3, "nodes": 1, "kills": 1, "hangs": 0, "wedges": 0, "pauses": 1, "calls": 2, "slow": 0.1,
             "hold": False, "active_for": 0.01},
        ),
    ],
    ids=["a monitor process replaced while its node is paused", "all that enter the second call die"],
)  # fmt: skip
def test_a_harsher_schedule_passes(options: Options, harsher: dict[str, Any]) -> None:
    Schedule(dataclasses.replace(options, **harsher)).run()


def test_the_first_schedules_pass() -> None:
    search(range(500), (1, 6))


@pytest.mark.exhaustive
@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.nightly) for block in range(1, 20))])
def test_many_schedules_pass(capsys: pytest.CaptureFixture[str], block: int) -> None:
    seeds = ["--schedules", str(BLOCK), "--seed", str(1000 + block * BLOCK)]
    status = main([*seeds, "--jobs", str(os.cpu_count() or 1)])
    found = capsys.readouterr().out
    with capsys.disabled():
        print(f"\n{found}", end=" ")
    assert status == 0, found
    assert found.startswith(f"{BLOCK:,} schedules in ")


@pytest.mark.exhaustive
def test_a_large_job_passes() -> None:
    run(1, (1024, 1024))


@pytest.mark.parametrize("seed", [7, 1214], ids=["a seed", "one with a pause"])
def test_a_seed_is_the_same_schedule_each_time(seed: int) -> None:
    histories = set()
    for _ in range(8):
        schedule = Schedule(Options.draw(seed), remembers=True)
        schedule.run()
        histories.add(schedule.world.history())
    assert len(histories) == 1


def test_the_digest_of_equal_histories_is_equal(capsys: pytest.CaptureFixture[str]) -> None:
    digests = []
    for seed in ("7", "7", "8"):
        assert main(["--digest", "--schedules", "3", "--seed", seed]) == 0
        digests.append(capsys.readouterr().out)
    assert digests[0] == digests[1] != digests[2]


def test_every_schedule_has_two_faults_or_more() -> None:
    drawn = [Options.draw(seed) for seed in range(1000)]
    assert min(each.crashes + each.nodes + each.faults + each.leaves + each.hangs for each in drawn) == 2
    assert {each.ranks for each in drawn} == set(range(3, 17))


@pytest.mark.exhaustive
def test_a_store_that_a_rank_hosts_is_lost_in_either_call_and_the_second_call_has_its_own() -> None:
    ends = set[tuple[int, str]]()
    for options in filter(lambda drawn: drawn.hosted, map(Options.draw, range(1500))):
        schedule = Schedule(options)
        schedule.run()
        ends |= {(call.number, rank.stage.value) for call in schedule.calls for rank in call.ranks.values()}
    assert ends == {(call, end) for call in (0, 1) for end in ("finished", "left", "dead", "lost the store")}


def test_a_failing_schedule_prints_its_replay_command_and_is_kept(
    capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    with mutated("a fault is kept to oneself") as tools:
        status = tools.simulate.main(["--schedules", "20", "--ranks", "3", "--seed", "5", "--seeds", str(tmp_path)])
    assert status == 1
    command, reason, options, *history = capsys.readouterr().out.splitlines()
    assert command.startswith("python -m tests.harness.sim.simulate --schedules 1 --ranks 3..3 --seed ")
    assert "faults=" in options
    assert "enters" in "".join(history)
    (path,) = tmp_path.iterdir()
    assert history[-1] == f"kept in {path}"
    kept = json.loads(path.read_text())
    assert command == replay_command(kept["seed"], tuple(kept["ranks"]))
    assert kept["why"] == reason


def test_the_command_line_prints_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--schedules", "6", "--ranks", "2..4", "--jobs", "2"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("6 schedules in ")
    assert " of them during a recovery" in told
    assert replay_command(9, (3, 16)) == "python -m tests.harness.sim.simulate --schedules 1 --ranks 3..16 --seed 9"
