"""Where the wrapper's log lines go while a call lasts: to the streams of the first ancestor that logs, to no file."""

import io
import logging
from pathlib import Path

import pytest

from nvrx_core.inprocess.log_handlers import own_stream_handlers

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
