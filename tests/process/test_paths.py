"""The paths through the files that docs/explanation/architecture.md has for a rank are those that a job takes."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.harness.process.job import Job

from .conftest import Launch

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "architecture.md"
VALUES_ONLY = {"plan.py"}
"""Files with the fields of a class alone: no function of theirs is called."""


def test_the_documented_paths_are_taken(prepare: Launch, subtests: pytest.Subtests) -> None:
    job = prepare(world=2).start("tests.harness.process.workers.traced").finish()
    with subtests.test("a ping"):
        assert files(job, 0, "ping") == ["wrap.py"], "a ping costs one store to memory"
    with subtests.test("an exception"):
        assert_in_order(documented("an exception on this rank"), files(job, 0, "exception"))
    there, _, here = row("a SIGKILL of another rank").partition("; here ")
    with subtests.test("a SIGKILL, where it happens"):
        assert_in_order(names(there), files(job, 1, "entry", of_rank=False))
    with subtests.test("a SIGKILL, as another rank hears of it"):
        until_abort, _, after = here.partition(", and `wrapped_function.py`")
        assert_in_order(names(until_abort), files(job, 0, "kill", "nvrx-monitor-thread"))
        assert_in_order(names("`wrapped_function.py`" + after), files(job, 0, "kill"))
    with subtests.test("a soft_timeout"):
        given, _, judging = row("a `soft_timeout`").partition(", which `monitor/judging.py`")
        assert judging
        assert_in_order(names(given), [*files(job, 0, "value"), *files(job, 0, "value", of_rank=False)])


def row(what: str) -> str:
    (found,) = (line for line in PAGE.read_text().splitlines() if line.startswith(f"| {what} |"))
    return found


def documented(what: str) -> list[str]:
    return names(row(what))


def names(text: str) -> list[str]:
    """The files that a text names, in order."""
    return [Path(name).name for name in re.findall(r"`([\w/]+\.py)`", text) if Path(name).name not in VALUES_ONLY]


def files(job: Job, rank: int, phase: str, thread: str = "MainThread", *, of_rank: bool = True) -> list[str]:
    """The file of each function that a rank, or its monitor process, has called in a phase, in order."""
    lines = [line.split() for line in (job.directory / f"trace-{rank}").read_text().splitlines()]
    found = [line for line in lines if (int(line[0]) == job.pids[rank]) == of_rank and line[2] == thread]
    return [os.path.basename(file) for _, now, _, file, _ in found if now == phase]


def assert_in_order(wanted: Iterable[str], taken: Iterable[str]) -> None:
    rest = iter(taken)
    missing = [name for name in wanted if name not in rest]
    assert not missing, f"{missing} not in this order among {list(taken)}"
