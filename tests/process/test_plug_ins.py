"""Plug-ins of the user's own, what they see and what becomes of what they raise; what is behind a `CallWrapper`."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.harness.process.job import Job
from tests.harness.process.oracle import assert_restarts, restart

from .conftest import Launch
from .test_options import FAILS, Harm, by_rank, entered, results, run_prepared

MODULE = "tests.harness.process.workers.plug_ins"
NAME = "[NestedRestarter] name=[InProcess] state="
EXCEPTION = restart("EXCEPTION", by=[1])


def run(prepare: Launch, case: str, harm: Harm, *, world: int = 2, broken: int = 1, **settings: Any) -> Job:
    return run_prepared(prepare(world=world), case, harm, broken, MODULE, **settings)


def saw(job: Job, rank: int) -> list[tuple[str, list[int], str, str]]:
    """What the plug-ins of a rank saw: name, the state's numbers, mode, the function's exception."""
    return [
        (line["name"], list(line["state"].values()), line["mode"], line["error"])
        for line in job.lines("saw", initial_rank=rank)
    ]


# What plug-ins see


def test_each_plug_in_sees_the_state_of_its_iteration(prepare: Launch) -> None:
    job = run(prepare, "witnesses", {"function": [[1, 0]], "finalize": [[2, 0]]}, world=3)
    error = "ValueError('injected in function')"
    before, after = ([rank, 3, rank, 3, rank, 0] for rank in (0, 1)), ([rank, 2, rank, 2, rank, 1] for rank in (0, 1))
    for rank, first, second in zip((0, 1), before, after, strict=True):
        mine = error if rank == 1 else "None"
        assert saw(job, rank) == [
            ("initialize", first, "ACTIVE", "None"),
            ("health_check", first, "ACTIVE", "None"),
            ("abort", first, "ACTIVE", "None"),
            ("finalize", first, "ACTIVE", mine),
            ("health_check", first, "ACTIVE", mine),
            ("initialize", second, "ACTIVE", "None"),
            ("health_check", second, "ACTIVE", "None"),
            ("completion", second, "ACTIVE", "None"),
        ]
    assert [line[0] for line in saw(job, 2)] == ["initialize", "health_check", "abort", "finalize", "terminate"]
    assert {tuple(numbers) for _, numbers, _, _ in saw(job, 2)} == {(2, 3, 2, 3, 2, 0)}
    assert results(job) == {0: 1, 1: 1}


# What plug-ins raise


@pytest.mark.parametrize("iteration", [0, 1])
def test_a_base_exception_in_initialize_makes_its_rank_leave(prepare: Launch, iteration: int) -> None:
    harm = {"leave in initialize": [[1, iteration]], "function": [[0, 0]] if iteration else []}
    job = run(prepare, "witnesses", harm, world=3, broken=iteration + 1)
    assert by_rank(job, "left", "kinds") == {1: ["KeyboardInterrupt", "BaseException", "object"]}
    assert results(job) == {0: iteration + 1, 2: iteration + 1}
    assert all(entry < iteration for entry in entered(job, rank=1))
    left = restart("BASE_EXCEPTION", by=[1], lost=[1])
    assert_restarts(job, [restart("EXCEPTION", by=[0]), left][not iteration :])


@pytest.mark.parametrize("place", ["finalize", "health_check", "terminate"])
def test_a_base_exception_in_a_later_plug_in_makes_its_rank_leave(prepare: Launch, place: str) -> None:
    harm = {f"leave in {place}": [[1, 0]], "interrupt": [[1, 0]], "function": []}
    if place != "terminate":
        harm |= {"interrupt": [], "function": [[0, 0]]}
    job = run(prepare, "witnesses", harm, world=3)
    assert by_rank(job, "left", "text") == {1: f"injected in {place}"}
    assert results(job) == {0: 1, 2: 1}


def test_a_base_exception_in_abort_is_logged(prepare: Launch) -> None:
    job = run(prepare, "witnesses", FAILS | {"leave in abort": [[0, 0], [1, 0]]})
    assert results(job) == {0: 1, 1: 1}
    assert_restarts(job, [EXCEPTION])
    assert all("KeyboardInterrupt: injected in abort" in job.errors(rank) for rank in range(2))


def test_a_base_exception_in_completion_ends_the_rank_after_the_others_completed(prepare: Launch) -> None:
    job = prepare(world=2, store=False)
    run_prepared(job, "witnesses", {"leave in completion": [[1, 0]]}, 0, MODULE)
    assert by_rank(job, "left", "text") == {1: "injected in completion"}
    assert results(job) == {0: 0}
    ended = [line["at"] for what in ("left", "done") for line in job.lines(what)]
    assert max(ended) - min(ended) < 5, "the host of the store waits for the others"


def test_an_abort_that_fails_leaves_no_group_behind(prepare: Launch) -> None:
    job = run(prepare, "abort_first", FAILS | {"abort": [[0, 0], [1, 0]]})
    assert results(job) == {0: 1, 1: 1}
    assert_restarts(job, [EXCEPTION])
    assert all("abort failed" in job.errors(rank) and "injected in abort" in job.errors(rank) for rank in range(2))


def test_the_parts_of_an_abort_run_in_their_phases_and_each_stands_alone(prepare: Launch) -> None:
    job = run(prepare, "abort_in_phases", FAILS)
    assert results(job) == {0: 1, 1: 1}
    assert_restarts(job, [EXCEPTION])
    for rank in range(2):
        parts = job.lines("part", initial_rank=rank)
        assert [(part["phase"], part["main"], part["groups"]) for part in parts] == [
            ("BEFORE_TORCH", False, True), ("AFTER_TORCH", False, False), ("MAIN_THREAD", True, False),
        ]  # fmt: skip
        (finalize,) = job.lines("plug", initial_rank=rank, name="finalize")
        assert parts[-1]["at"] < finalize["at"]
        phases = ("before torch", "after torch", "main thread")
        assert all(f"ValueError: injected {phase}" in job.errors(rank) for phase in phases)
        assert job.errors(rank).count("abort failed in Part after ") == 3


def test_a_rank_that_fails_too_often_leaves(prepare: Launch) -> None:
    job = run(prepare, "fault_counter", {"function": [[1, 0], [1, 1]]}, world=3, broken=2)
    (kinds,) = by_rank(job, "left", "kinds").values()
    assert kinds[0] == "HealthCheckError"
    assert "max_rank_faults=1" in by_rank(job, "left", "text")[1]
    assert results(job) == {0: 2, 2: 2}
    assert_restarts(job, [EXCEPTION, restart("EXCEPTION", by=[1], lost=[1])])


def test_a_function_may_ask_for_a_restart(prepare: Launch) -> None:
    job = run(prepare, "explicit_restarts", FAILS)
    assert results(job) == {0: 1, 1: 1}
    assert_restarts(job, [restart("BASE_EXCEPTION", by=[1])])
    assert "RankShouldRestart: asked for" in job.events("restart")[0]["cause"]["message"]


def test_a_function_that_always_asks_for_a_restart_is_stopped_by_retry_controller(prepare: Launch) -> None:
    job = run(prepare, "explicit_restarts", {"function": [[1, 0], [1, 1]]}, broken=9)
    assert {rank: kinds[0] for rank, kinds in by_rank(job, "left", "kinds").items()} == {
        0: "RestartAbort",
        1: "RestartAbort",
    }


# Aborts


def test_communicators_of_nccl_are_aborted_and_their_watchdog_is_warned_of(prepare: Launch) -> None:
    job = run(prepare, "nccl", FAILS)
    assert results(job) == {0: 1, 1: 1}
    assert_restarts(job, [EXCEPTION])
    assert sorted(line["initial_rank"] for line in job.lines("aborted")) == [0, 1]
    for rank in range(2):
        assert job.errors(rank).count("timeout=0:00:10 and the wrapper hard_timeout=0:01:30") == 1


def test_an_older_torch_restarts_as_well(prepare: Launch) -> None:
    job = run(prepare, "older_torch", FAILS | {"second": []}, world=3)
    assert results(job) == dict.fromkeys(range(3), 1)
    assert_restarts(job, [EXCEPTION])


@pytest.mark.parametrize("case", ["flight_record", "flight_record_by_variable"])
def test_each_rank_writes_its_flight_record_before_the_abort(
    prepare: Launch, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    job = prepare(world=3)
    monkeypatch.setattr(job.template, "environment", recording(job.template.environment))
    run_prepared(job, case, FAILS, 1, MODULE)
    folder = job.directory / "application.log" / "iter_0"
    names = [*(f"cpu_rank_{rank}" for rank in range(3)), *(f"rank_{rank}.cpu.json" for rank in range(3))]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert list(folder.parent.iterdir()) == [folder]
    for path in folder.glob("*.json"):
        entries = json.loads(path.read_text())["entries"]
        assert sum(entry["profiling_name"] == "gloo:all_reduce" for entry in entries) >= 6
    analyser = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(folder), "-p", "cpu_rank_"]
    told = subprocess.run(analyser, capture_output=True, text=True, timeout=60, check=True)
    assert "Traceback" not in told.stderr
    assert results(job) == dict.fromkeys(range(3), 1)


def test_a_flight_record_that_cannot_be_written_costs_a_warning(
    prepare: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = prepare(world=2)
    monkeypatch.setattr(job.template, "environment", recording(job.template.environment))
    (job.directory / "application.log").write_text("in the way")
    run_prepared(job, "flight_record", FAILS, 1, MODULE)
    assert results(job) == {0: 1, 1: 1}
    assert_restarts(job, [EXCEPTION])
    assert [job.errors(rank).count("no flight record in") for rank in range(2)] == [1, 1]


def recording(environment: Any) -> Any:
    return lambda: {**environment(), "TORCH_FR_BUFFER_SIZE": "100"}


# A restarter around this one


def said(job: Job, rank: int) -> list[str]:
    lines = (job.directory / f"rank-{rank}.out").read_text().splitlines()
    assert all(line.startswith(NAME) for line in lines), lines
    return [line.removeprefix(NAME) for line in lines]


HANDLED = ["handling stage=starting", "handling stage=completed"]


def test_one_rank_logs_for_an_outer_restarter(prepare: Launch) -> None:
    job = run(prepare, "nested", {"function": [[1, 0], [1, 1]]}, broken=2)
    assert said(job, 0) == ["initialize", *HANDLED, *HANDLED, "finalized"]
    assert said(job, 1) == []
    assert results(job) == {0: 2, 1: 2}


def test_the_rank_that_logs_for_an_outer_restarter_reports_its_exit(prepare: Launch) -> None:
    job = run(prepare, "nested", {"interrupt": [[0, 0]]})
    assert said(job, 0) == ["initialize", "handling stage=starting", "aborted"]
    assert results(job) == {1: 1}


def test_a_restart_that_initialize_refuses_is_not_said_to_be_handled(prepare: Launch) -> None:
    job = run(prepare, "nested", {"function": [[1, iteration] for iteration in range(3)]}, broken=9)
    assert said(job, 0)[:6] == ["initialize", *HANDLED, *HANDLED, "handling stage=starting"]
    assert said(job, 0)[6:] in (["aborted"], ["handling stage=starting", "aborted"])
    assert {kinds[0] for kinds in by_rank(job, "left", "kinds").values()} == {"RestartAbort"}


# What is behind a `CallWrapper`


def test_what_code_reaches_for_can_be_read_and_not_assigned(prepare: Launch) -> None:
    job = run(prepare, "handles", FAILS)
    for iteration in range(2):
        lines = job.lines("attributes", iteration=iteration)
        assert sorted(line["state"] for line in lines) == [[rank, 2, rank, "ACTIVE"] for rank in range(2)]
        for line in lines:
            assert line["store"] == line["base_store"] == [str(iteration)] * 2
            assert all((line["once"], line["empty"], line["wrapper"], line["watchdog"], *line["monitor"]))
            assert line["soft"] == 30
    for line in job.lines("refused"):
        assert all(text.startswith("AttributeError: ") for text in line["names"].values()), line
    for line in job.lines("lock"):
        assert (line["nested"], line["inside"], line["outside"]) == (True, True, False)
        assert line["said"].startswith("RuntimeError: release() without acquire()")
    assert all("RuntimeError: shutdown() inside" in line["said"] for line in job.lines("shutdown"))
    assert len(job.lines("shutdown")) == 4
    assert by_rank(job, "after", "state") == by_rank(job, "after", "iteration") == {0: 1, 1: 1}
    assert all(by_rank(job, "after", "mine").values())
    told = (job.directory / "application.log").iterdir()
    assert sorted(path.name for path in told) == ["events-0.jsonl", "events-1.jsonl"], (
        "events_dir goes before NVRX_EVENTS_DIR"
    )
