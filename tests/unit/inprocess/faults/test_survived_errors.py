"""An exception that the job survives is logged with its traceback, once, without the wrapper's own frames."""

import json
import logging
import os
import threading
from datetime import timedelta

import pytest

from nvrx_core.events.log import EventLog
from nvrx_core.inprocess.faults.survived_errors import SurvivedErrors
from nvrx_core.inprocess.faults.user_errors import PACKAGE, user_traceback


@pytest.fixture
def errors(tmp_path):
    events = EventLog(str(tmp_path), 3)
    yield SurvivedErrors(3, events, lambda work: work())
    events.close()


class InjectedError(ValueError):
    pass


def train(message="injected"):
    inner(message)


def inner(message):
    raise InjectedError(message)


def failed(function=train, *arguments):
    with pytest.raises(InjectedError) as found:
        function(*arguments)
    return found.value


def wrapped():
    """A function of the package that runs the user's."""
    space = {"train": train}
    exec(compile("def run():\n    train()", PACKAGE + "inprocess/wrap.py", "exec"), space)
    space["run"]()


def texts(caplog):
    for thread in threading.enumerate():
        if thread.name == "nvrx-traceback":
            thread.join()
    return [record.message for record in caplog.records if record.levelno == logging.ERROR]


def test_the_traceback_has_the_users_frames(errors, caplog, tmp_path):
    errors.survived(failed(), 7)
    (text,) = texts(caplog)
    assert text.startswith("the function failed on initial rank 3 in iteration 7:\nTraceback (most recent call last):")
    assert "    raise InjectedError(message)" in text
    assert text.endswith("InjectedError: injected\n")
    (event,) = map(json.loads, (tmp_path / "events-3.jsonl").read_text().splitlines())
    assert (event["event"], event["iteration"]) == ("exception", 7)
    assert "InjectedError: injected" in event["traceback"]


def test_a_source_that_cannot_be_read_is_not_waited_for(errors, caplog, tmp_path, monkeypatch):
    monkeypatch.setattr("nvrx_core.inprocess.faults.survived_errors.READ_WITHIN", timedelta(seconds=0.05))
    source, space = tmp_path / "lost.py", {"InjectedError": InjectedError}
    os.mkfifo(source)
    exec(compile("def run():\n    raise InjectedError('injected')", source, "exec"), space)
    errors.survived(failed(space["run"]), 0)
    (text,) = texts(caplog)
    assert f'File "{source}", line 2, in run\n' in text
    assert text.endswith("InjectedError: injected\n")
    os.close(os.open(source, os.O_WRONLY))


def test_a_repetition_is_one_line(errors, caplog):
    for message in ("one", "two"):
        errors.survived(failed(train, message), 0)
        texts(caplog)
    errors.survived(failed(inner, "elsewhere"), 2)
    first, second, third = texts(caplog)
    assert second == f"initial rank 3 fails alike, 2 times in a row: {InjectedError.__module__}.InjectedError: two"
    assert "Traceback" in first
    assert "Traceback" in third


def test_the_frames_of_the_wrapper_are_left_out():
    error = failed(wrapped)
    ours = user_traceback(error.__traceback__.tb_next.tb_next)
    assert ours.tb_frame.f_code.co_name == "train"


def test_where_there_are_no_others_they_remain():
    space = {"InjectedError": InjectedError}
    exec(compile("def run():\n    raise InjectedError('ours')", PACKAGE + "x.py", "exec"), space)
    trace = failed(space["run"]).__traceback__.tb_next
    assert user_traceback(trace) is trace
    assert user_traceback(None) is None


def test_where_no_thread_can_be_started_the_lines_are_left_out(errors, caplog, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    error = failed()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    errors.survived(error, 0)
    (text,) = texts(caplog)
    assert "in inner\n  File" not in text
    assert text.endswith("InjectedError: injected\n")
    assert "raise InjectedError" not in text


def test_an_error_without_memory_is_survived(errors, caplog, monkeypatch):
    monkeypatch.setattr("nvrx_core.inprocess.faults.survived_errors.user_traceback", fail_for_memory)
    errors.survived(failed(), 0)
    assert not texts(caplog)


def fail_for_memory(trace):
    raise MemoryError


def test_an_error_whose_traceback_cannot_be_read_is_a_line(errors, caplog, monkeypatch):
    monkeypatch.setattr("nvrx_core.inprocess.faults.survived_errors.user_traceback", fail)
    errors.survived(failed(), 2)
    (text,) = texts(caplog)
    assert text == (
        f"the function failed on initial rank 3 in iteration 2: {InjectedError.__module__}.InjectedError: injected; "
        "its traceback cannot be shown"
    )


def fail(trace):
    raise AttributeError("a property of the user's")
