"""Stragglers of real trainings over gloo under launchers: who is named, in what section, and when nobody is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.harness.process.launch import Nodes, Start, events_of

WORKER = "stragglers.py"
MOST = 300.0
FIGURES = re.compile(r"\d[\d.]* (ms|s|times|steps)\b")


def lines_of(log: str) -> list[str]:
    """The lines about stragglers, without host and figures."""
    found = [line.partition("straggler: ")[2] for line in log.splitlines() if "straggler: " in line]
    return [FIGURES.sub(r"N \1", re.sub(r"\(\S+?\)", "(host)", line, count=1)) for line in found]


def found(rank: int, section: str, since: str = "") -> str:
    times = f"{section} N ms (peers N ms) of a step of N ms"
    return f"rank {rank} (host) is N times as slow as the others for N steps{since}: {times}"


def over(rank: int, section: str) -> str:
    times = f"{section} N ms (peers N ms) of a step of N ms"
    return f"rank {rank} (host) is about as fast as the others again, after N steps: {times}"


def test_a_slow_loader_is_named_once_by_one_launcher_and_once_more_when_that_is_over(
    nodes: Nodes, tmp_path: Path
) -> None:
    """Rank 3, of the other node, is slow until it is named; then rank 0 evaluates and saves now and then."""
    plan = "straggler_found:data=3 straggler_over:rank0"
    jobs = nodes(2, plan, "--nnodes", "2", worker=WORKER, OMP_NUM_THREADS="1")
    ends = [job.finish(MOST) for job in jobs]
    assert [code for code, _ in ends] == [0, 0], ends
    assert [line for _, log in ends for line in lines_of(log)] == [
        found(3, "data", " since the first ones"),
        over(3, "data"),
    ], ends
    (event,) = events_of(tmp_path, "straggler_found")
    assert (event["ranks"], list(event["sections"])) == ([3], ["data"])
    assert [each["ranks"] for each in events_of(tmp_path, "straggler_over")] == [[3]]
    assert not any("cycle 1" in log for _, log in ends), "nothing is done about it"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ("32:rank0 40:data=3 25:rank0", [found(3, "data"), over(3, "data")]),
        ("32:even 40:forward=1 25:even", [found(1, "forward"), over(1, "forward")]),
        ("32:noise 60:data=2", [found(2, "data")]),
        ("32:even 60:noise 25:rank0 30:all 30:noise", []),
        ("uneven 32:even 60:noise", []),
    ],
    ids=[
        "a slow loader beside a rank that evaluates",
        "a slow forward",
        "a slow loader on a busy machine",
        "all alike",
        "uneven by design",
    ],
)
def test_a_rank_is_named_with_a_reason_only(launcher: Start, plan: str, said: list[str]) -> None:
    options = ("--nproc-per-node", "6", "--ft-straggler-sections", "data,forward")
    code, log = launcher(plan, *options, worker=WORKER, OMP_NUM_THREADS="1").finish(MOST)
    assert (code, lines_of(log)) == (0, said), log


@pytest.mark.nightly
def test_without_a_factor_nobody_is_named(launcher: Start) -> None:
    options = ("--nproc-per-node", "4", "--ft-straggler-factor", "none")
    code, log = launcher("32:even 35:data=2", *options, worker=WORKER, OMP_NUM_THREADS="1").finish(MOST)
    assert (code, lines_of(log)) == (0, []), log
