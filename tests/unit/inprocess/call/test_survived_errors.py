"""An exception that the job survives is logged with its traceback, once, without the wrapper's own frames."""

import json
import logging
import os
import threading
from contextlib import closing
from datetime import timedelta

import pytest

from nvrx_core.events.log import EventLog
from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.call.own_faults import FaultMaker, SurvivedErrors
from nvrx_core.inprocess.call.user_errors import PACKAGE, user_traceback


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


def survive(errors, error, iteration, cause=None):
    """Survive an error in a round that names this cause."""
    errors.note(error, iteration)
    errors.log_noted(cause)


def fault_of(error, initial_rank):
    made = FaultMaker(initial_rank).of(error, initial_rank, 0.0)
    return FaultRecord.from_data(made.to_data())


def texts(caplog):
    for thread in threading.enumerate():
        if thread.name == "nvrx-traceback":
            thread.join()
    return [record.message for record in caplog.records if record.levelno == logging.ERROR]


def test_the_traceback_has_the_users_frames(errors, caplog, tmp_path):
    survive(errors, failed(), 7)
    (text,) = texts(caplog)
    assert text.startswith("the function failed on initial rank 3 in iteration 7:\nTraceback (most recent call last):")
    assert "    raise InjectedError(message)" in text
    assert text.endswith("InjectedError: injected")
    (event,) = map(json.loads, (tmp_path / "events-3.jsonl").read_text().splitlines())
    assert (event["event"], event["iteration"]) == ("exception", 7)
    assert "InjectedError: injected" in event["traceback"]


def test_a_source_that_cannot_be_read_is_not_waited_for(errors, caplog, tmp_path, monkeypatch):
    monkeypatch.setattr("nvrx_core.inprocess.call.own_faults.READ_WITHIN", timedelta(seconds=0.05))
    source, space = tmp_path / "lost.py", {"InjectedError": InjectedError}
    os.mkfifo(source)
    exec(compile("def run():\n    raise InjectedError('injected')", source, "exec"), space)
    survive(errors, failed(space["run"]), 0)
    (text,) = texts(caplog)
    assert f'File "{source}", line 2, in run\n' in text
    assert text.endswith("InjectedError: injected")
    os.close(os.open(source, os.O_WRONLY))


@pytest.fixture
def slow_log():
    """The log of the wrapper takes no line before this is set."""
    ready, logger = threading.Event(), logging.getLogger("nvrx_core.inprocess")

    def wait(record):
        return ready.wait(20)

    logger.addFilter(wait)
    yield ready
    ready.set()
    logger.removeFilter(wait)


def test_the_end_of_a_call_waits_until_it_is_logged(errors, caplog, slow_log):
    survive(errors, failed(), 7)
    threading.Timer(0.1, slow_log.set).start()
    errors.close()
    assert [record.message for record in caplog.records if "the function failed" in record.message]


def test_the_end_of_a_call_does_not_wait_for_a_log_that_stands_still(errors, caplog, slow_log, monkeypatch):
    monkeypatch.setattr("nvrx_core.inprocess.call.own_faults.WRITTEN_WITHIN", timedelta(seconds=0.05))
    survive(errors, failed(), 7)
    errors.close()
    assert not caplog.records
    slow_log.set()
    assert len(texts(caplog)) == 1


def test_a_repetition_is_one_line(errors, caplog):
    caplog.set_level(logging.INFO)
    for iteration, message in enumerate(("one", "two")):
        survive(errors, failed(train, message), iteration)
    survive(errors, failed(elsewhere), 2)
    first, second = texts(caplog)
    assert all("Traceback" in text for text in (first, second))
    (told,) = [record.message for record in caplog.records if record.levelno == logging.INFO]
    assert told == f"initial rank 3 fails alike in iteration 1: {InjectedError.__module__}.InjectedError: two"


def test_the_failure_of_a_rank_that_is_not_the_cause_waits_for_the_decision(errors, caplog, tmp_path):
    errors.note(failed(), 0)
    assert texts(caplog) == []
    assert "InjectedError: injected" in (tmp_path / "events-3.jsonl").read_text()
    errors.log_noted(None)
    errors.log_noted(None)
    assert len(texts(caplog)) == 1


def test_ranks_that_fail_alike_are_one_traceback(errors, caplog):
    caplog.set_level(logging.INFO)
    survive(errors, failed(), 0, cause=fault_of(failed(train, "there"), 1))
    assert texts(caplog) == []
    (told,) = [record.message for record in caplog.records]
    assert told.startswith("initial rank 3 failed in iteration 0 as initial rank 1 did: ")
    assert told.endswith("InjectedError: injected")


@pytest.mark.parametrize("failed_too", [True, False])
def test_what_another_rank_has_logged_in_the_iteration_before_is_a_line(errors, caplog, failed_too):
    caplog.set_level(logging.INFO)
    if failed_too:
        errors.note(failed(), 0)
    errors.log_noted(fault_of(failed(train, "there"), 1))
    caplog.clear()
    survive(errors, failed(), 1, cause=fault_of(failed(), 3))
    assert texts(caplog) == []
    (told,) = [record.message for record in caplog.records]
    assert told.startswith("initial rank 3 fails alike in iteration 1: ")


def test_what_another_rank_has_logged_long_ago_is_logged(errors, caplog):
    errors.log_noted(fault_of(failed(), 1))
    errors.log_noted(fault_of(failed(elsewhere), 1))
    survive(errors, failed(), 2, cause=fault_of(failed(), 3))
    (text,) = texts(caplog)
    assert "Traceback" in text


def of_torch(module):
    """Call a function of torch's, in a line of the user's."""
    path, space = f"/venv/lib/python3.11/site-packages/torch/{module}.py", {"error": InjectedError(module)}
    exec(compile("def run():\n    raise error", path, "exec"), space)
    space["run"]()


def test_what_a_library_has_raised_elsewhere_is_another_failure(errors, caplog):
    """Below one line of the user's: an aborted communicator, then an error of CUDA."""
    first, second = failed(of_torch, "c10d"), failed(of_torch, "adam")
    survive(errors, first, 0, cause=fault_of(first, 3))
    survive(errors, second, 1, cause=fault_of(second, 3))
    survive(errors, second, 2, cause=fault_of(second, 3))
    assert sorted(text.rpartition(": ")[2] for text in texts(caplog)) == ["adam", "c10d"], "each in a thread of its own"


@pytest.mark.parametrize(("there", "rank"), [("elsewhere", 1), ("train", 3)])
def test_another_failure_and_the_cause_are_logged(errors, caplog, there, rank):
    other = fault_of(failed(globals()[there]), rank)
    survive(errors, failed(), 0, cause=other)
    (text,) = texts(caplog)
    assert "Traceback" in text


def elsewhere(message="elsewhere"):
    raise InjectedError(message)


@pytest.mark.parametrize("full", [False, True])
def test_the_frames_of_libraries_are_a_line_unless_they_are_wanted(tmp_path, caplog, monkeypatch, full):
    monkeypatch.setenv("NVRX_FULL_TRACEBACK", str(int(full)))
    with closing(EventLog(str(tmp_path), 3)) as events:
        survive(SurvivedErrors(3, events, lambda work: work()), failed(through_a_library), 0)
        (text,) = texts(caplog)
    event = json.loads((tmp_path / "events-3.jsonl").read_text())["traceback"]
    assert ("loading.py" in text) == full
    assert ("[1 frame of lightning]" in text) != full
    assert "loading.py" in event


def through_a_library():
    space = {"train": train}
    path = "/venv/lib/python3.11/site-packages/lightning/loading.py"
    exec(compile("def run():\n    train()", path, "exec"), space)
    space["run"]()


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
    survive(errors, error, 0)
    (text,) = texts(caplog)
    assert "in inner\n  File" not in text
    assert text.endswith("InjectedError: injected")
    assert "raise InjectedError" not in text


def test_an_error_without_memory_is_survived(errors, caplog, monkeypatch):
    monkeypatch.setattr("nvrx_core.inprocess.call.own_faults.user_traceback", fail_for_memory)
    survive(errors, failed(), 0)
    assert not texts(caplog)


def fail_for_memory(trace):
    raise MemoryError


def test_an_error_whose_traceback_cannot_be_read_is_a_line(errors, caplog, monkeypatch):
    monkeypatch.setattr("nvrx_core.inprocess.call.own_faults.user_traceback", fail)
    survive(errors, failed(), 2)
    (text,) = texts(caplog)
    assert text == (
        f"the function failed on initial rank 3 in iteration 2: {InjectedError.__module__}.InjectedError: injected; "
        "its traceback cannot be shown"
    )


def fail(trace):
    raise AttributeError("a property of the user's")
