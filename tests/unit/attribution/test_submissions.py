"""Which log the attribution service analyses next, and what it says of each."""

from __future__ import annotations

import pytest

from nvrx_core.attribution import submissions
from nvrx_core.attribution.submissions import Stamp, Submission, Submissions, result_of
from nvrx_core.attribution.verdict import Action, Evidence, Verdict

VERDICT = Verdict(
    "disk_full", "OSError", 2, "cn7", Action.STOP, None, 0.9, (Evidence("a.log", 3, "full"),), "it is full"
)
RESULT = {"verdict": "of it"}


def a(path: str, stamp: Stamp = (1, 1)) -> Submission:
    return Submission(path, "mia", None, stamp)


def status(known: Submissions, path: str) -> object:
    answer = known.answer(path)
    return None if answer is None else answer["status"]


def test_logs_are_analysed_in_their_order() -> None:
    known = Submissions()
    assert known.take() is None
    assert known.submit(a("x"))
    assert known.submit(a("y"))
    assert known.take() == a("x")
    assert (status(known, "x"), status(known, "y"), status(known, "z")) == ("running", "queued", None)
    known.completed("x", RESULT)
    assert known.answer("x") == {"log_path": "x", "user": "mia", "status": "completed", "verdict": "of it"}
    assert known.take() == a("y")
    known.failed("y", "it is gone")
    assert known.answer("y") == {"log_path": "y", "user": "mia", "status": "failed", "error": "it is gone"}
    assert known.take() is None


def test_a_log_is_analysed_again_only_if_it_has_changed_or_has_failed() -> None:
    known = Submissions()
    known.submit(a("x"))
    known.submit(a("x"))
    known.take()
    known.completed("x", RESULT)
    known.submit(a("x"))
    assert known.take() is None
    known.submit(a("x", (2, 2)))
    assert status(known, "x") == "queued", "the old result is no result of the log as it is"
    assert known.take() == a("x", (2, 2))
    known.failed("x", "why")
    known.submit(a("x", (2, 2)))
    assert known.take() == a("x", (2, 2))


def test_a_log_that_changes_meanwhile_is_analysed_once_more() -> None:
    known = Submissions()
    known.submit(a("x"))
    known.take()
    known.submit(a("x", (2, 2)))
    assert status(known, "x") == "running"
    known.completed("x", RESULT)
    assert status(known, "x") == "queued"
    assert known.take() == a("x", (2, 2))
    known.completed("x", RESULT)
    assert status(known, "x") == "completed"


def test_a_verdict_is_there_while_a_model_is_asked() -> None:
    known = Submissions()
    known.submit(a("x"))
    known.take()
    known.explaining("x", RESULT)
    assert known.answer("x") == {"log_path": "x", "user": "mia", "status": "explaining", "verdict": "of it"}
    known.submit(a("x", (2, 2)))
    assert status(known, "x") == "explaining"
    known.completed("x", RESULT)
    assert known.take() == a("x", (2, 2))


def test_what_waits_and_what_is_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submissions, "KEPT", 3)
    monkeypatch.setattr(submissions, "WAITING", 3)
    known = Submissions()
    assert [known.submit(a(each)) for each in "wxyz"] == [True, True, True, False]
    known.take()
    known.completed("w", RESULT)
    assert known.submit(a("z"))
    assert [status(known, each) for each in "wxyz"] == [None, "queued", "queued", "queued"]
    known.take()
    assert known.submit(a("v")), "nothing is forgotten that is not done"
    assert status(known, "x") == "running"


@pytest.mark.parametrize(
    ("action", "said"),
    [("restart", "RESTART"), ("exclude_node", "EXCLUDE_NODE"), ("stop", "STOP"), ("none", "CONTINUE")],
)
def test_the_recommendation_follows_from_the_verdict(action: str, said: str) -> None:
    verdict = Verdict("x", None, None, None, Action(action), None, 0.5, (), "why")
    result = result_of(verdict, {"text": "restart it"}, "")
    assert result["recommendation"] == {"action": said, "reason": "why"}
    assert result["explanation"] == {"text": "restart it"}
    assert "explanation_error" not in result
    assert result_of(verdict, None, "it is down")["explanation_error"] == "it is down"


def test_a_verdict_is_read_as_it_was_written() -> None:
    assert Verdict.from_json(VERDICT.as_json()) == VERDICT
    nobody = Verdict("clean", None, None, None, Action.NONE, None, 1.0, (), "nothing failed")
    assert Verdict.from_json(nobody.as_json()) == nobody


@pytest.mark.parametrize(
    "wrong",
    [
        {"class": 3}, {"rank": -1}, {"confidence": "high"}, {"evidence": [{}]}, {"evidence": 3},
        {"host": 7}, {"sentence": None},
    ],
)  # fmt: skip
def test_a_malformed_verdict_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"not a|no verdict"):
        Verdict.from_json({**VERDICT.as_json(), **wrong})
