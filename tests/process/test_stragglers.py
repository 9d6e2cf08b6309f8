"""Stragglers of real trainings over gloo under launchers: who is named, in what section, and when nobody is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.harness.process.launch import Nodes, Start, events_of

WORKER = "stragglers.py"
MOST = 300.0


def lines_of(log: str) -> list[str]:
    return [line.partition("straggler: ")[2] for line in log.splitlines() if "straggler: " in line]


def test_a_slow_loader_is_named_and_then_a_slow_forward_each_once(launcher: Start, tmp_path: Path) -> None:
    plan = "15:even 40:data=2 25:even 40:forward=1 25:even"
    job = launcher(plan, "--nproc-per-node", "4", worker=WORKER, OMP_NUM_THREADS="1")
    code, log = job.finish(MOST)
    assert code == 0, log
    found = [re.sub(r"\d[\d.]* (ms|s|times|steps)\b", r"N \1", line) for line in lines_of(log)]
    named = [re.sub(r"\(\S+?\)", "(host)", line, count=1) for line in found]
    assert named == [
        "rank 2 (host) is N times as slow as the others for N steps: data N ms (peers N ms) of a step of N ms",
        "rank 2 (host) is about as fast as the others again, after N steps: data N ms (peers N ms) of a step of N ms",
        "rank 1 (host) is N times as slow as the others for N steps: forward N ms (peers N ms) of a step of N ms",
        "rank 1 (host) is about as fast as the others again, after N steps: forward N ms (peers N ms) of a step of N ms",
    ], log  # fmt: skip
    events = events_of(tmp_path, "straggler_found")
    assert [(each["ranks"], list(each["sections"])) for each in events] == [([2], ["data"]), ([1], ["forward"])]
    assert [each["ranks"] for each in events_of(tmp_path, "straggler_over")] == [[2], [1]]
    assert "restart" not in log


def test_a_rank_of_another_node_is_named_by_the_coordinator_alone(nodes: Nodes) -> None:
    jobs = nodes(2, "15:even 40:data=3", "--nnodes", "2", worker=WORKER, OMP_NUM_THREADS="1")
    ends = [job.finish(MOST) for job in jobs]
    assert [code for code, _ in ends] == [0, 0], ends
    (line,) = [line for _, log in ends for line in lines_of(log)]
    assert line.startswith("rank 3 ("), ends


@pytest.mark.parametrize("plan", ["15:even 40:noise 25:rank0 30:all", "uneven 20:even 40:noise"])
def test_nobody_is_named_without_a_reason(launcher: Start, tmp_path: Path, plan: str) -> None:
    job = launcher(plan, "--nproc-per-node", "8", worker=WORKER, OMP_NUM_THREADS="1")
    code, log = job.finish(MOST)
    assert code == 0, log
    assert lines_of(log) == []
    assert events_of(tmp_path, "straggler_found") == []


def test_without_a_factor_nobody_is_named(launcher: Start) -> None:
    options = ("--nproc-per-node", "4", "--ft-straggler-factor", "none")
    code, log = launcher("40:data=2", *options, worker=WORKER, OMP_NUM_THREADS="1").finish(MOST)
    assert (code, lines_of(log)) == (0, []), log
