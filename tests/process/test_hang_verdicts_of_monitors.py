"""The verdict on hangs under rank monitors: one line on each node, before the kill, with the rank that is to blame."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import NamedTuple

import pytest

from nvrx_core.attribution.reading import verdict_of_files
from tests.harness.process.host import stop
from tests.harness.process.launch import Nodes, Start, events_of

WORKER = "hangs_of_monitors.py"
OPTIONS = ("--ft-initial-rank-heartbeat-timeout", "60", "--ft-rank-heartbeat-timeout", "1.5")
FIRST = ("early", "stopped", "in_section", "alike")
"""The shapes in each run of the tests."""


class Shape(NamedTuple):
    """What has to be said of a shape of `hangs_of_monitors.py`."""

    culprits: tuple[int, ...] = (1,)
    says: str = ""
    outcome: str = "culprits"


REDUCE = r"rank 0 waits for it in all_reduce #\d+ of the default group"
SHAPES = {
    "lock": Shape(says=rf"stands at hangs_of_monitors.py:\d+ in lock for \S+ s, waiting for a lock; {REDUCE}"),
    "sleep": Shape(says=rf"in sleep for \S+ s, waiting for the end of a sleep; {REDUCE}"),
    "holds_gil": Shape(says=rf"in holds_gil for \S+ s, in a call that holds the GIL; {REDUCE}"),
    "loader": Shape(says=rf"in loader \(in .*; {REDUCE}"),
    "stopped": Shape(says=rf"stands at an unknown place for \S+ s, its process is stopped; {REDUCE}"),
    "busy": Shape(says=rf"in busy for \S+ s, running; {REDUCE}"),
    "early": Shape(says=r"in lock for \S+ s, waiting for a lock; rank 0 waits for it in"),
    "in_section": Shape(says=rf"in lock .*, section 'step' open for .*, with dead child processes: false .*; {REDUCE}"),
    "in_thread": Shape(says=rf"in lock for \S+ s, waiting for a lock; {REDUCE}"),
    "new_group": Shape(says="rank 0 waits for it in the creation of a process group"),
    "alike": Shape((), "all ranks are alike, none is to blame; ranks 0-1 at .* in sleep", "alike"),
    "subgroup": Shape(says=r"in lock .*rank 0 waits for it in all_reduce #1 of group"),
}  # fmt: skip


def wrong(folder: Path, logs: list[str], cycle: int, name: str) -> str:
    """What is wrong with the verdict on the hang of a cycle; "" for nothing."""
    shape = SHAPES[name]
    verdicts = events_of(folder, "hang_verdict")
    told = [each for each in verdicts if each["iteration"] == cycle]
    of_cycle = [each for each in events_of(folder, "cycle_verdict") if each["iteration"] == cycle]
    if len(told) != 1 or len(of_cycle) != 1:
        return f"{len(told)} verdicts, {len(of_cycle)} of the cycle"
    verdict, found = told[0], of_cycle[0]["verdict"]
    alike = sum(each["sentence"] == verdict["sentence"] for each in verdicts)  # two cycles may have one sentence
    is_right = (
        (tuple(verdict["ranks"]), verdict["outcome"]) == (shape.culprits, shape.outcome)
        and re.search(shape.says, verdict["sentence"])
        and all(log.count(f"hang: {verdict['sentence']}") == alike for log in logs)
        and (found["class"], found["rank"]) == ("hang", shape.culprits[0] if shape.culprits else None)
    )
    return "" if is_right else f"{verdict['outcome']} {verdict['ranks']}: {verdict['sentence']}; {found}"


def assert_all_right(folder: Path, ends: list[tuple[int, str]], names: tuple[str, ...]) -> None:
    assert [code for code, _ in ends] == [0] * len(ends), ends
    logs = [log for _, log in ends]
    found = {name: text for cycle, name in enumerate(names) if (text := wrong(folder, logs, cycle, name))}
    assert not found, "\n".join([*(f"{name}: {text}" for name, text in found.items()), *logs])


def play(nodes: Nodes, names: tuple[str, ...], folder: Path) -> None:
    """Play a job of two nodes with a rank each."""
    size = ("--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", str(len(names)))
    section = ("--ft-rank-section-timeouts", "step:1.5") if "in_section" in names else ()
    jobs = nodes(2, ",".join(names), *size, *OPTIONS, *section, worker=WORKER)
    assert_all_right(folder, [job.finish(60.0 + 15 * len(names)) for job in jobs], names)


def test_the_line_names_who_hangs_and_where(nodes: Nodes, tmp_path: Path) -> None:
    play(nodes, FIRST, tmp_path)


@pytest.mark.nightly
def test_the_line_names_who_hangs_and_where_in_every_shape(nodes: Nodes, tmp_path: Path) -> None:
    play(nodes, tuple(SHAPES), tmp_path)


def test_switched_off_there_is_no_line_and_the_rank_is_ended(launcher: Start, tmp_path: Path) -> None:
    code, log = launcher("lock", "--max-restarts", "0", "--ft-hang-verdict", "false", *OPTIONS, worker=WORKER).finish()
    assert code != 0
    assert re.search(r"rank \d .* was ended by SIGKILL, hung: no heartbeat for \S+ s", log)
    assert "hang: " not in log
    assert events_of(tmp_path, "rank_hung")
    assert not events_of(tmp_path, "hang_verdict")


def test_a_rank_that_goes_on_before_it_is_ended_is_no_hang(launcher: Start, tmp_path: Path) -> None:
    job = launcher("goes_on", "--max-restarts", "0", *OPTIONS, worker=WORKER)
    job.await_log("rank 0 goes on, and is not ended as hung")
    (tmp_path / "gate").touch()
    code, log = job.finish()
    assert code == 0, log
    assert {each["rank"] for each in events_of(tmp_path, "rank_hung")} == {0, 1}
    over = {each["rank"]: each for each in events_of(tmp_path, "recovered")}
    for rank, why in enumerate(("goes on", "has exited in order")):
        assert over[rank]["reason"] == f"rank {rank} (pid {over[rank]['worker']}) {why}, and is not ended as hung"
        assert f"rank {rank} {why}, and is not ended as hung" in log
    (tmp_path / "launcher.log").write_text(log)
    for files in ([tmp_path / "launcher.log"], [*(tmp_path / "events").iterdir()]):
        assert verdict_of_files(files).failure == "clean"


def test_a_node_whose_launcher_does_not_answer_holds_up_neither_the_line_nor_the_kill(
    ordered: Nodes, tmp_path: Path
) -> None:
    jobs = here, there = ordered(2, "lock", "--nnodes", "2", "--max-restarts", "0", *OPTIONS, worker=WORKER)
    for job in jobs:
        job.read(2, "begun")
    stop(there.process.pid)
    here.await_log("was ended by SIGKILL, hung: no heartbeat")
    there.process.send_signal(signal.SIGCONT)
    here.finish()
    (verdict,) = [each for each in events_of(tmp_path, "hang_verdict") if each["pid"] == here.process.pid]
    assert re.match(r"rank 1 \(\S+\) stands at .* in lock .*; no report of ranks 2-3 in time", verdict["sentence"])
    hung, failed = events_of(tmp_path, "rank_hung"), events_of(tmp_path, "worker_failed")
    assert hung[0]["monotonic"] < verdict["monotonic"]
    ended = {each["rank"] for each in failed if each["code"] == -signal.SIGKILL}
    assert 1 in ended
    assert ended <= {each["rank"] for each in hung}  # a rank that waits is as well, or fails with the one it waits for


def test_where_the_launcher_of_the_coordinator_stands_still_a_line_says_whose_ranks_it_is_by(
    ordered: Nodes, tmp_path: Path
) -> None:
    patient = ("--rdzv-conf", "keep_alive_interval=30")  # the workers are not ended for the silence of the store
    jobs = first, other = ordered(2, "alike", "--nnodes", "2", "--max-restarts", "0", *patient, *OPTIONS, worker=WORKER)
    for job in jobs:
        job.read(2, "begun")
    stop(first.process.pid)
    other.await_log("was ended by SIGKILL, hung: no heartbeat")
    other.await_log("hang: ")  # said before or after that
    first.process.send_signal(signal.SIGCONT)
    (line,) = (line for line in other.log.splitlines() if "hang: " in line)
    assert re.search(r" INFO .* hang: who is to blame is not known; .*; by the ranks of \S+ alone$", line)
    (verdict,) = [each for each in events_of(tmp_path, "hang_verdict") if each["pid"] == other.process.pid]
    assert line.endswith(verdict["sentence"])
    assert (verdict["ranks"], verdict["missing"]) == ([], [0, 1])
