"""Process groups that are made otherwise than by a plain `init_process_group`, or that a fault meets in the making."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Launch
from .job import Job
from .oracle import assert_restarts, restart
from .test_options import by_rank, results, run_prepared

GROUPS = "tests.process.workers.groups"
EXCEPTION = restart("EXCEPTION", by=[1])
Harm = dict[str, list[list[int]]]


def run(prepare: Launch, case: str, harm: Harm, *, world: int = 3, broken: int = 1, **settings: Any) -> Job:
    return run_prepared(prepare(world=world), case, harm, broken, module=GROUPS, **settings)


@pytest.mark.parametrize("scheme", ["by_port", "by_file"])
def test_a_group_meets_at_a_fixed_address_in_each_iteration(prepare: Launch, scheme: str) -> None:
    job = run(prepare, scheme, {"function": [[1, 0], [2, 2]], "kill": [[0, 1]]}, broken=3)
    assert results(job) == {1: 3, 2: 3}
    assert_restarts(job, [EXCEPTION, restart("TERMINATED", by=[0], lost=[0]), restart("EXCEPTION", by=[2])])


def test_a_group_that_becomes_the_default_one_after_the_abort_is_no_group_of_the_next_iteration(
    prepare: Launch,
) -> None:
    job = run(prepare, "half_made", {"function": [[1, 0]], "stand": [[0, 0]]})
    assert by_rank(job, "stood", "iteration") == {0: 0}
    assert results(job) == {0: 1, 1: 1, 2: 1}
    assert_restarts(job, [EXCEPTION])


@pytest.mark.parametrize("faults", [40, pytest.param(600, marks=pytest.mark.nightly)])
def test_a_fault_at_any_instant_of_making_groups_costs_one_restart(prepare: Launch, faults: int) -> None:
    job = run(prepare, "making_groups", {}, faults=faults, seed=1, no_progress_limit=None)
    assert results(job) == dict.fromkeys(range(3), faults)
    assert_restarts(job, [restart("EXCEPTION", by=None)] * faults)
