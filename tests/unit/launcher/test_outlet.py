"""Destinations of output that fail or stall: what is lost is said, and nobody waits for it."""

from __future__ import annotations

import errno
import io
import os
import select
from collections.abc import Iterator

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
