"""The folder of a launcher's sockets, which exists as long as the launcher.

The launcher holds a lock on its folder (flock(2)), so that the next one tells the folders of launchers that run from
those of launchers that were killed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from nvrx_core.fault_tolerance.wire import private_directory

__all__ = ["runtime_folder"]

PREFIX: Final = "launcher-"
UNLOCKED: Final = "new-"


def runtime_folder(cleanup: ExitStack) -> Path:
    """Make the folder, and remove those of launchers that are gone.

    Args:
        cleanup: removes it.

    Raises:
        ConfigurationError: when NVRX_RUNTIME_DIR is too long for sockets.
        OSError: when it cannot be made.
    """
    parent = private_directory()
    for left in parent.glob(f"{PREFIX}*"):
        _remove_if_left(left)
    made = Path(tempfile.mkdtemp(prefix=UNLOCKED, dir=parent))
    lock = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with suppress(OSError):  # a file system without locks: the folder is taken for that of a running launcher
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    folder = made.rename(parent / f"{PREFIX}{made.name.removeprefix(UNLOCKED)}")
    cleanup.callback(os.close, lock)
    cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _remove_if_left(folder: Path) -> None:
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(fd)
