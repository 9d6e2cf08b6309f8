"""Waiting for descriptors with any numbers."""

import fcntl
import os
import resource
import select
import socket
from contextlib import suppress

import pytest

from nvrx_core.process.waiting import readable, writable

ABOVE_SELECT = 1024


@pytest.fixture
def high_pipe():
    """Both ends of a pipe, with numbers that `select` does not take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * ABOVE_SELECT), hard))
    low = os.pipe()
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, ABOVE_SELECT) for fd in low]
    for fd in low:
        os.close(fd)
    yield high
    for fd in high:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_file_of_any_number_is_waited_for(high_pipe):
    reader, writer = high_pipe
    assert readable([reader], 0) == []
    os.write(writer, b"x")
    assert readable([reader]) == [reader]
    assert readable([reader], -1.0) == [reader]


def test_those_that_are_ready_are_returned_themselves():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"x")
        assert readable([ours, theirs], 0) == [ours]
        ours.close()
        assert readable([theirs]) == [theirs]


def test_a_pipe_that_is_full_takes_nothing(high_pipe):
    _, writer = high_pipe
    assert writable(writer, 0)
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    assert not writable(writer, 0.001)


def test_a_library_that_deletes_poll_is_not_noticed(monkeypatch):
    """As those do that make all waits cooperative."""
    monkeypatch.delattr(select, "poll")
    reader, writer = os.pipe()
    assert writable(writer, 1.0)
    os.close(writer)
    assert readable([reader], 1.0) == [reader]
    os.close(reader)
