"""How the launcher reports a worker that has failed: in a line with the cause, and a traceback unless it is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from nvrx_launcher.workers.group import WorkerError, failure_report
from nvrx_launcher.workers.worker import Failure

TRACE = "Traceback (most recent call last):\n  ...\nTypeError: injected"


def failure(folder: Path, *, written: bool = True, raised: str = "TypeError: injected") -> Failure:
    file = folder / "error.json"
    if written:
        message = {"message": raised, "extraInfo": {"py_callstack": TRACE}}
        file.write_text(json.dumps({"message": message}))
    return Failure(local_rank=1, rank=3, pid=7, code=1, error_file=file)


def report_of(failed: Failure, *, is_shown: bool = False, output: bytes = b"") -> str:
    return failure_report(failed, WorkerError.read(failed.error_file), is_shown=is_shown, output=output)


LINE = "rank 3 (local rank 1, pid 7) has failed with exit code 1"


def test_a_traceback_that_is_shown_nowhere_else_follows_the_line(tmp_path: Path) -> None:
    assert report_of(failure(tmp_path)) == f"{LINE}: TypeError: injected\n{TRACE}"


def test_a_traceback_that_the_worker_has_shown_is_not_repeated(tmp_path: Path) -> None:
    assert report_of(failure(tmp_path), is_shown=True) == f"{LINE}: TypeError: injected"


@pytest.mark.parametrize("is_shown", [False, True])
def test_without_an_error_file_the_line_is_all(tmp_path: Path, is_shown: bool) -> None:
    assert report_of(failure(tmp_path, written=False), is_shown=is_shown) == LINE


def test_without_an_error_file_the_traceback_is_that_of_the_output(tmp_path: Path) -> None:
    printed = TRACE.replace("injected", "printed")
    output = f"step 1\n{printed}\nterminated\n".encode()
    report = report_of(failure(tmp_path, written=False), output=output)
    assert report == f"{LINE}; it printed last: TypeError: printed\n{printed}"
    assert report_of(failure(tmp_path, written=False), output=b"no trace") == LINE
    assert report_of(failure(tmp_path), output=output) == f"{LINE}: TypeError: injected\n{TRACE}"


def test_a_printed_traceback_that_ends_before_its_exception_is_shown(tmp_path: Path) -> None:
    frames = 'Traceback (most recent call last):\n  File "/home/me/train.py", line 7, in <module>\n    train()'
    report = report_of(failure(tmp_path, written=False), output=f"{frames}\n\n".encode())
    assert report.startswith(f"{LINE}; it printed last: ")
    assert report.endswith(f", at /home/me/train.py:7\n{frames}")


@pytest.mark.parametrize("trace", [None, ["a.py"], {"a.py": 1}])
def test_a_traceback_in_the_error_file_that_is_no_text_is_not_shown(tmp_path: Path, trace: object) -> None:
    found = failure(tmp_path)
    raised = {"message": "TypeError: injected", "extraInfo": {"py_callstack": trace}}
    found.error_file.write_text(json.dumps({"message": raised}))
    assert report_of(found) == f"{LINE}: TypeError: injected"


@pytest.mark.parametrize(
    "content", ["", "[]", "null", '{"message": null}', '{"message": {"extraInfo": {}}}', "[" * 200_000]
)
def test_an_error_file_of_another_form_is_as_none(tmp_path: Path, content: str) -> None:
    found = failure(tmp_path)
    found.error_file.write_text(content)
    assert report_of(found) == LINE


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("KeyError: 'x'", f"{LINE}: KeyError: 'x', at /home/me/train.py:7"),
        ("MemoryError: ", f"{LINE}: MemoryError, at /home/me/train.py:7"),
        ("ValueError: one\ntwo", f"{LINE}: ValueError: one, at /home/me/train.py:7\ntwo"),
    ],
)
def test_the_line_has_the_place_in_the_script(tmp_path: Path, message: str, line: str) -> None:
    trace = 'Traceback (most recent call last):\n  File "/home/me/train.py", line 7, in <module>\n'
    found = failure(tmp_path)
    found.error_file.write_text(json.dumps({"message": {"message": message, "extraInfo": {"py_callstack": trace}}}))
    assert report_of(found, is_shown=True) == line


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        ("ModuleNotFoundError: No module named 'mine'", True),
        ("ImportError: cannot import name 'it' from 'mine'", True),
        ("SyntaxError: '(' was never closed (train.py, line 1)", True),
        ("_Error: No module named mine", True),
        ("ValueError: ImportError: of a subprocess", False),
    ],
)
def test_a_script_that_cannot_start_is_known_by_its_exception(tmp_path: Path, raised: str, expected: bool) -> None:
    assert WorkerError.read(failure(tmp_path, raised=raised).error_file).is_start_error == expected
    assert not WorkerError.read(tmp_path / "none").is_start_error


def test_who_imports_nvrx_is_told_its_names(tmp_path: Path) -> None:
    report = report_of(failure(tmp_path, raised="ModuleNotFoundError: No module named 'nvrx'"), is_shown=True)
    assert report == (
        f"{LINE}: ModuleNotFoundError: No module named 'nvrx'; "
        "nvrx is imported as nvrx_core, nvrx_lightning, nvrx_megatron"
    )
