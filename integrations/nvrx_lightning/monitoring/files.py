"""The files that a training leaves for the next one: learned timeouts, and the finished flag."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

__all__ = ["FINISHED", "TIMEOUTS", "folder_for", "read_timeouts", "touch", "write_timeouts"]

TIMEOUTS: Final = "ft_timeouts.json"
FINISHED: Final = "ft_finished"

SCHEMA: Final = 1
MOST_BYTES: Final = 1 << 20


def folder_for(trainer: Any, exp_dir: str | os.PathLike[str] | None) -> Path | None:
    """Return the folder for both files, the same for the next job; None if it is not on a local file system.

    It is `exp_dir`, else the `dirpath` that the first checkpoint callback was given, else `trainer.default_root_dir`.
    """
    named = (getattr(callback, "dirpath", None) for callback in trainer.checkpoint_callbacks)
    folder = exp_dir or next(filter(None, named), None) or trainer.default_root_dir
    return None if "://" in str(folder) else Path(folder)


def read_timeouts(path: Path) -> dict[str, Any] | None:
    """Return what `write_timeouts` has written; None if the file does not exist.

    Raises:
        ValueError: when the file has another content.
        OSError: when it cannot be read.
    """
    try:
        with path.open("rb") as file:
            data = json.loads(file.read(MOST_BYTES))
    except FileNotFoundError:
        return None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA or not isinstance(data.get("timeouts"), dict):
        raise ValueError(f"no learned timeouts of schema {SCHEMA}")
    return {"current_timeouts": data["timeouts"]}


def write_timeouts(path: Path, state: dict[str, Any]) -> None:
    """Replace the file atomically: a reader sees the old or the new content, even after a crash of the machine.

    Raises:
        OSError: when it cannot be written.
    """
    text = json.dumps({"schema": SCHEMA, "timeouts": state["current_timeouts"]}, indent=1, sort_keys=True)
    _write(path, f"{text}\n")


def touch(path: Path) -> None:
    """Create a file that survives a crash of the machine.

    Raises:
        OSError: when it cannot be made.
    """
    _write(path, "")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
