"""Log lines for a stream that nobody reads: they are lost, counted, and nobody waits for it."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import termios
import tty
from collections.abc import Iterator

import pytest

from nvrx_core.process.unblocked_log import UnblockedHandler


@contextlib.contextmanager
def logger_to(fd: int) -> Iterator[logging.Logger]:
    """A logger that writes to a descriptor."""
    logger, handler = logging.getLogger("lines"), UnblockedHandler(fd)
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)
    yield logger
    logger.handlers.clear()
    handler.close()


def test_lines_that_a_pipe_does_not_take_are_counted() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb", buffering=0) as ours, os.fdopen(writer, "wb") as theirs, logger_to(writer) as log:
        for _ in range(30):
            log.info("x" * 4000)
        assert os.get_blocking(theirs.fileno())
        lines = ours.read(1 << 20).count(b"\n")
        log.info("after it")
        assert (
            ours.read(1 << 20) == f"{30 - lines} lines of this log were lost: nobody has read them\nafter it\n".encode()
        )
        log.info("%d", "no number")
        assert b"TypeError" in ours.read(1 << 20)


def test_a_terminal_whose_output_is_stopped_is_not_waited_for() -> None:
    reader, writer = os.openpty()
    with os.fdopen(reader, "rb", buffering=0) as ours, os.fdopen(writer, "wb", buffering=0), logger_to(writer) as log:
        tty.setraw(writer)
        termios.tcflow(writer, termios.TCOOFF)
        log.info("while it is stopped")
        termios.tcflow(writer, termios.TCOON)
        log.info("after it")
        assert ours.read(1 << 10) == b"1 lines of this log were lost: nobody has read them\nafter it\n"


@pytest.mark.parametrize("is_socket", [True, False])
def test_what_cannot_be_opened_again_is_written_as_it_is(is_socket: bool) -> None:
    ours, theirs = socket.socketpair()
    fd = theirs.fileno() if is_socket else os.memfd_create("log")
    with ours, theirs, logger_to(fd) as log:
        log.info("a line")
        assert (ours.recv(100) if is_socket else os.pread(fd, 100, 0)) == b"a line\n"
    if not is_socket:
        os.close(fd)


def test_a_stream_without_a_reader_costs_lines_only() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb"), logger_to(writer) as log:
        log.info("a line")
