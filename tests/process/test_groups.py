"""Process groups that are made otherwise than by a plain `init_process_group`, or that a fault meets in the making."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.process.job import Job
from tests.harness.process.oracle import assert_nothing_lost, assert_restarts, restart

from .conftest import Launch
from .test_options import by_rank, results, run_prepared

pytestmark = pytest.mark.usefixtures("whole_ends")
GROUPS = "tests.harness.process.workers.groups"
EXCEPTION = restart("EXCEPTION", by=[1])
Harm = dict[str, list[list[int]]]


def run(prepare: Launch, case: str, harm: Harm, *, world: int = 3, broken: int = 1, **settings: Any) -> Job:
    return run_prepared(prepare(world=world), case, harm, broken, module=GROUPS, **settings)


@pytest.mark.parametrize("scheme", ["by_port", "by_file"])
def test_a_group_with_a_fixed_address_is_created_in_each_iteration(prepare: Launch, scheme: str) -> None:
    job = run(prepare, scheme, {"function": [[1, 0], [2, 2]], "kill": [[0, 1]]}, broken=3)
    assert results(job) == {1: 3, 2: 3}
    assert_restarts(job, [EXCEPTION, restart("TERMINATED", by=[0], lost=[0]), restart("EXCEPTION", by=[2])])


def test_the_default_group_may_be_made_again_after_a_restart(prepare: Launch) -> None:
    job = run(prepare, "made_twice", {"function": [[1, 0]]})
    assert results(job) == {0: 1, 1: 1, 2: 1}
    assert_restarts(job, [EXCEPTION])


def test_a_group_that_becomes_the_default_one_after_the_abort_is_no_group_of_the_next_iteration(
    prepare: Launch,
) -> None:
    job = run(prepare, "half_made", {"function": [[1, 0]], "stand": [[0, 0]]})
    assert results(job) == {0: 1, 1: 1, 2: 1}
    assert_restarts(job, [EXCEPTION])


def test_a_rank_that_connects_lazily_to_a_peer_that_has_failed_is_kept(prepare: Launch) -> None:
    """gloo connects in the first collective, which no observer of torch's functions sees."""
    bounds = {"soft_timeout": 1.5, "hard_timeout": 6.0}
    job = prepare({(1, 0, 0): "hang_sleep"}, world=2, collective=True, group=True, wrapper=bounds)
    job.start(TORCH_GLOO_LAZY_INIT="1").finish()
    assert_nothing_lost(job, restart("SOFT_TIMEOUT", by=None))


@pytest.mark.parametrize("faults", [40, pytest.param(200, marks=pytest.mark.nightly)])
def test_a_fault_at_any_instant_of_making_groups_costs_one_restart(prepare: Launch, faults: int) -> None:
    job = run(prepare, "making_groups", {}, limit=max(40, faults), faults=faults, seed=1, no_progress_limit=None)
    assert results(job) == dict.fromkeys(range(3), faults)
    assert_restarts(job, [restart("EXCEPTION", by=None)] * faults)


@pytest.mark.parametrize("faults", [25, pytest.param(100, marks=pytest.mark.nightly)])
def test_connections_that_others_open_while_groups_are_made_are_not_cut(prepare: Launch, faults: int) -> None:
    job = run(
        prepare, "foreign_connections", {}, world=2, limit=max(40, faults), faults=faults, no_progress_limit=None
    )  # fmt: skip
    assert results(job) == {0: faults, 1: faults}
    assert by_rank(job, "requests", "failed") == {0: [], 1: []}
    assert min(by_rank(job, "requests", "done").values()) > faults


def test_a_collective_in_an_atomic_section_fails_soon_when_a_peer_has_left(prepare: Launch) -> None:
    """Its group's timeout is 300 s."""
    job = run(prepare, "atomic_collective", {"function": [[1, 0]]}, world=3)
    assert by_rank(job, "waited", "seconds")[0] < 20
    assert results(job) == {0: 1, 1: 1, 2: 1}
    assert_restarts(job, [EXCEPTION])


def test_ranks_that_wait_for_a_message_from_any_rank_are_interrupted(prepare: Launch) -> None:
    job = run(prepare, "receive_from_any", {"function": [[1, 0]]})
    assert results(job) == {0: 1, 1: 1, 2: 1}
    assert by_rank(job, "received", "message") == {0: 7.0, 2: 7.0}
    assert by_rank(job, "received", "source") == {0: 1, 2: 1}
    assert_restarts(job, [EXCEPTION])


def test_forty_groups_are_released_beside_the_next_iteration_and_none_is_left(prepare: Launch) -> None:
    job = run(prepare, "many_groups", {"function": [[1, 0], [0, 1], [1, 2]]}, world=2, broken=3)
    assert results(job) == {0: 3, 1: 3}
    assert_restarts(job, [EXCEPTION, restart("EXCEPTION", by=[0]), EXCEPTION])
    for line in job.lines("left over"):
        assert (line["threads"], line["files"], line["children"]) == (0, 0, 0), line


def test_ranks_that_wait_on_a_store_of_before_the_call_are_interrupted_and_use_it_again(prepare: Launch) -> None:
    faults = {"function": [[1, 0], [1, 1]], "wait": [[0, 0], [2, 0], [0, 1], [2, 1]]}
    job = run(prepare, "early_store", faults)
    assert results(job) == {0: 2, 1: 2, 2: 2}
    assert_restarts(job, [EXCEPTION] * 2)
    assert not any("does not answer" in job.errors(rank) for rank in range(3))
