"""Checkpoints that are whole or absent.

A checkpoint is written under another name, flushed to the disk and then renamed; it begins with the SHA-256 of the
rest. A rank killed at any moment leaves the last good one behind; a damaged one is passed over.
"""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path

import torch

__all__ = ["resume", "save"]

KEPT = 2
DIGEST_BYTES = hashlib.sha256().digest_size


def save(folder: Path, step: int, network: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Writes the state after `step` steps, and removes all but the newest checkpoints."""
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
    return 0


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*.ckpt"), reverse=True)


def _write_whole(path: Path, content: bytes) -> None:
    unfinished = path.with_suffix(".unfinished")
    with unfinished.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # a rename is on the disk when its folder is
    finally:
        os.close(folder)
