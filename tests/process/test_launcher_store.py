"""The program of the store of in-process restart is lost: a new cycle has a new store, and no restart is used up."""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from nvrx_core.process.signals import SENT_TO_ALL
from tests.harness.process.host import eventually, stop
from tests.harness.process.launch import Launch, Nodes, Start, events_of, left_in

PROGRAM = b"nvrx_launcher.store_program"
LOST = {signal.SIGKILL: "was ended by SIGKILL", signal.SIGSTOP: "is stopped by a signal"}
WORKER = "launcher_wrapped.py"
NOBODY = "-"
night = pytest.mark.nightly


def programs(folder: Path, *, hosting: bool) -> list[int]:
    """Return the programs that host a store, or those that ask another launcher's."""
    found = []
    for pid in left_in(folder):
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if PROGRAM in command and command[command.index(PROGRAM) + 1].isdigit() is hosting:
            found.append(pid)
    return found


def await_program(folder: Path, *, hosting: bool = True) -> int:
    assert eventually(lambda: bool(programs(folder, hosting=hosting)), 60.0)
    return programs(folder, hosting=hosting)[0]


def assert_restarted_for_free(jobs: list[Launch], folder: Path, signum: int) -> None:
    """Let the second cycle end, which has another store than the first one."""
    for job in jobs:
        job.read(2, "enter", 1)
    (folder / "gate").touch()
    ends = [job.finish() for job in jobs]
    assert [code for code, _ in ends] == [0] * len(jobs), ends
    log = "".join(text for _, text in ends)
    endpoints = re.findall(r"host the store of in-process restart at (\S+)", log)
    assert len(set(endpoints)) == len(endpoints) == 2, log
    (event,) = events_of(folder, "control_store_lost")
    assert LOST[signum] in event["reason"]
    assert endpoints[0] in event["reason"]
    assert "no restart is used up" in log


@pytest.mark.parametrize(
    ("signum", "moment"),
    [
        (signal.SIGSTOP, "entry"), (signal.SIGKILL, "question"),
        *(pytest.param(*case, marks=night) for case in
          ((signal.SIGKILL, "entry"), (signal.SIGKILL, "middle"), (signal.SIGSTOP, "middle"),
           (signal.SIGSTOP, "question"))),
    ],
)  # fmt: skip
def test_a_lost_store_is_replaced_in_a_new_cycle(launcher: Start, tmp_path: Path, moment: str, signum: int) -> None:
    job = launcher(NOBODY, worker=WORKER)
    store = await_program(tmp_path)
    if moment != "entry":
        ranks = {each["rank"]: each["pid"] for each in job.read(2, "enter")}
    if moment == "question":  # which a stopped program does not answer
        stop(store)
        os.kill(ranks[0], signal.SIGKILL)
        job.await_log("rank 0 (local rank 0")
    os.kill(store, signum)
    assert_restarted_for_free([job], tmp_path, signum)


@pytest.mark.parametrize("signum", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=night)])
def test_the_launchers_of_all_nodes_have_the_new_store(nodes: Nodes, tmp_path: Path, signum: int) -> None:
    """Its host answers for a rank of each node in the second cycle: the programs of the others ask the new store."""
    jobs = nodes(2, NOBODY, "--nnodes", "2", worker=WORKER)
    for job in jobs:
        job.read(2, "enter")
    await_program(tmp_path, hosting=False)
    os.kill(await_program(tmp_path), signum)
    entered = [job.read(2, "enter", 1) for job in jobs]
    await_program(tmp_path, hosting=False)
    for job, ranks in zip(jobs, entered, strict=True):
        os.kill(ranks[1]["pid"], signal.SIGKILL)
        job.await_log(f"in-process restart continues without rank {ranks[1]['rank']}")
    assert_restarted_for_free(jobs, tmp_path, signum)


@pytest.mark.parametrize("signum", [pytest.param(signal.SIGKILL, marks=night), signal.SIGSTOP])
def test_a_lost_program_that_asks_the_store_of_another_node_is_replaced(
    nodes: Nodes, tmp_path: Path, signum: int
) -> None:
    """A question that it was asked is asked anew; the workers go on."""
    jobs = nodes(2, NOBODY, "--nnodes", "2", worker=WORKER)
    pids = {each["rank"]: each["pid"] for job in jobs for each in job.read(2, "enter")}
    asking = await_program(tmp_path, hosting=False)
    stop(asking)
    for rank in (0, 2):  # one of each node
        os.kill(pids[rank], signal.SIGKILL)
    for job in jobs:
        job.await_log(" was ended by SIGKILL")
    with suppress(ProcessLookupError):  # the launcher has found it stopped, and has replaced it
        os.kill(asking, signum)
    for job in jobs:
        job.await_log("in-process restart continues without rank")
    (tmp_path / "gate").touch()
    ends = [job.finish() for job in jobs]
    assert [code for code, _ in ends] == [0, 0], ends
    assert "it is replaced" in "".join(log for _, log in ends)


def test_the_store_ignores_the_signals_of_a_scheduler(launcher: Start, tmp_path: Path) -> None:
    job = launcher(NOBODY, worker=WORKER)
    store = await_program(tmp_path)
    job.read(2, "enter")
    for signum in SENT_TO_ALL:
        os.kill(store, signum)
    (tmp_path / "gate").touch()
    code, log = job.finish()
    assert code == 0, log
    assert not events_of(tmp_path, "control_store_lost"), log
