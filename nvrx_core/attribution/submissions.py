"""The logs that were submitted to the attribution service, and what is known of each. Pure.

One log is analysed at a time. A log that is submitted again is analysed again if it has changed since: a cycle's log
grows for a moment after the cycle has ended. Results are kept for the `KEPT` logs that were submitted last.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from nvrx_core.attribution.verdict import Action, Verdict

__all__ = ["AnalysisStatus", "Stamp", "Submission", "Submissions", "result_of"]

Stamp = tuple[int, int]
"""Size and time of the last change of a file."""
KEPT: Final = 1024
WAITING: Final = 64
"""Logs that may wait to be analysed."""
_RECOMMENDED: Final = {
    Action.RESTART: "RESTART", Action.EXCLUDE_NODE: "EXCLUDE_NODE", Action.STOP: "STOP", Action.NONE: "CONTINUE",
}  # fmt: skip


class AnalysisStatus(enum.Enum):
    """How far the analysis of a log is."""

    QUEUED = "queued"
    RUNNING = "running"
    EXPLAINING = "explaining"
    """The verdict is there, and a model is asked."""
    COMPLETED = "completed"
    FAILED = "failed"


@dataclass(frozen=True)
class Submission:
    """A log to analyse.

    Attributes:
        path: its file.
        user, job_id: whose job has written it, None for unknown.
        stamp: of the file, when it was submitted.
        offset: bytes at its beginning that are of another run.
    """

    path: str
    user: str | None
    job_id: str | None
    stamp: Stamp
    offset: int = 0

    @property
    def part(self) -> tuple[Stamp, int]:
        """What of the file is to be analysed."""
        return self.stamp, self.offset

    @property
    def metadata(self) -> dict[str, object]:
        """The path, and what is known of the job."""
        known = {"log_path": self.path, "user": self.user, "job_id": self.job_id}
        return {name: each for name, each in known.items() if each is not None}


@dataclass
class _Known:
    submission: Submission
    status: AnalysisStatus = AnalysisStatus.QUEUED
    result: Mapping[str, object] | None = None
    error: str = ""
    is_outdated: bool = False


class Submissions:
    """What the service knows."""

    def __init__(self) -> None:
        self._known = OrderedDict[str, _Known]()

    def submit(self, submission: Submission) -> bool:
        """Queue a log, unless it is known as it is; return whether there was room."""
        known = self._known.get(submission.path)
        is_same = known is not None and known.submission.part == submission.part
        if known is not None and is_same and known.status is not AnalysisStatus.FAILED:
            return True
        if known is not None and known.status in (AnalysisStatus.RUNNING, AnalysisStatus.EXPLAINING):
            known.submission, known.is_outdated = submission, True
            return True
        if sum(each.status is AnalysisStatus.QUEUED for each in self._known.values()) >= WAITING:
            return False
        self._known[submission.path] = _Known(submission)
        self._known.move_to_end(submission.path)
        done = (
            path
            for path, each in self._known.items()
            if each.status in (AnalysisStatus.COMPLETED, AnalysisStatus.FAILED)
        )
        if len(self._known) > KEPT and (oldest := next(done, None)) is not None:
            del self._known[oldest]
        return True

    def take(self) -> Submission | None:
        """Return the log to analyse next; None: none waits."""
        for known in self._known.values():
            if known.status is AnalysisStatus.QUEUED:
                known.status = AnalysisStatus.RUNNING
                return known.submission
        return None

    def explaining(self, path: str, result: Mapping[str, object]) -> None:
        """Record the result of the log that was taken, as far as it is known without a model."""
        known = self._known[path]
        known.result, known.status = result, AnalysisStatus.EXPLAINING

    def completed(self, path: str, result: Mapping[str, object]) -> None:
        """Record the result of the log that was taken."""
        known = self._known[path]
        known.result, known.error = result, ""
        self._ended(known, AnalysisStatus.COMPLETED)

    def failed(self, path: str, error: str) -> None:
        """Record that the log that was taken cannot be analysed."""
        known = self._known[path]
        known.error = error
        self._ended(known, AnalysisStatus.FAILED)

    def answer(self, path: str) -> dict[str, object] | None:
        """Return what `GET /logs` says of a log; None: it was not submitted."""
        known = self._known.get(path)
        if known is None:
            return None
        said: dict[str, object] = {**known.submission.metadata, "status": known.status.value}
        if known.status is AnalysisStatus.FAILED:
            said["error"] = known.error
        if known.status in (AnalysisStatus.COMPLETED, AnalysisStatus.EXPLAINING) and known.result is not None:
            said |= known.result
        return said

    def _ended(self, known: _Known, status: AnalysisStatus) -> None:
        known.status, known.is_outdated = AnalysisStatus.QUEUED if known.is_outdated else status, False


def result_of(verdict: Verdict, explanation: Mapping[str, object] | None, explanation_error: str) -> dict[str, object]:
    """Return the result of an analysis.

    What is recommended follows from the verdict alone: no text that a model writes changes it.

    Args:
        verdict: of the log.
        explanation: what a model adds; None for nothing.
        explanation_error: why there is none, "" where none was asked for.
    """
    result: dict[str, object] = {
        "verdict": verdict.as_json(),
        "recommendation": {"action": _RECOMMENDED[verdict.action], "reason": verdict.sentence},
        "explanation": explanation,
    }
    if explanation_error:
        result["explanation_error"] = explanation_error
    return result
