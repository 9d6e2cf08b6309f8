"""The verdict of a cycle: when it is made, from what, and by which launcher."""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from nvrx_launcher import cycle_verdict, exit_codes
from nvrx_launcher.cycle_verdict import CycleVerdicts
from nvrx_launcher.history import History
from nvrx_launcher.rendezvous.failure_reports import CycleFailures
from nvrx_launcher.rendezvous.messages import Decision, DecisionKind, Member
from nvrx_launcher.rendezvous.parameters import NOT_RETRIED
from nvrx_launcher.workers.environment import Placement
from nvrx_launcher.workers.output import WorkerOutput

from nvrx_core.fault.hang_verdict import HangOutcome, HangVerdict
from nvrx_core.process.helper_thread import HelperThreadError
from nvrx_core.process.kernel_log import NewRecords

ENDED = "rank 1 (local rank 1, pid 7) was ended by SIGSEGV"
MEMBERS = (Member(0, 0, 2), Member(4, 2, 2))
HOSTS = {0: "n0", 4: "n1"}


def run(cycle: int = 0) -> Decision:
    return Decision(DecisionKind.RUN, cycle, "2 nodes, 0 spare", members=MEMBERS)


def stop(reason: str = f"n0: {ENDED}", cycle: int = 0) -> Decision:
    return Decision(DecisionKind.STOP, cycle, reason)


class World:
    """A launcher with two workers on n0."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path, self.begins_at = folder, "", 0
        self.reported: CycleFailures | None = CycleFailures(HOSTS, ((0, ENDED),), frozenset(HOSTS))
        self.placement: Placement | None = Placement(
            group_rank=0, group_world_size=2, first_rank=0, world_size=4, local_world_size=2, master_addr="",
            master_port=0, agent_store=False, cycle=0,
        )  # fmt: skip
        self.outputs = {0: WorkerOutput(b"", ()), 1: WorkerOutput(b"", ())}
        self.history, self.made = History(str(folder)), list[CycleVerdicts]()
        self.make()

    def make(self, *, time_limit: float = math.inf, ends_job: bool = True) -> None:
        self.verdicts = CycleVerdicts(
            self.history, self, self, cycle_log=self, host="n0", events=str(self.folder), time_limit=time_limit,
            ends_job=ends_job,
        )  # fmt: skip
        self.made.append(self.verdicts)

    def stopped(self, *, now: float = 0.0) -> None:
        self.verdicts.stopped(signal.SIGTERM, now=now)
        self.verdicts.make()

    def failures(self, _: int) -> CycleFailures | None:
        return self.reported

    def output(self) -> Mapping[int, WorkerOutput]:
        return self.outputs

    def decided(self, *decisions: Decision, now: float = 0.0) -> None:
        for decision in decisions:
            self.verdicts.decided(decision, now=now)
            self.verdicts.make()

    def events(self) -> list[dict[str, object]]:
        self.verdicts.finish()
        lines = [json.loads(line) for file in self.folder.glob("events-*") for line in file.read_text().splitlines()]
        return [line for line in lines if line["event"] == "cycle_verdict"]

    def verdict(self) -> dict[str, object]:
        (event,) = self.events()
        assert isinstance(event["verdict"], dict)
        return event["verdict"]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cycle_verdict, "NewRecords", lambda: NewRecords(tmp_path / "none"))
    made = World(tmp_path)
    yield made
    made.history.close()
    for each in made.made:
        each.close()


def test_the_line_and_the_event_name_the_culprit(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.decided(run(), stop(), run(1))
    (event,) = world.events()
    assert event["iteration"] == 0
    assert event["sentence"] == f"rank 1 on n0 crashed in native code: {ENDED}; restart"
    found = event["verdict"]
    assert isinstance(found, dict)
    assert (found["class"], found["rank"], found["host"], found["action"]) == ("segmentation_fault", 1, "n0", "restart")
    (record,) = caplog.records
    line = "verdict of cycle 0: segmentation_fault, rank 1 on n0; action restart, confidence 0.88"
    assert (record.message, record.levelno, record.rank) == (line, logging.WARNING, 1)  # type: ignore[attr-defined]


def test_what_is_not_retried_is_to_be_corrected_first(world: World) -> None:
    """The workers refuse their arguments, say nothing that is known, and no launcher restarts them."""
    report = "rank 0 (local rank 0, pid 7) has failed with exit code 2"
    world.reported = CycleFailures(HOSTS, ((0, report),), frozenset(HOSTS))
    world.decided(run(), Decision(DecisionKind.END, 0, f"n0: {report}{NOT_RETRIED}", exit_codes.FAILED))
    found = world.verdict()
    assert (found["class"], found["action"]) == ("unknown", "stop")
    why = "rank 0 on n0 failed, and the logs do not say why"
    assert found["sentence"] == f"{why}: {report}; stop, and correct it first"


FAILED = "rank 1 (local rank 1, pid 7) has failed with exit code 1"


@pytest.mark.parametrize(
    ("report", "printed", "action", "stops"),
    [
        (f"{FAILED}: FileNotFoundError: 'x'", b"", "stop", True),
        (f"{FAILED}: FileNotFoundError: 'x'", b"FileNotFoundError: 'x'\n", "stop", True),
        (FAILED, b"FileNotFoundError: 'x'\n", "stop", False),
        (f"{FAILED}: ValueError: x", b"OSError: [Errno 28] No space left on device\n", "stop", False),
        (f"{FAILED}: FileNotFoundError: 'x'", b"OSError: [Errno 28] No space left on device\n", "stop", False),
        (ENDED, b"", "restart", False),
    ],
)
def test_a_job_may_be_stopped_by_what_launchers_have_reported_not_by_what_was_printed(
    world: World, report: str, printed: bytes, action: str, stops: bool
) -> None:
    world.reported = CycleFailures(HOSTS, ((0, report),), frozenset(HOSTS))
    world.outputs = {1: WorkerOutput(printed, ())}
    world.decided(run(), stop(f"n0: {report}"), run(1))
    assert world.verdict()["action"] == action
    assert world.verdicts.says_stop(0) is stops


@pytest.mark.parametrize(
    ("reports", "stops"),
    [
        (("has failed with exit code 1: OSError: [Errno 28] No space left on device, at a.py:1",), True),
        (
            ("has failed with exit code 1; it printed last: OSError: [Errno 28] No space left on device, at a.py:1",),
            False,
        ),
        (("was ended by SIGKILL; it printed last: OSError: [Errno 28] No space left on device, at a.py:1",), False),
        (("has failed with exit code 1: KeyboardInterrupt",), False),
        (("was ended by SIGSEGV", "has failed with exit code 1: AssertionError: peers"), False),
    ],
    ids=["raised", "printed", "printed, then killed", "interrupted", "a consequence"],
)
def test_a_stop_is_by_the_first_report_and_what_a_worker_has_ended_with(reports: tuple[str, ...], stops: bool) -> None:
    texts = [f"rank {rank} (local rank {rank}, pid 7) {text}" for rank, text in enumerate(reports)]
    evidence = reported(*texts)
    named = {"OSError": "disk_full", "Assertion": "assertion", "Keyboard": "operator_kill"}
    failure = next(name for part, name in named.items() if part in texts[-1])
    assert cycle_verdict.says_stop_by_reports(evidence, failure) is stops


def test_the_next_cycle_is_waited_for_within_bounds(world: World) -> None:
    world.decided(run(), stop(), now=5.0)
    assert world.verdicts.deadline == 6.0
    world.verdicts.tick(now=5.9)
    assert not list(world.folder.glob("*verdict*"))
    world.verdicts.tick(now=6.0)
    assert world.verdicts.deadline == math.inf
    world.decided(Decision(DecisionKind.END, 0, f"n0: {ENDED}, after 0 restarts", 1))
    assert len(world.events()) == 1


CLOSED = "rank 0 (local rank 0, pid 7) has failed with exit code 1: RuntimeError: Connection closed by peer [10.0.0.2]"
LOST = "the connection of node 4 was closed, and it has not moved its lease for 1 s since"


def test_a_node_that_is_lost_after_its_peers_have_failed_is_to_blame(world: World) -> None:
    world.reported = CycleFailures(HOSTS, ((0, CLOSED),), frozenset({0}))
    world.decided(run(), stop(f"n0: {CLOSED}"), now=5.0)
    world.verdicts.tick(now=6.0)
    assert world.verdicts.deadline == 16.0, "node 4 says nothing"
    world.decided(Decision(DecisionKind.LOST, 0, LOST, node=4), now=7.5)
    assert world.verdicts.deadline == 7.5
    world.verdicts.tick(now=7.5)
    found = world.verdict()
    assert (found["class"], found["host"], found["rank"]) == ("peer_lost", "n1", None)


def test_a_node_that_stays_silent_is_not_waited_for_longer(world: World) -> None:
    world.reported = CycleFailures(HOSTS, ((0, ENDED),), frozenset())
    world.decided(run(), stop(), now=5.0)
    world.decided(stop("n1: and another one"), now=5.5)
    world.verdicts.tick(now=6.5)
    assert world.verdicts.deadline == 16.0
    world.decided(Decision(DecisionKind.LOST, 0, LOST, node=4), now=7.0)
    assert world.verdicts.deadline == 16.0, "node 0 has not said that it has stopped"
    world.verdicts.tick(now=16.0)
    assert world.verdict()["rank"] == 1


def test_the_loss_of_a_node_before_a_fault_makes_no_verdict(world: World) -> None:
    world.decided(Decision(DecisionKind.LOST, 0, LOST, node=4), run(), Decision(DecisionKind.LOST, 0, LOST, node=4))
    assert world.verdicts.deadline == math.inf
    assert not world.events()


def test_a_fault_that_ends_the_job_has_its_verdict_before_the_end(world: World) -> None:
    world.decided(run(), Decision(DecisionKind.END, 0, f"n0: {ENDED}; it would fail again", 1))
    assert world.verdict()["class"] == "segmentation_fault"


def test_the_end_of_a_job_without_a_fault_has_no_verdict(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.decided(Decision(DecisionKind.END, 0, "0 of 2 nodes have joined", 1), run())
    world.decided(Decision(DecisionKind.LOST, 0, "n1", node=4), Decision(DecisionKind.END, 0, "rank 1 has asked", 93))
    world.stopped()
    assert world.events() == []
    assert not caplog.records


def test_a_signal_that_ends_a_cycle_has_its_verdict_at_once_and_once(world: World) -> None:
    world.decided(run())
    world.stopped()
    assert len(world.events()) == 1
    world.decided(stop("n0: the launcher has received signal 15"))
    world.stopped()
    world.decided(Decision(DecisionKind.END, 0, f"n0: {ENDED}", 1))
    found = world.verdict()
    assert (found["class"], found["rank"], found["action"]) == ("operator_kill", None, "stop")


def test_a_second_signal_waits_for_no_verdict(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.path = str(world.folder / "fifo")
    os.mkfifo(world.path)
    world.decided(run())
    world.stopped()
    (thread,) = world.verdicts._threads
    world.stopped()
    world.verdicts.finish()
    assert caplog.messages == ["the verdict of a cycle was not made before a second signal"]
    with open(world.path, "wb"):
        thread.join(30.0)


@pytest.mark.parametrize(
    ("apart", "failure"),
    [(-600.0, "operator_kill"), (-60.0, "time_limit"), (5.0, "time_limit"), (600.0, "operator_kill")],
)
def test_a_signal_at_the_end_of_the_jobs_time_is_that_of_the_scheduler(
    world: World, apart: float, failure: str
) -> None:
    world.make(time_limit=cycle_verdict.time_limit({"SLURM_JOB_END_TIME": str(int(time.time() - apart))}))
    world.decided(run())
    world.stopped()
    found = world.verdict()
    assert (found["class"], found["action"]) == (failure, "restart" if failure == "time_limit" else "stop")


@pytest.mark.parametrize("text", ["", "soon", "-5"])
def test_without_a_time_limit_no_signal_is_that_of_one(text: str) -> None:
    assert cycle_verdict.time_limit({"SLURM_JOB_END_TIME": text}) == math.inf


def test_a_job_that_goes_on_without_this_launcher_has_lost_its_node(world: World) -> None:
    world.make(ends_job=False)
    world.decided(run())
    world.stopped()
    found = world.verdict()
    assert (found["class"], found["host"], found["action"]) == ("operator_kill", "n0", "restart")


TERMINATED = "rank 1 (local rank 1, pid 7) was ended by SIGTERM"


@pytest.mark.parametrize(
    ("report", "later", "expected"),
    [
        (TERMINATED, 0.5, ("operator_kill", None, "stop")),
        (f"{FAILED}: KeyboardInterrupt, at a.py:1", 0.5, ("operator_kill", None, "stop")),
        (TERMINATED, 5.0, ("operator_kill", 1, "restart")),
        (ENDED, 0.5, ("segmentation_fault", 1, "restart")),
        (ENDED, 5.0, ("segmentation_fault", 1, "restart")),
    ],
    ids=["the same signal", "the same, as an exception", "one before", "a fault just before", "a fault before"],
)
def test_what_has_failed_before_the_signal_is_to_blame_unless_it_was_the_same_signal(
    world: World, report: str, later: float, expected: tuple[str, int | None, str]
) -> None:
    world.reported = CycleFailures(HOSTS, ((0, report),), frozenset())
    world.decided(run(), stop(f"n0: {report}"), now=100.0)
    world.stopped(now=100.0 + later)
    found = world.verdict()
    assert (found["class"], found["rank"], found["action"]) == expected


def test_what_the_cycle_has_survived_does_not_count_when_a_signal_ends_it(world: World) -> None:
    world.reported = CycleFailures(HOSTS, ((4, ENDED),))
    world.decided(run())
    world.stopped()
    assert world.verdict()["class"] == "operator_kill"


def test_an_exception_in_the_log_that_has_ended_no_worker_is_why_the_job_was_cancelled(world: World) -> None:
    world.outputs[1] = WorkerOutput(b"Traceback (most recent call last):\n  File 'a.py'\nValueError: no label\n", ())
    world.decided(run())
    world.stopped()
    assert (world.verdict()["error_type"], world.verdict()["rank"]) == ("ValueError", 1)


def test_a_signal_to_another_launcher_than_that_of_the_coordinator_has_no_verdict(world: World) -> None:
    world.reported = None
    world.decided(run())
    world.stopped()
    assert world.events() == []


def test_where_another_launcher_has_the_reports_it_gives_the_verdict(world: World) -> None:
    world.reported = None
    world.decided(run(), stop(), run(1))
    assert world.events() == []


def test_one_that_leaves_in_order_has_given_the_verdict_that_its_successor_does_not_repeat(world: World) -> None:
    reported, world.reported = world.reported, None
    world.decided(run(), stop("n1: the launcher has received signal 15"), now=5.0)
    assert world.verdicts.deadline == math.inf
    world.reported = reported
    world.decided(run(1), now=5.5)
    assert world.events() == []


def test_a_successor_gives_the_verdict_of_one_that_is_lost_before_it_has(world: World) -> None:
    reported, world.reported = world.reported, None
    world.decided(run(), stop(), now=5.0)
    assert reported is not None
    world.reported = replace(reported, reports=(), stopped=frozenset())
    world.decided(Decision(DecisionKind.LOST, 0, LOST, node=4), now=6.0)
    assert world.verdicts.deadline == 7.0
    world.verdicts.tick(now=7.0)
    assert world.verdicts.deadline == 17.0, "node 0 says nothing"
    world.decided(run(1), now=8.0)
    assert (world.verdict()["class"], world.verdict()["rank"]) == ("segmentation_fault", 1)


def test_the_failure_of_another_node_that_came_later_can_be_the_cause(world: World) -> None:
    lost = "rank 0 (local rank 0, pid 6) has failed with exit code 1: RuntimeError: Connection closed by peer"
    cause = "rank 3 (local rank 1, pid 6) has failed with exit code 1: ValueError: x"
    world.reported = CycleFailures(HOSTS, ((0, lost), (4, cause)))
    world.verdicts.failed(0, lost)
    world.decided(run(), stop(f"n0: {lost}"), run(1))
    found = world.verdict()
    assert (found["class"], found["error_type"], found["rank"], found["host"]) == (
        "user_exception",
        "ValueError",
        3,
        "n1",
    )


def test_without_a_coordinator_a_launcher_knows_its_own_failures_and_the_reason(world: World) -> None:
    world.reported = CycleFailures({})
    world.decided(run())
    world.verdicts.failed(0, "rank 0 (local rank 0, pid 6) has failed with exit code 1")
    world.verdicts.failed(1, "rank 1 (local rank 1, pid 7) was ended by SIGKILL")
    world.verdicts.goes_on_without(1)
    world.decided(stop("n1: rank 3 (local rank 1, pid 9) was ended by SIGSEGV"), run(1))
    found = world.verdict()
    assert (found["class"], found["rank"], found["host"]) == ("segmentation_fault", 3, "n1")
    assert "SIGKILL" not in str(found["evidence"])


@pytest.mark.parametrize(
    ("reason", "host", "line"),
    [
        ("n1: the store is lost; no restart is used up", "n1", "unknown cause, node n1; action restart"),
        ("no more", None, "unknown cause, no rank named; action restart"),
    ],
)
def test_an_unknown_cause_is_an_answer(
    world: World, caplog: pytest.LogCaptureFixture, reason: str, host: str | None, line: str
) -> None:
    world.reported, world.placement = CycleFailures(HOSTS), None
    world.decided(run(), stop(reason), run(1))
    found = world.verdict()
    assert (found["class"], found["rank"], found["host"], found["confidence"]) == ("unknown", None, host, 0.0)
    assert caplog.messages == [f"verdict of cycle 0: {line}, confidence 0.00"]


def test_the_ends_of_logs_say_why(world: World, caplog: pytest.LogCaptureFixture) -> None:
    failed = "rank 1 (local rank 1, pid 7) has failed with exit code 1"
    log, gone = world.folder / "stderr.log", world.folder / "gone.log"
    log.write_text("step 1\nKeyError: 'x'\n")
    world.reported = CycleFailures(HOSTS, ((0, failed),))
    world.outputs[1] = WorkerOutput(b"", (str(log), str(gone)))
    world.decided(run(), stop(f"n0: {failed}"), run(1))
    assert (world.verdict()["error_type"], world.verdict()["rank"]) == ("KeyError", 1)
    assert caplog.messages[0].endswith(f"; see {log}:2")


def test_the_end_of_a_long_log_has_no_numbers_of_lines(world: World, caplog: pytest.LogCaptureFixture) -> None:
    log = world.folder / "stderr.log"
    log.write_text("step 1\n" * 100_000 + "KeyError: 'x'\n")
    world.reported, world.outputs[1] = CycleFailures(HOSTS, ((0, "rank 1"),)), WorkerOutput(b"", (str(log),))
    world.decided(run(), stop("n0: rank 1"), run(1))
    evidence = world.verdict()["evidence"]
    assert isinstance(evidence, list)
    assert evidence[0]["file"] == f"the end of {log}"
    assert "see" not in caplog.text


@pytest.mark.parametrize("is_written", [True, False])
def test_the_log_of_all_workers_counts_and_so_does_what_is_not_written_yet(world: World, is_written: bool) -> None:
    failed = "rank 3 (local rank 1, pid 7) has failed with exit code 1"
    log = world.folder / "train_cycle0.log"
    log.write_text("0: step 1\n3: torch.cuda.OutOfMemoryError: CUDA out of memory\n" if is_written else "0: step 1\n")
    world.path, world.reported = str(log), CycleFailures(HOSTS, ((4, failed),))
    world.outputs[1] = WorkerOutput(b"step 1\nRuntimeError: Connection closed by peer\n", ())
    world.decided(run(), stop(f"n1: {failed}"), run(1))
    found = world.verdict()
    assert (found["class"], found["rank"]) == (("cuda_out_of_memory" if is_written else "unknown"), 3)
    assert "output of rank 1" in str(found["evidence"])


def test_a_verdict_that_fails_is_a_line_and_not_the_end(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.history, "judged", lambda *_: 1 / 0)
    world.decided(run(), stop(), run(1))
    assert world.events() == []
    error = HelperThreadError("nvrx-verdict", ZeroDivisionError("division by zero"))
    assert caplog.messages == [f"there is no verdict of cycle 0: {error}"]


def test_more_nodes_that_join_are_no_fault(world: World) -> None:
    world.reported = CycleFailures({})
    world.decided(run(), stop("1 more nodes wait to join"), run(1))
    assert world.events() == []


def test_logs_that_do_not_answer_hold_up_few_threads(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cycle_verdict, "MAX_THREADS", 2)
    world.path = str(world.folder / "fifo")
    os.mkfifo(world.path)
    for cycle in range(4):
        world.decided(run(cycle))
        world.placement = replace(world.placement, cycle=cycle) if world.placement else None
        world.decided(stop(cycle=cycle))
    world.decided(run(4))
    lines = [f"there is no verdict of cycle {cycle}: those of 2 cycles before it are not made yet" for cycle in (2, 3)]
    assert caplog.messages == lines
    with open(world.path, "wb"):
        assert sorted(event["iteration"] for event in world.events()) == [0, 1]  # type: ignore[type-var]


def test_a_launcher_that_was_sent_a_signal_does_not_wait_long_for_logs(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cycle_verdict, "SIGNALLED_TIMEOUT", 0.0)
    world.path = str(world.folder / "fifo")
    os.mkfifo(world.path)
    world.decided(run(), stop())
    world.stopped()
    world.verdicts.finish()
    assert caplog.messages == ["the verdict of a cycle was not made within 0 s, in which its logs are read"]
    monkeypatch.setattr(cycle_verdict, "SIGNALLED_TIMEOUT", 30.0)
    with open(world.path, "wb"):
        assert len(world.events()) == 1


def test_the_line_of_a_hang_names_the_culprit_of_its_own_cycle(world: World) -> None:
    ended = "rank 1 (local rank 1, pid 7) was ended by SIGKILL, hung: no heartbeat for 45 s (timeout 45 s)"
    world.reported = CycleFailures(HOSTS, ((0, ended),), frozenset(HOSTS))
    hang = HangVerdict(HangOutcome.CULPRITS, (2,), (), 0.6, "rank 2 (n1) stands at train.py:9 in load for 12 s")
    for cycle in (0, 1):
        world.decided(run(cycle))
        world.verdicts.hang_judged(0, hang)
        world.decided(stop(f"n0: {ended}", cycle))
    world.decided(run(2))
    found = {each["iteration"]: each["verdict"] for each in world.events()}
    assert {cycle: each["rank"] for cycle, each in found.items()} == {0: 2, 1: 1}  # type: ignore[index]
    assert found[0]["confidence"] == 0.6  # type: ignore[index]


@pytest.mark.parametrize("how", ["goes on", "went on long ago", "was ended slowly"])
def test_a_hang_that_no_rank_was_ended_for_is_not_what_has_ended_the_cycle(world: World, how: str) -> None:
    ended = "rank 1 (local rank 1, pid 7) exited with code 1"
    if how == "was ended slowly":
        ended = f"{ended}, hung: no heartbeat for 45 s (timeout 45 s)"
    world.reported = CycleFailures(HOSTS, ((0, ended),), frozenset(HOSTS))
    hang = HangVerdict(HangOutcome.CULPRITS, (2,), (), 0.6, "rank 2 (n1) stands at train.py:9 in load for 12 s")
    world.decided(run())
    world.verdicts.hang_judged(0, hang)
    if how == "goes on":
        world.verdicts.recovered()
    world.decided(stop(f"n0: {ended}"), now=0.0 if how == "goes on" else time.monotonic() + 3600.0)
    world.decided(run(1))
    found = world.verdict()
    assert (found["class"], found["rank"]) == (("hang", 2) if how == "was ended slowly" else ("unknown", None))


XID = "NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus."
OF_WORKER = "Out of memory: Killed process 7 (python) total-vm:1kB"
OF_ANOTHER = "Out of memory: Killed process 70 (mysqld) total-vm:1kB"


def reported(*failures: str, kernel: Mapping[str, tuple[str, ...]] | None = None) -> cycle_verdict.CycleEvidence:
    """What is known of a cycle in which workers of n0 have failed."""
    told = tuple(("n0", text) for text in failures)
    return cycle_verdict.CycleEvidence(
        0, time.time(), {0: "n0", 1: "n0", 2: "n1"}, told, {}, "", 0, None, kernel=kernel or {}
    )  # fmt: skip


@pytest.fixture
def kmsg(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The kernel's log of this node, which has records from before the launcher."""
    (log := tmp_path / "kmsg").write_text(f"4,1,1,-;{XID}\n4,2,2,-;{OF_WORKER}\n")
    monkeypatch.setattr(cycle_verdict, "NewRecords", lambda: NewRecords(log))
    world.make()
    return log


def record(log: Path, *texts: str) -> None:
    with log.open("a") as file:
        file.writelines(f"4,3,{number},-;{text}\n" for number, text in enumerate(texts))


@pytest.mark.parametrize(
    "first",
    [
        "n1 is lost: the check has failed with exit code 1: OSError: [Errno 28] No space left on device",
        f"{FAILED.partition(' has')[0]} was ended by SIGABRT: OSError: [Errno 28] No space left on device",
        f"{FAILED.partition(' has')[0]} was ended by SIGABRT: OSError: [Errno 28] tar has failed with exit code 2",
        f"{FAILED}: OSError: [Errno 28] No space left on device, hung: no heartbeat",
        f"{FAILED}: OSError: [Errno 28] No space left on device, CANCELLED",
    ],
    ids=["node", "signal", "signal, with the words of an exit", "hang", "cancelled"],
)
def test_a_first_report_of_anything_but_an_exit_code_stops_nothing(first: str) -> None:
    evidence = reported(first, f"{FAILED}: OSError: [Errno 28] No space left on device")
    assert not cycle_verdict.says_stop_by_reports(evidence, "disk_full")


def test_what_a_rank_fails_with_that_was_ended_as_hung_stops_nothing() -> None:
    """Though its text has the form of what a scheduler records of memory, which goes before what a monitor says."""
    failed = f"{FAILED}: RuntimeError: the cache has exceeded memory limit 8 GiB"
    assert cycle_verdict.says_stop_by_reports(reported(failed), "host_out_of_memory")
    assert not cycle_verdict.says_stop_by_reports(reported(f"{failed}, hung: no heartbeat"), "host_out_of_memory")


def test_no_process_is_the_jobs_where_the_namespace_of_pids_is_not_known(
    world: World, kmsg: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: str) -> str:
        raise OSError

    monkeypatch.setattr("os.readlink", fails)
    world.decided(run())
    world.verdicts.failed(1, ENDED)
    record(kmsg, XID, OF_WORKER)
    assert world.verdicts.records() == (XID,)


@pytest.mark.parametrize("is_initial", [True, False])
def test_of_the_kernels_log_counts_what_is_new_and_about_the_job(
    world: World, kmsg: Path, monkeypatch: pytest.MonkeyPatch, is_initial: bool
) -> None:
    namespace = cycle_verdict.INITIAL_NAMESPACE if is_initial else "pid:[4026532000]"
    monkeypatch.setattr("os.readlink", lambda _: namespace)
    record(kmsg, XID)
    world.decided(run())
    record(kmsg, "link up", XID, OF_ANOTHER, OF_WORKER)
    assert world.verdicts.records() == (XID,), "7 is no process of the job"
    world.verdicts.failed(1, ENDED)
    expected = (XID, OF_WORKER) if is_initial else (XID,)
    assert world.verdicts.records() == expected, "in a container, pids are others"
    record(kmsg, XID)
    world.verdicts.close()
    assert world.verdicts.records() == expected, "the log is closed"


def test_of_an_error_of_a_gpu_the_last_record_counts(world: World, kmsg: Path) -> None:
    """A GPU that is lost has one for each piece of work that it has ended."""
    world.decided(run())
    record(kmsg, XID, *(f"NVRM: Xid (PCI:0000:02:00): 45, pid=7, Ch {channel}" for channel in range(32)))
    assert world.verdicts.records() == (XID, "NVRM: Xid (PCI:0000:02:00): 45, pid=7, Ch 31")


def test_an_xid_of_this_node_makes_the_verdict(world: World, kmsg: Path) -> None:
    world.decided(run())
    record(kmsg, XID)
    world.decided(stop(), run(1))
    found = world.verdict()
    assert (found["class"], found["node_to_exclude"]) == ("gpu_lost", "n0")


def test_an_xid_of_another_node_makes_the_verdict(world: World) -> None:
    """Its workers waited for the ranks of this node, which have failed in consequence."""
    records = {4: (XID,), 5: (f"{XID} of a spare",)}
    world.reported = CycleFailures(HOSTS, ((0, ENDED),), frozenset(HOSTS), records)
    world.decided(run(), stop(), run(1))
    found = world.verdict()
    assert (found["class"], found["host"], found["node_to_exclude"]) == ("gpu_lost", "n1", "n1")
    assert "spare" not in str(found["evidence"])


def test_records_of_several_nodes_exclude_none(world: World, kmsg: Path) -> None:
    world.reported = CycleFailures(HOSTS, ((4, ENDED),), frozenset(HOSTS), {0: (XID,), 4: (XID,)})
    world.decided(run())
    record(kmsg, XID)
    world.decided(stop(f"n1: {ENDED}"), run(1))
    found = world.verdict()
    assert (found["class"], found["host"], found["node_to_exclude"]) == ("gpu_lost", "n1", None)
    assert str(found["sentence"]).endswith("; restart, and check the nodes: the kernels of n0, n1 have such records")


def test_each_cycle_has_the_records_of_its_time(world: World, kmsg: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = list[Mapping[str, tuple[str, ...]]]()
    monkeypatch.setattr(world.verdicts, "_give", lambda evidence: given.append(evidence.kernel))
    for cycle in (0, 1):
        world.verdicts.decided(run(cycle), now=0.0)
        world.placement = replace(world.placement, cycle=cycle) if world.placement else None
        record(kmsg, f"{XID}{cycle}")
        world.verdicts.decided(stop(cycle=cycle), now=0.0)
        world.verdicts.finish()
    assert given == [{"n0": (f"{XID}0",)}, {"n0": (f"{XID}1",)}]


STORE_LOST = "the rendezvous store is lost: n1:29500 refuses connections"


def test_the_first_node_that_is_left_gives_the_verdict_when_the_store_is_lost_with_the_coordinator(
    world: World,
) -> None:
    world.reported = None
    world.decided(run())
    world.verdicts.failed(0, f"{CLOSED}")
    world.verdicts.coordinator_lost(4, STORE_LOST, node=0)
    found = world.verdict()
    assert (found["class"], found["host"], found["rank"]) == ("peer_lost", None, None)
    assert STORE_LOST in str(found["evidence"])


@pytest.mark.parametrize(
    ("coordinator", "node", "is_here"), [(0, 4, True), (4, 4, False), (7, 4, False), (7, 0, True), (-1, 0, False)]
)
def test_one_node_gives_it(world: World, coordinator: int, node: int, is_here: bool) -> None:
    world.reported = None
    world.decided(run())
    world.verdicts.coordinator_lost(coordinator, STORE_LOST, node=node)
    assert len(world.events()) == is_here


def test_the_launcher_with_the_reports_and_one_without_a_cycle_give_none_when_the_store_is_lost(world: World) -> None:
    world.verdicts.coordinator_lost(4, STORE_LOST, node=0)
    world.decided(run())
    world.verdicts.coordinator_lost(4, STORE_LOST, node=0)
    assert world.events() == []


def test_a_fault_that_has_ended_the_cycle_before_the_store_is_lost_is_the_cause(world: World) -> None:
    world.reported = None
    world.decided(run(), stop())
    world.verdicts.coordinator_lost(4, STORE_LOST, node=0)
    assert (world.verdict()["class"], world.verdict()["rank"]) == ("segmentation_fault", 1)
