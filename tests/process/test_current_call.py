"""What code that is given nothing can ask for: the handle of the running call, and the restart that led here."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from nvrx_core.events.phases import PHASES
from tests.harness.process.job import Job

from .conftest import Launch

WORKER = "tests.harness.process.workers.current_call"


@pytest.fixture
def job(prepare: Launch) -> Job:
    """Rank 1 raises in iteration 0, rank 2 is killed in iteration 1; then a second call."""
    job = prepare().start(WORKER).finish()
    assert job.codes == {0: 0, 1: 0, 2: -signal.SIGKILL}, job.errors(0)
    return job


def test_the_running_call_and_the_last_restart_are_at_hand(job: Job) -> None:
    seen = [(look["place"], look["iteration"], look["restart"]) for look in job.lines("look", initial_rank=0)]
    assert seen == [
        ("before", None, None),
        ("initialize", None, None), ("function", 0, None), ("thread", 0, None), ("finalize", None, None),
        ("initialize", None, None), ("function", 1, 1), ("thread", 1, 1), ("finalize", None, 1),
        ("initialize", None, 1), ("function", 2, 2), ("thread", 2, 2), ("between", None, 2),
        ("initialize", None, None), ("second call", 0, None), ("after", None, None),
    ]  # fmt: skip
    interrupted = [look["interruptions"] for look in job.lines("look", initial_rank=0)]
    assert interrupted == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2], "not by the return of a call"
    assert all(look["child"] for look in job.lines("look", place="function")), "a child of os.fork is in no call"

    first, second = job.lines("restart", initial_rank=0)
    expect(first, number=1, culprits=[1], lost=[], rank=0, world_size=3, active=True, step=7, highest_step=9)
    expect(first, interruption="EXCEPTION", message="ValueError: injected")
    expect(second, number=2, culprits=[2], lost=[2], rank=0, world_size=2, active=True, step=4, highest_step=9)
    expect(second, interruption="TERMINATED")
    assert second["text"].endswith("; lost: initial ranks [2]")
    for restart in (first, second):
        assert list(restart["phases"]) == list(PHASES)
        assert sum(restart["phases"].values()) == pytest.approx(restart["seconds"])
        assert 0 < restart["seconds"] < 20


def expect(line: dict[str, Any], **fields: Any) -> None:
    assert {name: line[name] for name in fields} == fields
