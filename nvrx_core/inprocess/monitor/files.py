"""The optional files of a monitor process: its log and its pid file."""

from __future__ import annotations

import errno
import logging
import os
from contextlib import suppress

__all__ = ["check_files", "configure_logging", "write_pidfile"]


def check_files(logfile: str | None, pidfile: str | None) -> None:
    """Check, in the rank, that its monitor process will be able to write them.

    Raises:
        OSError: when it will not.
    """
    if logfile is not None:
        os.close(_open(logfile, os.O_APPEND))
    if pidfile is not None:
        temporary, fd = _open_beside(pidfile)
        os.close(fd)
        os.unlink(temporary)


def configure_logging(path: str | None) -> None:
    """Log to the file only; the rank's handlers must not be used in another process."""
    logger = logging.getLogger("nvrx_core")
    handler: logging.Handler = logging.NullHandler()
    if path is not None:
        fd = _open(path, os.O_APPEND)
        handler = logging.StreamHandler(os.fdopen(fd, "w", buffering=1))
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)


def write_pidfile(path: str | None) -> None:
    """Write the pid of the calling process: of the fork server, until there is a monitor process.

    Whoever waits for the processes of the file waits for the report of a rank that dies before. It is written
    atomically; a symbolic link at the path is replaced.
    """
    if path is None:
        return
    temporary, fd = _open_beside(path)
    with open(fd, "w", encoding="ascii") as file:
        file.write(f"{os.getpid()}\n")
    os.replace(temporary, path)


def _open_beside(path: str) -> tuple[str, int]:
    """Open a temporary file in the same directory; return its path and descriptor."""
    temporary = f"{path}.{os.getpid()}"
    with suppress(FileNotFoundError):
        os.unlink(temporary)
    return temporary, _open(temporary, os.O_EXCL)


def _open(path: str, flags: int) -> int:
    """Open a file for writing without following links: in a shared directory, one could point to any of the user's."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.ELOOP, "a symbolic link, which is not followed", path) from None
