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
from nvrx_launcher.workers.output import Destination, Tee, Tees

TURN = 0.1
"""Seconds for which a loop waits that has nothing to do."""


class Streams:
    """A tee of local rank 0, with what its destinations have received."""

    def __init__(self) -> None:
        self.loop, self._writer = EventLoop(), Writer()
        self.file, self.console = bytearray(), bytearray()
        self.tees = Tees(self.loop, [self._writer.room])
        self.tee = Tee(self._outlet(self.file), Destination(self._outlet(self.console)), b"0:")
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
