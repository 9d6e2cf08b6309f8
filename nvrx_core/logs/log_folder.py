"""The files that a log server appends to: all under its folders, whatever a client names.

A name leads down from a folder's descriptor, never through a symbolic link, to a regular file (openat2(2) with
RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS, else each folder by itself with O_NOFOLLOW). Folders are not created.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import stat
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from nvrx_core.logs.chunks import file_under
from nvrx_core.process.libc import libc

__all__ = ["LogFolders", "open_beneath"]

MODE: Final = 0o640
FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # of a FIFO
OPENAT2: Final = 437
RESOLVE_NO_SYMLINKS_BENEATH: Final = 0x04 | 0x08
UNKNOWN: Final = (errno.ENOSYS, errno.EPERM, errno.EINVAL)
"""Errors of openat2 where the kernel, or a seccomp filter, does not know it."""
MAX_OPEN: Final = 64


class LogFolders:
    """Appends to files under some folders; keeps the latest ones open.

    Args:
        roots: the folders; absolute.

    Raises:
        OSError: when one cannot be opened.
    """

    def __init__(self, roots: Sequence[str]) -> None:
        self.roots = tuple(os.path.normpath(root) for root in roots)
        self._folders = {root: os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for root in self.roots}
        self._files = OrderedDict[str, int]()

    def append(self, path: str, data: bytes) -> int:
        """Append bytes to a file; return how many are written.

        Raises:
            OSError: when it cannot be opened or written.
            PathRefusedError: when it is not under the folders.
        """
        fd = self._files.get(path)
        if fd is None:
            root, names = file_under(self.roots, path)
            fd = self._files[path] = open_beneath(self._folders[root], names)
            if len(self._files) > MAX_OPEN:
                self._close(next(iter(self._files)))
        self._files.move_to_end(path)
        try:
            return os.write(fd, data)
        except OSError:
            with suppress(OSError):  # it was opened anew by the next attempt: a stale handle stays stale
                self._close(path)
            raise

    def close(self) -> None:
        """Close everything.

        Raises:
            OSError: a file system over the network reports some failures only here.
        """
        for path in list(self._files):
            self._close(path)
        while self._folders:
            os.close(self._folders.popitem()[1])

    def _close(self, path: str) -> None:
        os.close(self._files.pop(path))


def open_beneath(folder: int, names: Sequence[str]) -> int:
    """Open a regular file for appending; create it, but no folder.

    Args:
        folder: the descriptor of the folder from which the names lead to it.
        names: folders and the file; none is empty, `.` or `..`.

    Raises:
        OSError: when it cannot be opened; ELOOP for a symbolic link, EINVAL for what is no regular file.
    """
    try:
        fd = _openat2(folder, "/".join(names))
    except OSError as error:
        if error.errno not in UNKNOWN:
            raise
        fd = _walk(folder, names)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "no regular file", "/".join(names))
    return fd


def _openat2(folder: int, path: str) -> int:
    if platform.machine() not in ("x86_64", "aarch64"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    how = (ctypes.c_uint64 * 3)(FLAGS, MODE, RESOLVE_NO_SYMLINKS_BENEATH)
    arguments = (ctypes.c_long(OPENAT2), ctypes.c_int(folder), path.encode(), ctypes.byref(how), ctypes.c_size_t(24))
    fd: int = libc().syscall(*arguments)
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return fd


def _walk(folder: int, names: Sequence[str]) -> int:
    parents, at = list[int](), folder
    try:
        for name in names[:-1]:
            at = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            parents.append(at)
        return os.open(names[-1], FLAGS, MODE, dir_fd=at)
    finally:
        for fd in parents:
            os.close(fd)
