"""The manifest of a checkpoint's files, by which a load detects a missing, truncated or damaged one."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

__all__ = ["NAME", "damage", "write_manifest"]

NAME: Final = "nvrx-manifest.json"
_VERSION: Final = 1
_CHUNK: Final = 1 << 22


def write_manifest(folder: Path, checksums: bool) -> None:
    """Write the manifest of the files in a folder, with their sizes and optionally their CRC-32, and synchronise it."""
    files = {name: _facts(folder / name, checksums) for name in _files(folder)}
    with (folder / NAME).open("w") as file:
        json.dump({"version": _VERSION, "files": files}, file)
        file.flush()
        os.fsync(file.fileno())


def damage(folder: Path) -> str | None:
    """Return what is wrong with a checkpoint; None if its files match its manifest."""
    try:
        files = json.loads((folder / NAME).read_text())["files"]
        return next(filter(None, (_difference(folder / name, facts) for name, facts in files.items())), None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{NAME}: {error}"


def _difference(path: Path, facts: dict[str, Any]) -> str | None:
    if not path.is_file():
        return f"{path.name} is missing"
    if (size := path.stat().st_size) != facts["size"]:
        return f"{path.name} has {size} bytes, not {facts['size']}"
    if "crc32" in facts and _checksum(path) != facts["crc32"]:
        return f"{path.name} is damaged: its CRC-32 is not that of its list"
    return None


def _files(folder: Path) -> Iterator[str]:
    for parent, _, names in os.walk(folder):
        yield from (os.path.relpath(os.path.join(parent, name), folder) for name in names if name != NAME)


def _facts(path: Path, checksums: bool) -> dict[str, int]:
    facts = {"size": path.stat().st_size}
    return facts | {"crc32": _checksum(path)} if checksums else facts


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            checksum = zlib.crc32(chunk, checksum)
    return checksum
