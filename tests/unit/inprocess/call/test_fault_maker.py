"""An exception as a record: whatever the user's exception does, and without a look at any file."""

import errno
import linecache
import traceback

import pytest

from nvrx_core.fault.exceptions import text_of
from nvrx_core.inprocess.call.own_faults import FaultMaker, clear_frames, release_frames


def failed(error):
    try:
        raise error
    except BaseException as caught:  # boundary: it is what the test is about
        return caught


class InjectedError(Exception):
    def __init__(self, text):
        self.text = text

    def __str__(self):
        if isinstance(self.text, BaseException):
            raise self.text
        return self.text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("words", "words"),
        (LookupError(), "(no text: its __str__ raised LookupError)"),
        (SystemExit(3), "(no text: its __str__ raised SystemExit)"),
        (7, "(no text: its __str__ raised TypeError)"),
    ],
)
def test_the_text_of_an_exception_may_fail(text, told):
    name = f"{__name__}.InjectedError"
    assert text_of(InjectedError(text)) == f"{name}: {told}"
    fault = FaultMaker(3).of(failed(InjectedError(text)), 1, 0.5)
    assert (fault.message, fault.error_type) == (f"{name}: {told}", name)


def test_no_file_is_read_for_the_origin(monkeypatch):
    error = failed(ValueError())
    (frame,) = traceback.extract_tb(error.__traceback__, limit=-1)
    for name in ("checkcache", "getline", "getlines", "lazycache", "updatecache"):
        monkeypatch.setattr(linecache, name, pytest.fail)
    assert FaultMaker(3).of(error, 1, 0.5).origin == f"{frame.filename}:{frame.lineno}"


def fails():
    local = [1]
    raise ValueError(local)


@pytest.mark.parametrize("release", [clear_frames, release_frames])
def test_what_the_caller_of_the_function_handles_stays_as_it_is(release):
    try:
        fails()
    except ValueError as error:
        outside = error
        release(failed(KeyError()))
    assert outside.__traceback__.tb_next.tb_frame.f_locals == {"local": [1]}


def test_the_frames_of_all_that_the_function_has_raised_are_released():
    try:
        fails()
    except ValueError as first:
        error = first
    frame = error.__traceback__.tb_next.tb_frame
    clear_frames(error)
    assert frame.f_locals == {}
    release_frames(error)
    assert error.__traceback__ is None


@pytest.mark.parametrize(
    ("error", "category"),
    [
        (MemoryError(), "out of memory"),
        (OSError(errno.ENOMEM, "injected"), "out of memory"),
        (type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory"), "out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"), "out of memory"),
        (OSError(errno.ENOSPC, "injected"), ""),
        (InjectedError(LookupError()), ""),
    ],
)
def test_what_ran_out_of_memory_is_known(error, category):
    assert FaultMaker(3).of(error, 1, 0.5).category == category
