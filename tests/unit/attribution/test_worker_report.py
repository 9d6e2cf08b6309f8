"""The report on a worker that has ended: what is written of it is what is read."""

from __future__ import annotations

from pathlib import Path

import pytest
from nvrx_launcher.workers.group import WorkerError, failure_report
from nvrx_launcher.workers.worker import Failure

from nvrx_core.attribution.worker_report import HUNG, WorkerReport

WHO = "rank 3 (local rank 1, pid 4720)"
TRACE = b"Traceback (most recent call last):\n  File \"a.py\", line 7, in <module>\nKeyError: 'x'\n"


@pytest.mark.parametrize(
    ("code", "output", "hung", "expected"),
    [
        (1, b"", "", WorkerReport(3, f"{WHO} has failed with exit code 1", 1, "", False, "")),
        (-11, b"", "", WorkerReport(3, f"{WHO} was ended by SIGSEGV", None, "", False, "")),
        (-42, b"", "", WorkerReport(3, f"{WHO} was ended by SIGRTMIN+8", None, "", False, "")),
        (
            1, TRACE, "no heartbeat",
            WorkerReport(
                3, f"{WHO} has failed with exit code 1", 1, "KeyError: 'x', at a.py:7", True, f"{HUNG}no heartbeat"
            ),
        ),
        (
            -9, b"", "no heartbeat",
            WorkerReport(
                3, f"{WHO} was ended by SIGKILL, and the kernel's OOM killer was active in its cgroup", None, "",
                False, f"{HUNG}no heartbeat",
            ),
        ),
    ],
)  # fmt: skip
def test_what_a_launcher_writes_is_read(
    tmp_path: Path, code: int, output: bytes, hung: str, expected: WorkerReport
) -> None:
    failure = Failure(1, 3, 4720, code, tmp_path / "none")
    written = failure_report(failure, WorkerError(), out_of_memory=True, output=output).partition("\n")[0]
    assert WorkerReport.parse(f"{written}{HUNG}{hung}" if hung else written) == expected


def test_the_exception_of_an_error_file_is_the_workers_own() -> None:
    found = WorkerReport.parse(f"{WHO} has failed with exit code 1: KeyError: 'x', at a.py:7")
    assert found == WorkerReport(3, f"{WHO} has failed with exit code 1", 1, "KeyError: 'x', at a.py:7", False, "")


@pytest.mark.parametrize("text", ["", "node 1 has left", f"{WHO} has exited with code 0", f"the {WHO} was ended by x"])
def test_another_line_is_no_report(text: str) -> None:
    assert WorkerReport.parse(text) is None
