"""A training of two nodes with two ranks each, through faults of all kinds in a row: it ends as an undisturbed one.

The store of the rendezvous lies outside, so that any node may be lost, that of rank 0 and of the coordinator included.
"""

from __future__ import annotations

import faulthandler
import functools
import json
import math
from pathlib import Path
from typing import Any

import pytest

from nvrx_core.events import timeline
from tests.harness.process.host import eventually
from tests.harness.process.launch import Launch, Start, events_of, rendezvous_options
from tests.harness.process.workers import launcher_training

STEPS_PER_FAULT = 6
TIMEOUTS = ("--ft-rank-section-timeouts", "step:2,warmup:60", "--ft-rank-heartbeat-timeout", "3")
KINDS = (
    ("kill", 3), ("hang_lock", 1), ("node", 0), ("exception", 2), ("spin", 0),
    ("leave", 1), ("term", 0), ("node", 2), ("stop", 2), ("segv", 1),
    ("gil_locked", 3), ("abort", 0), ("livelock", 2), ("node", 0), ("exit_3", 3),
    ("hang_recv", 0), ("memory_error", 1), ("kill", 0), ("stop", 0), ("node", 3),
)  # fmt: skip
HANGS = {"hang_lock", "spin", "gil_locked", "livelock", "hang_recv"}
"""Those in which the rank still answers where it is."""
LIMIT = 60.0
"""Seconds a fault, on a busy machine."""


class Nodes:
    """Two launchers, and one that waits; a lost one is followed by another."""

    def __init__(self, start: Start, endpoint: str, schedule: dict[str, Any]) -> None:
        self.launched: list[Launch] = []
        self.to_be_lost = sum(kind == "node" for kind, _ in schedule["faults"].values())
        restarts = ("--max-restarts", str(len(schedule["faults"])))
        self._start = functools.partial(
            start, json.dumps(schedule), *rendezvous_options(endpoint), "--nnodes", "2:3", *restarts, *TIMEOUTS,
            worker="launcher_training.py", OMP_NUM_THREADS="1",
        )  # fmt: skip
        for _ in range(3):
            self.launch()

    def launch(self) -> None:
        self.launched.append(self._start())

    def lost(self) -> int:
        return sum(job.process.poll() == -9 for job in self.launched)


@pytest.mark.parametrize("number", [3, pytest.param(len(KINDS), marks=pytest.mark.nightly)])
def test_a_disturbed_training_ends_with_the_loss_of_an_undisturbed_one(
    launcher: Start, tmp_path: Path, store_endpoint: str, number: int
) -> None:
    faulthandler.cancel_dump_traceback_later()  # all of them take longer than that of pytest; there is a limit below
    faults = dict(enumerate(KINDS[:number], 1))
    steps = STEPS_PER_FAULT * (number + 1)
    schedule = {"steps": steps, "faults": {str(STEPS_PER_FAULT * k): fault for k, fault in faults.items()}}
    (tmp_path / "training").mkdir()
    nodes = Nodes(launcher, store_endpoint, schedule)
    ended = eventually(lambda: is_over(nodes), LIMIT * number)
    assert ended, timeline.render(timeline.read(tmp_path / "events"))
    ends = [job.finish() for job in nodes.launched if job.process.poll() != -9]
    history = "\n".join([timeline.render(timeline.read(tmp_path / "events")), *(log for _, log in ends)])
    assert {code for code, _ in ends} == {0}, history
    assert nodes.lost() == nodes.to_be_lost, history
    losses = [each["loss"] for job in nodes.launched for each in job.events if each["event"] == "done"]
    assert len(losses) == 4, history
    expected = launcher_training.undisturbed(steps)
    assert all(math.isclose(loss, expected, rel_tol=1e-9) for loss in losses), (losses, expected)
    told = events_of(tmp_path, "rank_hung")
    named = [each["rank"] for each in told if each["stack"]]  # one that fails, and is slow to exit, has none
    assert named == [rank for kind, rank in faults.values() if kind in HANGS], history
    assert max(int(each["iteration"]) for each in events_of(tmp_path, "cycle_started")) == number, history


def is_over(nodes: Nodes) -> bool:
    """Whether all launchers have ended; one that is lost is followed by another, unless it is the last to be lost."""
    running = [job for job in nodes.launched if job.process.poll() is None]
    if running and len(nodes.launched) < 3 + nodes.lost() and nodes.lost() < nodes.to_be_lost:
        nodes.launch()
    return not running
