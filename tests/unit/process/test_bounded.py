"""Calls that may hang, each in a thread of its own."""

import gc
import threading
import weakref
from datetime import timedelta

import pytest

from nvrx_core.errors import TimeoutError
from nvrx_core.process.bounded import call_all_bounded, call_bounded

AMPLE, TINY = timedelta(seconds=60), timedelta(milliseconds=50)


def fails():
    raise KeyError("injected")


def test_calls_run_at_once_and_their_errors_come_by_name():
    together = threading.Barrier(2)
    errors = call_all_bounded({"one": together.wait, "two": together.wait, "three": fails}, AMPLE)
    assert list(errors) == ["three"]
    assert isinstance(errors["three"], KeyError)


def test_the_bound_is_for_all_calls_together():
    done = threading.Event()
    errors = call_all_bounded({str(number): done.wait for number in range(20)}, TINY)
    done.set()
    assert len(errors) == 20
    assert all(isinstance(error, TimeoutError) and error.what == name for name, error in errors.items())


def test_no_call_is_no_error():
    assert call_all_bounded({}, TINY) == {}


def test_without_a_free_thread_the_calls_run_in_the_caller(monkeypatch):
    def exhausted(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", exhausted)
    seen = []
    errors = call_all_bounded({"first": fails, "second": lambda: seen.append(threading.current_thread())}, TINY)
    assert seen == [threading.main_thread()]
    assert list(errors) == ["first"]


def test_an_error_that_was_handled_is_free():
    class Marked(Exception):
        pass

    def mark():
        raise Marked

    gc.disable()
    try:
        with pytest.raises(Marked) as caught:
            call_bounded(mark, AMPLE, "call")
        reference = weakref.ref(caught.value)
        del caught
        assert reference() is None, "its traceback and a frame keep each other alive"
    finally:
        gc.enable()
