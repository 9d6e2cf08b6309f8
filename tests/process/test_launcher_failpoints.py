"""A launcher that is lost, fails or is late at any of its failpoints: nothing of it is left, and its job goes on."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from nvrx_core.failpoint import LAUNCHER_NAMES
from nvrx_core.testing import failpoints
from tests.harness.process.host import alive, eventually
from tests.harness.process.launch import Launch, Start, events_of, left_in, rendezvous_options

StartFaulty = Callable[[str, str], Launch]
OF_COORDINATOR = ("coordinator-lead", "decision-write")
"""Those that only a launcher of several nodes passes."""
BEFORE_ANY_CYCLE = ("guardian-spawn", "monitor-spawn", "rendezvous-join", "coordinator-lead")
IN_FIRST_CYCLE = ("term-kill-gap", "worker-reap", "signal-received", "decision-write")
SECOND_TIME = ("worker-spawn", "monitor-spawn")
AT_FAILPOINTS = "tests.harness.process.launcher_at_failpoints"
KINDS = {"kill": -9, "exception": 1, "delay:0.3": 0}
"""What is injected, and how a launcher ends by it."""
WITHIN = 10.0


def schedule(folder: Path, point: str, fault: str) -> dict[str, str]:
    cycle = -1 if point in BEFORE_ANY_CYCLE else 0 if point in IN_FIRST_CYCLE else 1
    nth = "#2" if point in SECOND_TIME else ""
    variables = {failpoints.SCHEDULE: f"0:{cycle}@{point}{nth}={fault}", "RANK": "0"}
    return {**variables, failpoints.RECORD: str(folder / "record")}


@pytest.fixture
def start_faulty(launcher: Start, tmp_path: Path) -> StartFaulty:
    """Starts the launcher of a job of one node, with one restart and an injected fault."""

    def start_faulty(point: str, fault: str) -> Launch:
        is_signalled = point == "signal-received"
        variables = schedule(tmp_path, point, fault)
        case = "waits" if is_signalled else "killed"
        job = launcher(case, "--max-restarts", "1", launcher=AT_FAILPOINTS, **variables)
        if is_signalled:
            job.read(2, "start")
            job.process.send_signal(signal.SIGTERM)
        return job

    return start_faulty


NIGHT = pytest.mark.nightly
ON_ONE_NODE = [
    pytest.param(point, kind, marks=[NIGHT] * (KINDS[kind] == 0))
    for point in LAUNCHER_NAMES
    for kind in KINDS
    if point not in OF_COORDINATOR
]
ON_SEVERAL = [
    pytest.param(point, kind, marks=[NIGHT] * ((point, kind) != ("decision-write", "kill")))
    for point in OF_COORDINATOR
    for kind in KINDS
]


@pytest.mark.parametrize(("point", "kind"), ON_ONE_NODE)
def test_no_process_is_left_of_a_launcher_that_fails_there(
    start_faulty: StartFaulty, tmp_path: Path, point: str, kind: str
) -> None:
    job = start_faulty(point, kind)
    code, log = job.finish()
    is_late_for_a_signal = (point, KINDS[kind]) == ("signal-received", 0)
    assert code == (128 + signal.SIGTERM if is_late_for_a_signal else KINDS[kind]), log
    assert injections(tmp_path) == [point]
    assert eventually(lambda: not left_in(tmp_path) and not any(map(alive, job.pids())), WITHIN)


@pytest.mark.parametrize(("point", "kind"), ON_SEVERAL)
def test_a_coordinator_that_fails_there_has_a_successor(
    launcher: Start, store_endpoint: str, tmp_path: Path, point: str, kind: str
) -> None:
    """The store is none of the launchers', so that the job needs none of them; a third one waits."""
    where = (*rendezvous_options(store_endpoint), "--nnodes", "2:3", "--rdzv-conf", "last_call_timeout=0")
    options = ("weakens", *where, "--max-restarts", "1")
    first = launcher(*options, launcher=AT_FAILPOINTS, **schedule(tmp_path, point, kind))
    first.await_log("this launcher runs the coordinator")
    others = [launcher(*options) for _ in range(2)]
    pids = {job.process.pid for job in others}
    assert eventually(lambda: pids <= {each["pid"] for each in events_of(tmp_path, "joined")}, 60.0)
    (tmp_path / "gate").touch()  # a launcher that joins later finds a job that has ended
    jobs = [first, *others]
    (code, log), *ends = [job.finish() for job in jobs]
    assert code == KINDS[kind], log
    assert [code for code, _ in ends] == [0, 0], ends
    assert injections(tmp_path) == [point]


def injections(folder: Path) -> list[str]:
    return [each["hit"].partition("@")[2].partition("#")[0] for each in failpoints.read_record(folder / "record")]
