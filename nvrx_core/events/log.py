"""The event file of a rank or of a launcher: one line per event, by one system call: two processes can share it.

Writing an event never fails the job: a failed write is counted, its event is dropped, and the first drop is logged.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from nvrx_core.errors import ParameterError
from nvrx_core.events.schema import LAUNCHER, MAX_LINE, SCHEMA, file_name, launcher_file_name
from nvrx_core.process.descriptors import identity

__all__ = ["EventLog", "boot_id"]

MAX_TEXT: Final = 4_000
MAX_DEPTH: Final = 6
MAX_BITS: Final = 64
_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
_DISK: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE})
_logger: Final = logging.getLogger(__name__)


def boot_id() -> str:
    """Return the identifier of this host's monotonic clock, "" where the kernel does not provide one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _wall_time() -> float:
    """Return the seconds since 1970 by the clock of this moment, which a test or a library may have replaced."""
    return time.time()


class EventLog:
    """An append-only log of events, in a file of its own in a directory.

    The directory is created (mode 0700) if it is missing. Two logs on one file do not disturb each other, nor do parent
    and child of a fork. Close the log after the last thread has written to it.

    Args:
        directory: the directory of the file; None disables the log.
        initial_rank: the rank whose events are logged; `schema.LAUNCHER` for those of the launcher in this process.
        now, wall: return the timestamps: monotonic seconds, and seconds since 1970, which only date what people read.

    Attributes:
        dropped: how many events were not written.

    Raises:
        ValueError: when the directory cannot be created or written to for a reason other than a full or failing disk.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None,
        initial_rank: int,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = _wall_time,
    ) -> None:
        self.dropped = 0
        host = socket.gethostname()
        name = launcher_file_name(host, os.getpid()) if initial_rank == LAUNCHER else file_name(initial_rank)
        self._path = None if directory is None else Path(directory) / name
        self._now, self._wall = now, wall
        self._source = {"host": host, "boot_id": boot_id(), "initial_rank": initial_rank}
        self._fd: int | None = None
        self._file: tuple[int, int] | None = None
        self._torn = False
        if self._path is not None:
            try:
                self._fd = _open(self._path)
                self._file = identity(self._fd)
            except OSError as error:
                if error.errno not in _DISK:
                    rule = f"a directory that can be made and written to ({error.strerror})"
                    raise ParameterError("events_dir", str(directory), rule) from error

    def fileno(self) -> int | None:
        """Return the file descriptor, None while no file is open; a process that closes inherited files keeps it."""
        return self._fd

    def write(self, event: str, iteration: int, **fields: object) -> None:
        """Append one event; never raises.

        Args:
            event: the name of the event, see `schema.EVENTS` and `schema.LAUNCHER_EVENTS`.
            iteration: the iteration it belongs to.
            fields: the fields of the event. A value that JSON cannot represent is written as its `repr`, long text is
                truncated; a field with the name of a common field is ignored.
        """
        if self._path is None:
            return
        line = self._line(event, iteration, fields)
        try:
            self._append(self._path, line)
        except OSError as error:
            self._drop(error)

    def close(self) -> None:
        """Close the file; later events are ignored."""
        fd, self._fd, self._path = self._fd, None, None
        if fd is not None and identity(fd) == self._file:
            os.close(fd)

    def _line(self, event: str, iteration: int, fields: Mapping[str, object]) -> bytes:
        times = {"wall": self._wall(), "monotonic": self._now()}
        where = {**self._source, "pid": os.getpid(), "iteration": iteration}
        common: dict[str, object] = {"schema": SCHEMA, "event": event, **times, **where}
        own = {name: _plain(value, MAX_DEPTH) for name, value in fields.items()}
        return json.dumps({**common, **own, **common}).encode() + b"\n"

    def _append(self, path: Path, line: bytes) -> None:
        if len(line) > MAX_LINE:
            raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))
        if self._fd is None or identity(self._fd) != self._file:  # closed by other code, and maybe a file of its own
            self._fd = _open(path)
            self._file = identity(self._fd)
        line = b"\n" + line if self._torn else line
        written = os.write(self._fd, line)
        self._torn = written < len(line)
        if self._torn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _drop(self, error: OSError) -> None:
        self.dropped += 1
        if self.dropped == 1:
            _logger.warning("cannot write events, the job continues: %s: %s", self._path, error.strerror)


def _open(path: Path) -> int:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.open(path, _FLAGS, 0o600)


def _plain(value: object, depth: int) -> object:
    """Return the value as JSON types, bounded in text length and depth."""
    if value is None or (isinstance(value, int) and value.bit_length() <= MAX_BITS):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, str):
        return value[:MAX_TEXT]
    if depth and isinstance(value, Mapping):
        return {str(key)[:MAX_TEXT]: _plain(item, depth - 1) for key, item in value.items()}
    if depth and isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, depth - 1) for item in value]
    return _text(value)


def _text(value: object) -> str:
    try:
        return repr(value)[:MAX_TEXT]
    except Exception:  # boundary: repr is user code, and an event must not raise
        return f"<{type(value).__name__} without a repr>"
