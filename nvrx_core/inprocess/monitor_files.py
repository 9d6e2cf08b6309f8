"""The files of a monitor process that a user asked for: its log and its pid."""

from __future__ import annotations

import logging
import os

__all__ = ["configure_logging", "write_pidfile"]


def configure_logging(path: str | None) -> None:
    """Log to the file only; the rank's own handlers are not for another process."""
    logger = logging.getLogger("nvrx_core")
    handler: logging.Handler = logging.NullHandler()
    if path is not None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        handler = logging.StreamHandler(os.fdopen(fd, "w", buffering=1))
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)


def write_pidfile(path: str) -> None:
    """Write the pid so that a reader never sees half of it."""
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w", encoding="ascii", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(f"{os.getpid()}\n")
    os.replace(temporary, path)
