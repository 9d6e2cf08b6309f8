"""The folder of a launcher's sockets, which exists as long as the launcher.

The launcher holds a lock on its folder (flock(2)), so that the next one tells the folders of launchers that run from
those of launchers that were killed. Such a lock is seen by one kernel only: on NFS without a lock service, other hosts
do not see it. So the name of a folder says on which host it was made, and since which boot, and the folders of other
hosts are left alone.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import shutil
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from nvrx_core.fault_tolerance.wire import host_tag, private_directory

__all__ = ["runtime_folder"]

log = logging.getLogger("nvrx_launcher")
PREFIX: Final = "launcher-"
RANDOM: Final = 3
"""Characters at the end of the name, which tell the folders of one host apart."""


def runtime_folder(cleanup: ExitStack) -> Path:
    """Make the folder, and remove those of launchers of this host that are gone.

    Args:
        cleanup: removes it.

    Raises:
        ConfigurationError: when NVRX_RUNTIME_DIR is too long for sockets.
        OSError: when it cannot be made.
    """
    parent, ours = private_directory(), f"{PREFIX}{host_tag()}"
    for left in parent.glob(f"{ours}{'?' * RANDOM}"):
        _remove_if_left(left)
    while True:
        folder = parent / f"{ours}{secrets.token_urlsafe(RANDOM)[:RANDOM]}"
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            if (lock := _locked(folder)) is not None:
                break
    cleanup.callback(os.close, lock)
    cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _locked(folder: Path) -> int | None:
    """Return a descriptor that locks a new folder; None if another launcher has just taken it for one that is left."""
    with suppress(FileNotFoundError, BlockingIOError), ExitStack() as undo:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        undo.callback(os.close, lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:  # a file system without locks: nobody will take the folder for one that is left
            log.debug("%s cannot be locked", folder, exc_info=True)
        if os.path.samestat(os.fstat(lock), folder.stat()):
            undo.pop_all()
            return lock
    return None


def _remove_if_left(folder: Path) -> None:
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(fd)
