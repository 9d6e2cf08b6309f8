"""Where the wrapper's log lines go while a call lasts: to the streams of the first ancestor that logs, to no file."""

import fcntl
import io
import logging
import os
import sys
import threading
from pathlib import Path

import pytest

from nvrx_core.process import log_handlers
from nvrx_core.process.log_handlers import own_stream_handlers

LINE = logging.getLogger("nvrx_core.inprocess")


@pytest.fixture
def root(monkeypatch):
    """The root logger without the test runner's handlers, and the package's as an application finds it."""
    monkeypatch.setattr(logging.root, "handlers", [])
    package = logging.getLogger("nvrx_core")
    monkeypatch.setattr(package, "handlers", [])
    monkeypatch.setattr(package, "propagate", True)
    return logging.root


class Kept(logging.Handler):
    """A handler that is no stream."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


@pytest.fixture
def file(tmp_path):
    handler = logging.FileHandler(tmp_path / "log")
    yield handler
    handler.close()


def state():
    package = logging.getLogger("nvrx_core")
    return list(package.handlers), package.propagate


def test_lines_go_to_the_streams_of_the_root_and_no_further(root, file):
    stream, other, kept = io.StringIO(), io.StringIO(), Kept()
    root.handlers = [logging.StreamHandler(stream), logging.StreamHandler(other), file, kept]
    with own_stream_handlers():
        LINE.warning("a line")
    assert stream.getvalue() == other.getvalue() == "a line\n"
    assert Path(file.baseFilename).read_text() == ""
    assert kept.lines == []


def test_the_first_ancestor_that_has_handlers_is_the_one(root):
    near, far = io.StringIO(), io.StringIO()
    root.handlers = [logging.StreamHandler(far)]
    logging.getLogger("nvrx_core").handlers = [logging.StreamHandler(near)]
    with own_stream_handlers():
        LINE.warning("a line")
    assert (near.getvalue(), far.getvalue()) == ("a line\n", "")


def test_files_get_nothing_where_there_is_no_stream(root, file):
    root.handlers = [file]
    with own_stream_handlers():
        LINE.warning("a line")
    assert Path(file.baseFilename).read_text() == ""


def test_without_any_handler_warnings_are_printed(root, capsys):
    root.handlers = []
    with own_stream_handlers():
        LINE.warning("a line")
        LINE.info("a quiet line")
    assert capsys.readouterr().err == "a line\n"


def test_without_any_handler_no_lock_is_waited_for(root, locked, monkeypatch, pipe):
    lines, stream = pipe
    monkeypatch.setattr(sys, "stderr", stream)
    root.handlers = []
    locked(logging.lastResort)
    with own_stream_handlers():
        LINE.warning("a line")
    assert lines.read(100) == b"a line\n"


def test_streams_count_that_the_function_configures(root):
    stream = io.StringIO()
    with own_stream_handlers():
        root.handlers = [logging.StreamHandler(stream)]
        LINE.warning("a line")
    assert stream.getvalue() == "a line\n"


@pytest.mark.parametrize("handlers", [[], [logging.StreamHandler(io.StringIO())]], ids=["no handler", "a stream"])
def test_all_is_put_back(root, handlers):
    root.handlers = handlers
    before = state()
    with pytest.raises(KeyError), own_stream_handlers():
        raise KeyError
    assert state() == before


def test_other_loggers_are_left_alone(root, file):
    root.handlers = [file]
    with own_stream_handlers():
        logging.getLogger("application").warning("a line")
    assert Path(file.baseFilename).read_text() == "a line\n"


@pytest.fixture
def pipe():
    """The reading end of a pipe, and a text stream on the other."""
    reading, writing = os.pipe()
    with open(writing, "w", encoding="utf-8") as stream, open(reading, "rb", buffering=0) as lines:
        yield lines, stream


@pytest.fixture
def locked():
    """Locks a handler in another thread, as an interruption may leave it."""
    free, threads = threading.Event(), []

    def lock(handler):
        held = threading.Event()

        def hold():
            with handler.lock:
                held.set()
                free.wait()

        threads.append(threading.Thread(target=hold))
        threads[-1].start()
        held.wait()

    yield lock
    free.set()
    for thread in threads:
        thread.join()


def test_a_locked_handler_does_not_block_a_line(root, pipe, locked):
    lines, stream = pipe
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    root.handlers = [handler]
    locked(handler)
    with own_stream_handlers():
        LINE.warning("a l\u00efne")
    assert lines.read(100) == "WARNING a l\u00efne\n".encode()


def test_a_stream_without_a_descriptor_is_waited_for_once(root, locked, monkeypatch, capfd):
    monkeypatch.setattr(log_handlers, "LOCKED_FOR", 0.05)
    root.handlers = [logging.StreamHandler(io.StringIO())]
    locked(root.handlers[0])
    with own_stream_handlers():
        LINE.warning("the first")
        LINE.warning("the second")
    assert capfd.readouterr().err == "the first\nthe second\n"
    monkeypatch.setattr(sys, "__stderr__", None)  # as Python is started with a closed one
    with own_stream_handlers():
        LINE.warning("the third")
    assert capfd.readouterr().err == "", "descriptor 2 is a file of the user's"


def test_a_stream_that_takes_nothing_is_not_waited_for(root, pipe, monkeypatch):
    monkeypatch.setattr(log_handlers, "LOCKED_FOR", 0.05)
    _, stream = pipe
    os.set_blocking(stream.fileno(), False)
    while True:
        try:
            os.write(stream.fileno(), b"x" * 4096)
        except BlockingIOError:
            break
    root.handlers = [logging.StreamHandler(stream)]
    with own_stream_handlers():
        LINE.warning("a line")


def test_a_stream_that_takes_a_part_of_a_long_line_is_not_waited_for(root, pipe, monkeypatch):
    monkeypatch.setattr(log_handlers, "LOCKED_FOR", 0.05)
    lines, stream = pipe
    held = fcntl.fcntl(stream.fileno(), fcntl.F_GETPIPE_SZ)
    root.handlers = [logging.StreamHandler(stream)]
    writing = threading.Thread(target=lambda: LINE.warning("x" * 2 * held), daemon=True)
    with own_stream_handlers():
        writing.start()
        writing.join(10)
        ended = not writing.is_alive()
        lines.read(4 * held)
        writing.join(10)
    assert ended


def test_level_filters_and_what_a_class_of_its_own_does_hold(root, pipe):
    class Shouting(logging.StreamHandler):
        def emit(self, record):
            self.stream.write(f"{record.getMessage()}!\n")

    lines, stream = pipe
    quiet, own = logging.StreamHandler(stream), Shouting(io.StringIO())
    quiet.setLevel(logging.ERROR)
    quiet.addFilter(lambda record: "secret" not in record.getMessage())
    root.handlers = [quiet, own]
    with own_stream_handlers():
        LINE.warning("a warning")
        LINE.error("a secret")
        LINE.error("an error")
    assert lines.read(100) == b"an error\n"
    assert own.stream.getvalue() == "a warning!\na secret!\nan error!\n"


def test_a_formatter_that_raises_is_reported_as_by_logging(root, pipe, monkeypatch, capsys):
    _, stream = pipe
    handler = logging.StreamHandler(stream)
    monkeypatch.setattr(handler, "format", lambda record: 1 / 0)
    root.handlers = [handler]
    with own_stream_handlers():
        LINE.warning("a line")
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_full_disk_costs_only_the_line(root, monkeypatch, capsys):
    with open("/dev/full", "w", encoding="utf-8") as full:
        root.handlers = [logging.StreamHandler(full)]
        with own_stream_handlers():
            LINE.warning("a line")
    assert capsys.readouterr().err == ""


def test_a_closed_stream_is_reported_as_by_logging(root, tmp_path, capsys):
    stream = (tmp_path / "closed").open("w")
    stream.close()
    root.handlers = [logging.StreamHandler(stream)]
    with own_stream_handlers():
        LINE.warning("a line")
    assert "ValueError" in capsys.readouterr().err


def test_a_closed_stderr_costs_only_the_line(root, monkeypatch):
    closed = io.TextIOWrapper(io.BytesIO())
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    root.handlers = [logging.StreamHandler(closed)]
    with own_stream_handlers():
        LINE.warning("a line")


def test_a_deleted_stderr_costs_only_the_line(root, monkeypatch):
    root.handlers = []
    monkeypatch.delattr(sys, "stderr")
    monkeypatch.delattr(sys, "__stderr__")
    with own_stream_handlers():
        logging.getLogger("nvrx_core.test").warning("lost")
