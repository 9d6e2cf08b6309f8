"""Destinations of output that fail or stall: what is lost is said, and nobody waits for it."""

from __future__ import annotations

import errno
import io
import os
import select
import threading
from collections.abc import Callable, Iterator

import pytest
from nvrx_launcher.backlog import Backlog
from nvrx_launcher.outlet import Outlet, Sink, Writer, to_stream

WITHIN = 10.0
"""Seconds for what should happen at once."""
LIMIT = 100
"""Bytes that may wait for an outlet."""


@pytest.fixture
def writer() -> Iterator[Writer]:
    writer = Writer()
    yield writer
    writer.close(WITHIN)


def outlet_of(writer: Writer, sink: Sink) -> Outlet:
    return Outlet(sink, "the file", writer, Backlog(LIMIT))


def test_a_stream_that_was_closed_loses_output_and_nothing_else(
    writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    """As that of a test or of a notebook, whose stream was replaced when the workers were started."""
    stream = io.BytesIO()
    outlet = outlet_of(writer, to_stream(stream))
    stream.close()
    outlet.write(b"late")
    assert writer.drain(WITHIN)
    assert "output of workers is lost: the file: " in caplog.text


def test_a_destination_that_refuses_output_has_room_again(writer: Writer) -> None:
    """So that what waits to be read for it is read at once."""

    def sink(data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    outlet = outlet_of(writer, sink)
    outlet.write(b"x" * LIMIT)
    assert select.select([writer.room], [], [], WITHIN)[0]


def test_a_file_whose_close_fails_loses_output_and_nothing_else(
    writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    """As over NFS, which reports a quota that is used up when the file is closed."""

    def release() -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    outlet = Outlet(len, "the file", writer, Backlog(LIMIT), release=release)
    outlet.write(b"all")
    outlet.close()
    assert writer.drain(WITHIN)
    assert "output of workers is lost: the file: " in caplog.text


@pytest.fixture
def answers() -> Iterator[threading.Event]:
    """Set when a destination that takes nothing is to answer."""
    event = threading.Event()
    yield event
    event.set()


def ends(call: Callable[[], object]) -> bool:
    """Whether a call returns in time."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(WITHIN)
    return not thread.is_alive()


def test_what_a_destination_has_not_taken_at_the_end_is_said(
    answers: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    """And what others have not, that wait behind it."""
    writer, called = Writer(), threading.Event()

    def stalls(data: bytes) -> int:
        called.set()
        answers.wait()
        return len(data)

    first, second = outlet_of(writer, stalls), Outlet(len, "the other file", writer, Backlog(LIMIT))
    first.write(b"x" * 50)
    assert called.wait(WITHIN)
    second.write(b"y" * 20)
    first.close()
    second.close()
    assert ends(lambda: writer.close(0.1) or writer.say_lost())
    assert "50 bytes of output were lost: the file" in caplog.messages
    assert "20 bytes of output were lost: the other file" in caplog.messages
    answers.set()
    os.close(writer.room)


def test_a_line_that_comes_while_a_writer_is_closed_does_not_hold_it_up(
    answers: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer()
    wait_for = writer.changed.wait_for

    def stalls(data: bytes) -> int:
        if data != b"early":
            answers.wait()
        return len(data)

    def comes_late(predicate: Callable[[], bool], within: float) -> bool:
        found = wait_for(predicate, within)
        outlet.write(b"late")
        return found

    outlet = outlet_of(writer, stalls)
    outlet.write(b"early")
    monkeypatch.setattr(writer.changed, "wait_for", comes_late)
    closed = list[bool]()
    assert ends(lambda: closed.append(writer.close(0.2)))
    assert closed == [False]
    answers.set()
    os.close(writer.room)
