"""Output of workers that goes to a file and to the console: what is read, when, and for how long."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from nvrx_launcher.backlog import Backlog
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.outlet import Outlet, Writer
from nvrx_launcher.workers.output import LineOutlet, Tee, Tees

TURN = 0.1
"""Seconds for which a loop waits that has nothing to do."""


class Streams:
    """A tee of local rank 0, with what its destinations have received."""

    def __init__(self) -> None:
        self.loop, self._writer = EventLoop(), Writer()
        self.file, self.console = bytearray(), bytearray()
        self.tees = Tees(self.loop, [self._writer.room])
        self.file_outlet = self._outlet(self.file)
        self.tee = Tee(self.file_outlet, LineOutlet(self._outlet(self.console)), b"0:")
        self.tees.attach(0, self.tee)

    def _outlet(self, into: bytearray) -> Outlet:
        def sink(data: bytes) -> int:
            into.extend(data)
            return len(data)

        return Outlet(sink, "a destination", self._writer, Backlog(1 << 20))

    def received(self) -> tuple[bytes, bytes]:
        """Return what the file and the console have."""
        assert self._writer.drain(10.0)
        return bytes(self.file), bytes(self.console)

    def close(self) -> None:
        """End the thread, and the loop."""
        self.tees.end()
        self._writer.close(10.0)
        self.loop.close()


@pytest.fixture
def streams() -> Iterator[Streams]:
    with closing(Streams()) as streams:
        yield streams


def test_a_stream_that_its_worker_has_closed_does_not_wake_the_loop(streams: Streams) -> None:
    os.write(streams.tee.writer, b"last words")
    os.close(streams.tee.writer)
    for _ in range(2):
        streams.loop.turn(time.monotonic() + 10.0)
    assert streams.received() == (b"last words", b"0:last words\n")
    deadline = time.monotonic() + TURN
    assert streams.loop.turn(deadline) >= deadline
    streams.tees.close(0)


def test_what_a_worker_has_left_is_read_until_its_end(streams: Streams) -> None:
    os.write(streams.tee.writer, b"one\n")
    streams.tees.close(0, spares_rest=True)
    assert streams.tees.is_any_left
    assert streams.received() == (b"one\n", b"0:one\n")
    os.write(streams.tee.writer, b"two")
    streams.loop.turn(time.monotonic() + 10.0)
    streams.tees.tick(now=streams.tees.deadline)
    assert streams.received() == (b"one\ntwo", b"0:one\n0:two\n")
    os.close(streams.tee.writer)
    streams.loop.turn(time.monotonic() + 10.0)
    assert not streams.tees.is_any_left
    deadline = time.monotonic() + TURN
    assert streams.loop.turn(deadline) >= deadline


@pytest.mark.parametrize("spares_rest", [False, True])
def test_the_streams_of_a_worker_that_has_left_nothing_are_closed_with_it(streams: Streams, spares_rest: bool) -> None:
    os.write(streams.tee.writer, b"one\n")
    os.close(streams.tee.writer)
    streams.tees.close(0, spares_rest=spares_rest)
    assert not streams.tees.is_any_left
    assert streams.received() == (b"one\n", b"0:one\n")


def test_what_is_left_at_the_end_is_closed(streams: Streams) -> None:
    streams.tees.close(0, spares_rest=True)
    os.write(streams.tee.writer, b"one\n")
    streams.tees.close_left()
    assert streams.received() == (b"one\n", b"0:one\n")
    with pytest.raises(BrokenPipeError):
        os.write(streams.tee.writer, b"two\n")
    os.close(streams.tee.writer)


def test_what_prints_without_end_holds_nobody_up(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `yes`, which prints as soon as there is room."""
    chunks = list[bytes]()

    def read(data: bytes) -> None:
        chunks.append(data)
        if len(chunks) < 1_000:
            os.write(streams.tee.writer, data)

    monkeypatch.setattr(streams.file_outlet, "write", read)
    os.write(streams.tee.writer, b"y\n")
    streams.tees.close(0, spares_rest=True)
    streams.tees.close_left()
    assert len(chunks) < 10
    os.close(streams.tee.writer)
