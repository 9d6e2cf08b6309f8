"""The thread of a log server that writes: what it does for a chunk does not grow with the chunks that wait."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvrx_core.logs.chunks import Chunk
from nvrx_core.logs.file_writer import FileWriter
from nvrx_core.logs.log_folder import LogFolders

WITHIN = 10.0
"""Seconds for what should happen at once."""


class Folders(LogFolders):
    """Folders on a file system that does not answer until it is told to; with what was written."""

    def __init__(self, folder: Path) -> None:
        super().__init__([str(folder)])
        self.asked, self.answers, self.written = threading.Event(), threading.Event(), bytearray()

    def append(self, path: str, data: bytes) -> int:
        self.asked.set()
        assert self.answers.wait(WITHIN)
        self.written += data
        return len(data)


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


@pytest.fixture
def writer(folders: Folders) -> Iterator[FileWriter]:
    writer = FileWriter(folders)
    yield writer
    folders.answers.set()
    assert writer.close(WITHIN) == 0


def test_chunks_for_a_file_that_is_written_already_do_not_wake_the_thread(
    folders: Folders, writer: FileWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of them wait while a disk is full, and their connections are served by the same interpreter."""
    wakes, settled, is_over = list[None](), list[int](), threading.Event()
    writer.put(Chunk("n", "train.log", b"0"), lambda _: settled.append(0))
    assert folders.asked.wait(WITHIN)
    with monkeypatch.context() as patched:
        patched.setattr(writer.changed, "notify_all", lambda: wakes.append(None))
        for number in range(1, 100):
            writer.put(Chunk("n", "train.log", b"%d" % number), lambda _, number=number: settled.append(number))
        writer.put(Chunk("n", "train.log", b""), lambda _: is_over.set())
        assert (wakes, settled) == ([], [])
    folders.answers.set()
    assert is_over.wait(WITHIN)
    assert settled == [*range(100)]
    assert folders.written == b"".join(b"%d" % number for number in range(100))


def test_a_chunk_without_data_is_settled_at_once_when_nothing_waits(writer: FileWriter) -> None:
    """Of a node that has ended."""
    settled = list[str]()
    writer.put(Chunk("n", "", b""), settled.append)
    assert settled == [""]
