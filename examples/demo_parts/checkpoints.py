"""Checkpoints that are whole or absent.

A checkpoint is written under another name, flushed to the disk and then renamed; it begins with the SHA-256 of the
rest. A rank killed at any moment leaves the last good one behind. When the disk fails, what was begun is removed and
the error names the file; a damaged checkpoint is named in a warning and passed over.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
from contextlib import suppress
from pathlib import Path

import torch

__all__ = ["resume", "save"]

log = logging.getLogger(__name__)
KEPT = 2
DIGEST_BYTES = hashlib.sha256().digest_size


def save(folder: Path, step: int, network: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Writes the state after `step` steps, and removes all but the newest checkpoints.

    Raises:
        OSError: the disk is full or fails; it names the file. The checkpoints before it are as they were.
    """
    content = io.BytesIO()
    torch.save({"network": network.state_dict(), "optimizer": optimizer.state_dict()}, content)
    _write_whole(folder / f"step-{step:08d}.ckpt", hashlib.sha256(content.getbuffer()).digest() + content.getbuffer())
    for old in _newest_first(folder)[KEPT:]:
        old.unlink()


def resume(folder: Path, network: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Loads the newest whole checkpoint, if there is one; returns how many steps it has behind it."""
    for path in _newest_first(folder):
        content = path.read_bytes()
        if hashlib.sha256(content[DIGEST_BYTES:]).digest() == content[:DIGEST_BYTES]:
            state = torch.load(io.BytesIO(content[DIGEST_BYTES:]), weights_only=True)
            network.load_state_dict(state["network"])
            optimizer.load_state_dict(state["optimizer"])
            return int(path.stem.removeprefix("step-"))
        log.warning("the checkpoint %s is damaged and passed over", path)
    return 0


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*.ckpt"), reverse=True)


def _write_whole(path: Path, content: bytes) -> None:
    unfinished = path.with_suffix(".unfinished")
    try:
        _write(unfinished, content)
        unfinished.rename(path)
        _flush_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink()
        raise OSError(error.errno, f"{error.strerror}, the checkpoint is not written", str(path)) from error


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(path: Path) -> None:
    """A rename is on the disk when its folder is."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
