"""Chunks: whole lines for one file, numbered by the process that sends them; and the names of the files. Pure."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final

from nvrx_core.values import value

__all__ = ["MAX_CHUNK", "Chunk", "PathRefusedError", "cycle_file", "file_under"]

MAX_CHUNK: Final = 1 << 20
"""Bytes of a chunk that a server accepts."""
MAX_NAME: Final = 255
MAX_DEPTH: Final = 32


@value
class Chunk:
    """Whole lines for one file.

    Attributes:
        node: the node that sends it.
        path: the file.
        data: the lines.
        session: identifies the process that sends it.
        sequence: its number in the session, from 1; 0: it is not numbered.
        lost_bytes, lost_lines: what the node has dropped of this file before it.
        is_last: nothing more follows in the session.
    """

    node: str
    path: str
    data: bytes
    session: str = ""
    sequence: int = 0
    lost_bytes: int = 0
    lost_lines: int = 0
    is_last: bool = False


class PathRefusedError(ValueError):
    """A file that a server does not write to."""


def cycle_file(prefix: str, cycle: int) -> str:
    """Return the log file of a cycle: `/logs/train.log` becomes `/logs/train_cycle3.log`."""
    path = PurePosixPath(prefix)
    return str(path.with_name(f"{path.stem}_cycle{cycle}{path.suffix or '.log'}"))


def file_under(roots: tuple[str, ...], path: str) -> tuple[str, tuple[str, ...]]:
    """Return the root of a file and the names that lead from there to it; none of them is `..`.

    Args:
        roots: folders, absolute and normal.
        path: the file, absolute, or relative to the first root.

    Raises:
        PathRefusedError: when it is under none of them, or is no plain path.
    """
    if not path.isprintable():
        raise PathRefusedError(f"{path[:MAX_NAME]!r} has characters that cannot be printed")
    root = "" if path.startswith("/") else roots[0]
    if not root:
        root = next((each for each in roots if path.startswith(f"{each.rstrip('/')}/")), "")
        if not root:
            raise PathRefusedError(f"{path[:MAX_NAME]!r} is under none of the folders of this server")
        path = path[len(root.rstrip("/")) + 1 :]
    names = tuple(path.split("/"))
    if len(names) > MAX_DEPTH or any(name in ("", ".", "..") or len(name.encode()) > MAX_NAME for name in names):
        raise PathRefusedError(f"{path[:MAX_NAME]!r} is no plain path")
    return root, names
