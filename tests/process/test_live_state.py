"""A training whose state lives in memory: whatever happens to it, no step is done twice, and none is lost."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

import pytest

from tests.harness.process.job import Job, Template

from .conftest import Launch

WORKER = "tests.harness.process.workers.live_training"


@pytest.fixture
def template(live_template: Template) -> Template:
    return live_template


def trained(prepare: Launch, *, world: int = 2, **plan: Any) -> Job:
    return prepare(world=world).start(WORKER, NVRX_TEST_LIVE=json.dumps(plan)).finish(90)


def ends(job: Job) -> dict[int, tuple[str, str]]:
    return {line["rank"]: (line["weights"], line["local"]) for line in job.lines("end")}


def check_steps(job: Job, steps: int) -> None:
    """Each process does the steps one after the other, none twice; a replacement goes on where others were."""
    for rank in range(job.world):
        done = [line["step"] for line in job.lines("step", initial_rank=rank)]
        assert done == sorted(set(done)), f"rank {rank}: {done}"
    assert {line["step"] for line in job.lines("step")} == set(range(steps))
    resumed: dict[int, set[int]] = {}
    for line in job.lines("resumed"):
        resumed.setdefault(line["iteration"], set()).add(line["step"])
    assert all(len(each) == 1 for each in resumed.values()), resumed
    firsts = [next(iter(resumed[iteration])) for iteration in sorted(resumed)]
    assert firsts == sorted(firsts), firsts


@pytest.mark.parametrize(("sharded", "world"), [(False, 3), (True, 2)], ids=["replicas", "shards"])
def test_faults_at_any_point_cost_no_step_and_no_bit(prepare: Launch, sharded: bool, world: int) -> None:
    """Of three ranks, unlike of two, the sum of the gradients depends on where in a bucket they are."""
    undisturbed = trained(prepare, sharded=sharded, world=world)
    points = ["build", "resumed", "data", "forward", "backward", "ready", "advance", "committed"]
    disturbed = trained(prepare, sharded=sharded, world=world, faults=12, seed=3, points=points)
    assert set(disturbed.codes.values()) == {0}, disturbed.errors(0)
    assert len(disturbed.lines("injected")) >= 10
    check_steps(disturbed, 30)
    assert ends(disturbed) == ends(undisturbed)


def test_a_reserve_takes_the_place_of_a_lost_rank_with_its_state(prepare: Launch) -> None:
    undisturbed = trained(prepare)
    disturbed = trained(prepare, world=4, active=2, faults=2, seed=1, kinds=["kill"], points=["forward", "ready"])
    assert sorted(disturbed.codes.values()) == [-signal.SIGKILL, -signal.SIGKILL, 0, 0], disturbed.codes
    check_steps(disturbed, 30)
    assert ends(disturbed) == ends(undisturbed)


def test_a_transfer_may_take_longer_than_a_hang(prepare: Launch) -> None:
    """It concerns who sends parameters, who sends a local state, who receives, and who has only to wait for them."""
    plan = {"faults": 1, "seed": 1, "kinds": ["kill"], "points": ["forward"], "steps": 6, "transfer": ["slow", 5]}
    job = trained(prepare, world=5, active=4, soft=3.0, **plan)
    assert len(job.lines("injected")) == 1
    assert {line["iteration"] for line in job.lines("resumed")} == {0, 1}
    check_steps(job, 6)


@pytest.mark.parametrize("behaviour", ["busy", "stopped"])
def test_a_transfer_in_which_nothing_moves_ends_in_another_round(prepare: Launch, behaviour: str) -> None:
    """Not at the timeout of the process group, half an hour."""
    plan = {"faults": 1, "seed": 1, "kinds": ["kill"], "points": ["forward"], "steps": 6, "transfer": [behaviour, 1]}
    job = trained(prepare, world=5, active=3, soft=2.0, patience=2.0, **plan)
    assert sorted(job.codes.values())[:2] == [-signal.SIGKILL, -signal.SIGKILL if behaviour == "stopped" else 0]
    assert {line["iteration"] for line in job.lines("resumed")} == {0, 2}
    text = "".join(job.errors(rank) for rank in range(5))
    cause = "TimeoutError: no rank has sent or received anything for 4 s" if behaviour == "busy" else "TERMINATED"
    assert cause in text, text
    check_steps(job, 6)


@pytest.mark.parametrize("amid", ["a tensor", "objects"])
def test_who_sends_goes_on_when_the_receiver_fails_amid_what_it_gets(prepare: Launch, amid: str) -> None:
    """gloo loses what it could not pass to the kernel, and would wait for it until the timeout of the process group."""
    job = prepare(world=3).start("tests.harness.process.workers.large_transfer", NVRX_TEST_LARGE=amid).finish(90)
    assert set(job.codes.values()) == {0}, job.codes
    assert {(line["iteration"], line["step"]) for line in job.lines("resumed")} == {(0, 0), (2, 1)}
    assert [(line["weights"], line["sum"]) for line in job.lines("end")] == [([-1.0] * 3, float(32 << 20))] * 3


def test_a_commit_reports_its_step_as_progress(prepare: Launch) -> None:
    job = trained(prepare, faults=1, points=["committed"], steps=8)
    (failed,) = job.lines("injected")
    done = max(line["step"] for line in job.lines("step") if line["at"] < failed["at"])
    assert {line["highest"] for line in job.lines("resumed", iteration=1)} == {done}


def test_who_has_a_live_state_loads_nothing_more_for_an_optimizer() -> None:
    """A reserve would, while the others wait for it."""
    program = """
import sys, torch
from nvrx_core import inprocess
inprocess.LiveState()
before = set(sys.modules)
torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
print(sorted(set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=90, check=True)
    assert done.stdout == "[]\n", done.stdout


def test_a_shard_that_nobody_has_is_missed_in_a_line(prepare: Launch) -> None:
    job = trained(prepare, world=3, sharded=True, faults=1, kinds=["kill"], points=["forward"])
    assert sorted(job.codes.values()) == [-signal.SIGKILL, 0, 0], job.codes
    text = "".join(job.errors(rank) for rank in range(3))
    assert text.count("is not whole in memory") == 1, text
    # The others begin anew, with the model as they have built it: nothing of their memory is in it.
    assert ends(job) == ends(trained(prepare, sharded=True))


def test_a_step_that_only_ranks_in_reserve_have_is_done_again_with_a_line(prepare: Launch) -> None:
    job = trained(prepare, alternate=True, faults=2, kinds=["exception"], points=["committed"])
    assert set(job.codes.values()) == {0}, job.codes
    done = max(
        line["step"] for line in job.lines("step", initial_rank=0) if line["at"] < job.lines("injected")[0]["at"]
    )
    assert [(line["iteration"], line["step"]) for line in job.lines("resumed")] == [(0, 0), (1, 0), (2, done + 1)]
    line = f"going on after step {done}: only ranks that do not train now have passed the vote of step"
    assert [job.errors(rank).count(line) for rank in (0, 1)] == [1, 0]


def test_local_state_is_not_lost_with_a_reserve_that_has_passed_the_last_vote(prepare: Launch) -> None:
    """The ranks go on from the step before: of the last one, nobody has the local state of the rank that is new."""
    undisturbed = trained(prepare, steps=6)
    disturbed = trained(
        prepare, world=3, active=2, alternate=True, steps=6, faults=1, seed=1, kinds=["exception"], points=["voted"]
    )
    assert set(disturbed.codes.values()) == {0}, disturbed.codes
    assert [line["initial_rank"] for line in disturbed.lines("injected")] == [1]
    assert {line["step"] for line in disturbed.lines("resumed", iteration=1)} == {1}
    assert ends(disturbed) == ends(undisturbed)


def test_a_second_live_state_costs_the_first_one_no_step(prepare: Launch) -> None:
    """One rank is interrupted in the last vote of the first one, when the other one has begun with the second."""
    undisturbed = trained(prepare, sharded=True, steps=2)
    disturbed = trained(prepare, sharded=True, steps=2, second=True, faults=1, seed=1, points=["voted"])
    assert set(disturbed.codes.values()) == {0}, disturbed.codes
    assert len(disturbed.lines("injected")) == 1
    assert {line["step"] for line in disturbed.lines("resumed", iteration=1)} == {2}
    assert ends(disturbed) == ends(undisturbed)


def test_a_step_that_is_committed_twice_ends_the_job(prepare: Launch) -> None:
    """A restart would go on behind it: each pass would lose its second step, without a word."""
    job = trained(prepare, world=3, active=2, twice=True)
    assert set(job.codes.values()) == {1}, job.codes
    assert {line["iteration"] for line in job.lines("resumed")} == {0, 1, 2}
    for rank in range(3):
        assert "UsageError: commit(2) after step 2: each commit has a greater step" in job.errors(rank)


@pytest.mark.parametrize(("place", "resumed"), [("begin", [0, 3, 3, 3]), ("end", [0, 3, 6])])
def test_an_error_in_each_save_ends_the_job(prepare: Launch, place: str, resumed: list[int]) -> None:
    """Before a step, it is done again, and fails again; behind one, the training would go on without any save."""
    job = trained(prepare, unsaved=place, limit=3)
    assert set(job.codes.values()) == {1}, job.codes
    assert [line["step"] for line in job.lines("resumed", initial_rank=0)] == resumed
    assert "OSError: no space left" in job.errors(0)
    assert job.errors(0).count("the function has failed behind a commit, at ") == (2 if place == "end" else 0)


def test_a_parameter_that_is_changed_elsewhere_is_named_once(prepare: Launch) -> None:
    job = trained(prepare, steps=8, touched=[3, 5])
    assert job.errors(0).count("0.weight was changed outside of commit()") == 1, job.errors(0)
    assert "outside of commit()" not in job.errors(1)


def test_ranks_that_begin_with_other_weights_are_refused_by_name(prepare: Launch) -> None:
    job = trained(prepare, steps=4, seeds=True, limit=2)
    assert 0 not in job.codes.values(), job.codes
    assert "0.weight differs between ranks 0 and 1, which have the same shard since start()" in job.errors(0)
    sharded = trained(prepare, steps=4, seeds=True, sharded=True)
    assert set(sharded.codes.values()) == {0}, sharded.errors(0)


def test_replicas_that_differ_after_a_fault_are_named_where_it_is_asked_for(prepare: Launch) -> None:
    job = trained(prepare, steps=8, touched=[0], amount=1.0, compare=True, faults=1, seed=1, points=["committed"])
    line = "0.weight differs between ranks 0 and 1, which have the same shard at step"
    assert [job.errors(rank).count(line) for rank in (0, 1)] == [1, 0], job.errors(0)
