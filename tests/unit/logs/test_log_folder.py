import errno
import os

import pytest

from nvrx_core.logs import log_folder
from nvrx_core.logs.chunks import PathRefusedError
from nvrx_core.logs.log_folder import LogFolders, open_beneath


@pytest.fixture(params=["openat2", "each folder by itself"])
def folder(request, tmp_path, monkeypatch):
    """A folder with what a client may find there, with the system call, and as on a kernel without it."""
    if request.param != "openat2":
        monkeypatch.setattr(log_folder, "OPENAT2", 100_000)
    outside = tmp_path / "outside"
    root = tmp_path / "root"
    for each in (outside, root, root / "cycles"):
        each.mkdir()
    (root / "link").symlink_to(outside)
    (root / "link.log").symlink_to(outside / "x.log")
    os.mkfifo(root / "fifo")
    return root


def opened(folder, *names: str) -> None:
    root = os.open(folder, os.O_PATH)
    try:
        os.close(open_beneath(root, names))
    finally:
        os.close(root)


def test_files_are_opened_in_the_folder_and_below_it(folder):
    opened(folder, "train.log")
    opened(folder, "cycles", "train.log")
    assert (folder / "cycles" / "train.log").stat().st_mode & 0o777 == 0o640 & ~_umask()


@pytest.mark.parametrize(("names", "number"), [
    (("link", "x.log"), None), (("link.log",), errno.ELOOP), (("fifo",), errno.ENXIO), (("cycles",), errno.EISDIR),
    (("missing", "x.log"), errno.ENOENT), (("fifo", "x.log"), errno.ENOTDIR),
])  # fmt: skip
def test_nothing_else_is_opened(folder, names, number):
    with pytest.raises(OSError) as found:  # noqa: PT011 - its number follows
        opened(folder, *names)
    assert found.value.errno in ((errno.ELOOP, errno.ENOTDIR) if number is None else (number,))
    assert not list((folder.parent / "outside").iterdir())


def test_a_fifo_with_a_reader_is_no_file(folder):
    reader = os.open(folder / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(OSError, match="no regular file"):
            opened(folder, "fifo")
    finally:
        os.close(reader)


def test_few_files_stay_open_and_each_is_appended_to(folder, monkeypatch):
    monkeypatch.setattr(log_folder, "MAX_OPEN", 2)
    folders = LogFolders([str(folder)])
    for _ in range(2):
        for number in range(4):
            assert folders.append(str(folder / f"{number}.log"), b"line\n") == 5
    with pytest.raises(PathRefusedError):
        folders.append("/etc/x", b"line\n")
    folders.close()
    assert [(folder / f"{number}.log").read_bytes() for number in range(4)] == [b"line\nline\n"] * 4


def test_a_file_whose_write_fails_is_opened_again(folder, monkeypatch):
    folders = LogFolders([str(folder)])
    folders.append("train.log", b"one\n")
    with monkeypatch.context() as patch:
        patch.setattr(log_folder.os, "write", _stale)
        with pytest.raises(OSError, match="stale"):
            folders.append("train.log", b"two\n")
    (folder / "train.log").rename(folder / "old.log")
    folders.append("train.log", b"three\n")
    folders.close()
    assert (folder / "train.log").read_bytes() == b"three\n"


def _stale(_fd: int, _data: bytes) -> int:
    raise OSError(errno.ESTALE, "stale")


def _umask() -> int:
    before = os.umask(0)
    os.umask(before)
    return before
