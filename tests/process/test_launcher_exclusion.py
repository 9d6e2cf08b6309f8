"""A rank asks that its node takes no further part: a spare takes its place, and the job goes on."""

from __future__ import annotations

import functools

import pytest

from tests.harness.process.launch import Start, rendezvous_options

EXCLUDED = {"NVRX_TEST_EXCLUDED": "1"}


@pytest.fixture
def start(launcher: Start) -> Start:
    return functools.partial(launcher, "excludes", *rendezvous_options(), "--nnodes", "2:3", "--max-restarts", "1")


@pytest.mark.parametrize("is_host", [False, True])
def test_a_spare_takes_the_place_of_a_node_that_is_excluded(start: Start, is_host: bool) -> None:
    """The launcher that hosts the rendezvous stays, without workers, and ends with the job; another one fails."""
    first = start(**EXCLUDED if is_host else {})
    first.await_log("host the rendezvous")
    second = start(**{} if is_host else EXCLUDED)
    excluded = first if is_host else second
    excluded.read(1, "start")  # the first cycle has begun; it may be over before all workers have
    jobs = [first, second, start()]
    ends = {id(job): job.finish() for job in jobs}
    code, log = ends.pop(id(excluded))
    assert code == (0 if is_host else 1), log
    assert "has asked for ExcludeThisNode: a bad GPU" in log
    assert [code for code, _ in ends.values()] == [0, 0], ends
    assert {each["cycle"] for each in excluded.events if each["event"] == "start"} == {0}
    assert {each["cycle"] for each in jobs[2].events} == {1}
