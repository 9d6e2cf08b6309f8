"""Files that are replaced atomically: written to a temporary name, synchronised, renamed."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final, TextIO

from nvrx_core.inprocess.wrap import current_call

__all__ = ["MAX_HOLD", "filling", "replacing", "section", "synchronise_folder"]

log = logging.getLogger("nvrx_megatron")

_BESIDE: Final = ".nvrx.tmp"
_ABANDONED_AFTER: Final = 60.0
"""Seconds after which nobody writes a small temporary file any more."""
MAX_HOLD: Final = 30.0
"""Seconds after which a section that delays a restart is logged."""


@contextlib.contextmanager
def section(what: str, max_hold: float = MAX_HOLD) -> Iterator[None]:
    """Open a section that no restart interrupts, where a wrapped function runs in this thread.

    Use it only for code that waits for no other rank: a collective within it would be aborted only after the restart.

    Args:
        what: what is done, for the log.
        max_hold: seconds after which the section is logged; it is not interrupted.
    """
    watch = threading.Timer(max_hold, log.warning, ("%s has held off restarts for %g s", what, max_hold))
    watch.daemon = True
    with ExitStack() as stack:
        _enter_atomic(stack)
        watch.start()
        stack.callback(watch.cancel)
        yield


def _enter_atomic(stack: ExitStack) -> None:
    call = current_call()
    if call is not None:
        with contextlib.suppress(RuntimeError):  # another thread, such as that of a background save
            stack.enter_context(call.atomic())


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[TextIO]:
    """Open a text file for writing; at the end the new content replaces the old one, or the old one stays."""
    target = Path(path)
    beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    with section(str(target)):
        try:
            with beside.open("w") as file:
                _remove_abandoned(target, beside)
                yield file
                file.flush()
                os.fsync(file.fileno())
            beside.replace(target)
        except BaseException:  # boundary: a user's write; the file keeps its old content
            beside.unlink(missing_ok=True)
            raise
        synchronise_folder(target.parent)


def _remove_abandoned(target: Path, beside: Path) -> None:
    """Remove the temporary files of killed processes: those that are much older than this one, by the same clock."""
    now = beside.stat().st_mtime
    for left in target.parent.glob(f".{target.name}.*.tmp"):
        with contextlib.suppress(FileNotFoundError):  # another rank writes the same file
            if left.stat().st_mtime < now - _ABANDONED_AFTER:
                left.unlink()


@contextlib.contextmanager
def filling(folder: Path) -> Iterator[Path]:
    """Yield a new folder whose files move into this one at the end, each atomically; for a single process."""
    beside = folder / _BESIDE
    shutil.rmtree(beside, ignore_errors=True)  # left by a process that was killed
    beside.mkdir()
    try:
        yield beside
        for path in beside.iterdir():
            _synchronise(path, os.O_RDONLY)
            path.replace(folder / path.name)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    synchronise_folder(folder)


def synchronise_folder(folder: Path) -> None:
    """Make a folder's entries survive a crash of the machine."""
    _synchronise(folder, os.O_RDONLY | os.O_DIRECTORY)


def _synchronise(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
