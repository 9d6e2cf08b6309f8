"""Tracebacks, launchers' reports, and failures that a job has survived."""

from __future__ import annotations

import json

import pytest

from nvrx_core.attribution import classification
from nvrx_core.attribution.cascade import decide
from nvrx_core.attribution.classification import MAX_FINDINGS, MAX_STEPS, Classifier
from nvrx_core.attribution.origin import parse
from nvrx_core.attribution.rules import CLASSES, Kind
from nvrx_core.attribution.verdict import Action
from tests.attribution.cases import verdict_of_text

TRACEBACK = "Traceback (most recent call last):\n  File 'a', line 1\n    raise CUDA out of memory\nKeyError: 1\n"
STEPS = "step 5 loss 1\nstep 6 loss 1\nstep 7 loss 1\n"


def _fed(text: str, file: str = "run.log") -> Classifier:
    classifier = Classifier()
    for number, raw in enumerate(text.splitlines(), 1):
        for line in parse(file, number, raw):
            classifier.feed(line)
    return classifier


def test_the_frames_of_a_traceback_say_nothing() -> None:
    (finding,) = _fed(TRACEBACK).findings()
    assert (finding.failure, finding.error_type, finding.line.number) == ("user_exception", "KeyError", 4)


def test_a_traceback_that_ends_without_an_exception_says_that_something_has_failed() -> None:
    text = "Traceback (most recent call last):\n  File 'a'\nnot an exception\n"
    (finding,) = _fed(text).findings()
    assert (finding.failure, finding.kind, finding.line.number) == ("unknown", Kind.SYMPTOM, 1)
    assert not list(_fed(f"WARNING it is tried again\n{text}").findings())


def test_a_traceback_that_never_ends_is_given_up() -> None:
    endless = "Traceback (most recent call last):\n" + "  frame\n" * 500 + "KeyError: 1\n"
    assert [each.failure for each in _fed(endless).findings()] == ["unknown", "user_exception"]


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        (f"2024-01-01 00:00:01 ERROR upload failed\n{TRACEBACK}{STEPS}", "clean"),
        (f"2024-01-01 00:00:01 ERROR upload failed\n{TRACEBACK}step 5 loss 1\n", "user_exception"),
        (f"{TRACEBACK}{STEPS}", "user_exception"),
        (f"2024-01-01 00:00:01 INFO step 4 loss 1\n{TRACEBACK}{STEPS}", "user_exception"),
        (f"{TRACEBACK}training finished after 9 steps\n", "clean"),
        (f"{TRACEBACK}Killed\ntraining finished after 9 steps\n", "operator_kill"),
        (f"{TRACEBACK}INFO [ft_launcher] cycle 1: 1 nodes\ntraining finished after 9 steps\n", "user_exception"),
        (
            "restart 1 in 4.1 ms: SOFT_TIMEOUT on rank 2 (initial rank 2, vm pid 9): x\ntraining finished\n",
            "hang",
        ),
        ("ERROR job: connection reset by peer\nERROR job: KeyError: 1\n", "user_exception"),
    ],
)
def test_a_failure_that_the_job_has_survived_is_none(text: str, failure: str) -> None:
    assert verdict_of_text(text).failure == failure


HANG = "rank 1 (n0) stands at train.py:9 in load for 12 s, waiting for a lock"
GOES_ON = "rank 1 goes on, and is not ended as hung"


@pytest.mark.parametrize(
    ("logs", "failure", "rank"),
    [
        ([f"hang: {HANG}"], "hang", 1),
        ([f"hang: {HANG}\n{GOES_ON}\nKeyError: 1"], "user_exception", None),
        ([f"hang: {HANG}\n{GOES_ON}", f"hang: {HANG}\nKeyError: 1"], "user_exception", None),
        ([f"hang: {HANG}\nKeyError: 1", f"hang: {HANG}\nrank 0 has exited in order, and is not ended"],
         "user_exception", None),
        (["hang: all ranks are alike, none is to blame\n" + GOES_ON], "clean", None),
        ([f"rank 1 (pid 7) is hung: no heartbeat\n{GOES_ON}\nhang: {HANG}"], "hang", 1),
        ([f"rank 2 (pid 7) is hung: no heartbeat for 12 s\n{GOES_ON}"], "hang", 2),
        (["rank 1 (pid 7) is hung: x\nrank 1 (pid 7) has gone on, and is not ended: x"], "clean", None),
    ],
)  # fmt: skip
def test_a_rank_that_has_gone_on_was_not_hung(logs: list[str], failure: str, rank: int | None) -> None:
    classifier = Classifier()
    for file, text in enumerate(logs):
        for number, raw in enumerate(text.splitlines(), 1):
            for line in parse(f"launcher-{file}.log", number, raw):
                classifier.feed(line)
    verdict = decide(classifier.findings(), classifier.seen)
    assert (verdict.failure, verdict.rank) == (failure, rank)


@pytest.mark.parametrize(
    ("text", "failure", "rank"),
    [
        ("  exitcode  : -11 (pid: 9)", "segmentation_fault", None),
        ("  rank      : 3 (local_rank: 1)\n  exitcode  : -11", "segmentation_fault", 3),
        (
            "[rank3]: x\n  rank      : 3 (local_rank: 1)\n  host      : n2\n  exitcode  : 137 (pid: 9)",
            "operator_kill",
            3,
        ),
        ("node2: [rank3]: x\n  rank      : 3 (local_rank: 1)\n  exitcode  : -9 (pid: 9)", "operator_kill", 3),
        ("  rank      : 3 (local_rank: 1)\n  host      : n2\n  exitcode  : -15 (pid: 9)", "clean", None),
        ("  rank      : 3 (local_rank: 1)\n  exitcode  : many", "clean", None),
        ("Other Failures:\n  rank      : 1 (local_rank: 1)\n  exitcode  : -6", "unknown", 1),
        ("process exits with return code = 0", "clean", None),
        ("worker 3 exited with code -15", "clean", None),
        ("worker 3 exited with code -9", "operator_kill", 3),
        ("rank 2 (local rank 2, pid 5) was ended by SIGTERM", "operator_kill", 2),
        ("mpirun noticed that process rank 1 with PID 5 on node n2 exited on signal 6 (Aborted).", "unknown", 1),
        ("EXCEPTION on rank 2 (initial rank 3, n1 pid 9): no colon", "user_exception", 2),
        ("EXCEPTION (x) on rank 2 (initial rank 3, n1 pid 9): OSError: [Errno 28] x", "disk_full", 2),
        ("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: x", "unknown", None),
    ],
)
def test_reports_of_launchers(text: str, failure: str, rank: int | None) -> None:
    verdict = verdict_of_text(text)
    assert (verdict.failure, verdict.rank) == (failure, rank)


def test_the_findings_of_a_rank_are_bounded() -> None:
    assert len(list(_fed("KeyError: 1\n" * 200).findings())) == MAX_FINDINGS


def test_what_stays_of_an_earlier_cycle_stays_once() -> None:
    text = "INFO [ft_launcher] cycle 0: 1 nodes\nloss: nan\nINFO [ft_launcher] cycle 1: 1 nodes\n"
    text += "restart 1 in 4 ms: SOFT_TIMEOUT on rank 2 (initial rank 2, vm pid 9): x\n"
    text += "".join(f"step {step} loss 1\n" for step in range(60))
    assert [each.failure for each in _fed(text).findings()] == ["nan_loss", "hang"]


def test_ranks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classification, "MAX_STREAMS", 1)
    classifier = _fed("[rank0]: x\n[rank1]: KeyError: 1\n")
    assert not list(classifier.findings())
    assert set(classifier.seen.ranks) == {0}


def test_the_kinds_of_lines_that_report_steps_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classification, "MAX_KINDS_OF_STEPS", 1)
    of_second_kind = "".join(f"b batch {number}\n" for number in range(40))
    assert list(_fed(f"a batch 1\nb batch 1\n{TRACEBACK}{of_second_kind}").findings())
    assert not list(_fed(f"b batch 1\na batch 1\n{TRACEBACK}{of_second_kind}").findings())


def test_the_steps_of_a_host_are_bounded() -> None:
    text = "".join(f"2024-01-01 00:00:01 n1 [rank0] step {step}\n" for step in range(200))
    assert len(_fed(text).seen.steps["n1"]) == MAX_STEPS


@pytest.mark.parametrize("name", [each.name for each in CLASSES])
def test_a_verdict_that_a_launcher_has_given_is_no_failure(name: str) -> None:
    """It may stand among the lines of the next cycle."""
    line = f"WARNING [ft_launcher n0 job] verdict of cycle 0: {name}, rank 1 on n1; action restart, confidence 0.88"
    event = json.dumps({
        "event": "cycle_verdict", "host": "n0", "initial_rank": -1, "iteration": 0, "sentence": "CUDA error: x",
        "verdict": {"class": name, "rank": 1, "sentence": "rank 1 on n1 raised an exception: CUDA error: x"},
    })  # fmt: skip
    assert not list(_fed(f"{line}\n{event}").findings())


@pytest.mark.parametrize("error", ["SyntaxError: invalid syntax", "IndentationError: unexpected indent"])
def test_a_script_that_does_not_compile_is_corrected_before_it_is_started_again(error: str) -> None:
    verdict = verdict_of_text(f'  File "train.py", line 3\n    x = (\n{error}\n')
    assert (verdict.failure, verdict.action) == ("user_exception", Action.STOP)
