"""A rank asks that its node takes no further part: a spare takes its place, and the job goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.process.host import free_ports
from tests.harness.process.launch import Launch

Start = Callable[..., Launch]
EXCLUDED = {"NVRX_TEST_EXCLUDED": "1"}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    launched: list[Launch] = []
    endpoint = f"127.0.0.1:{free_ports()}"
    where = ("--rdzv-endpoint", endpoint, "--rdzv-id", "job", "--nnodes", "2:3", "--max-restarts", "1")

    def start(**environment: str) -> Launch:
        launched.append(Launch(tmp_path, "excludes", *where, **environment))
        return launched[-1]

    yield start
    for each in launched:
        each.close()


@pytest.mark.parametrize("is_host", [False, True])
def test_a_spare_takes_the_place_of_a_node_that_is_excluded(start: Start, is_host: bool) -> None:
    """The launcher that hosts the rendezvous stays, without workers, and ends with the job; another one fails."""
    first = start(**EXCLUDED if is_host else {})
    first.await_log("host the rendezvous")
    second = start(**{} if is_host else EXCLUDED)
    jobs = [first, second]
    for job in jobs:
        job.read(2, "start")
    jobs.append(start())
    excluded = jobs[0 if is_host else 1]
    ends = {id(job): job.finish() for job in jobs}
    code, log = ends.pop(id(excluded))
    assert code == (0 if is_host else 1), log
    assert "has asked for ExcludeThisNode: a bad GPU" in log
    assert [code for code, _ in ends.values()] == [0, 0], ends
    assert {each["cycle"] for each in excluded.events if each["event"] == "start"} == {0}
    assert {each["cycle"] for each in jobs[2].events} == {1}
