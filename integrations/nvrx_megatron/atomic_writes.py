"""Atomic writes of the files of a save that a single rank writes.

Megatron truncates its tracker file, its file of timeouts and the `metadata.json` of a checkpoint, and then writes them.
A rank that ends in between leaves an empty file, with which the next load fails on every rank. This module replaces
each of them atomically, within `CallWrapper.atomic()`; torch's metadata, which torch renames itself, is also written
within it. The `common.pt` of a checkpoint, which may be large, is replaced atomically, but its write may be
interrupted. No collective runs within a section.
"""

from __future__ import annotations

import builtins
import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvrx_megatron.atomic_file import filling, replacing, section
from nvrx_megatron.installed import Piece, replace_once
from nvrx_megatron.internals import TRACKER, WHOLE_FILES, common_savers, openers, writes_common_state

__all__ = ["protect_checkpoint_files", "protect_metadata"]


def protect_checkpoint_files() -> list[Piece]:
    """Protect the files of Megatron-LM and torch's metadata; a second call changes nothing.

    Returns:
        What is installed, and what is not.
    """
    importlib.import_module("megatron.training.checkpointing")
    pieces = []
    for file, home, name in openers():
        replace_once(home, name, _opening, default=builtins.open)
        what = "the tracker file" if file == TRACKER else file
        missing = "" if home is not None else f"the function that opens {file}"
        without = f"{what} is not written atomically: a rank that ends meanwhile leaves an empty one, and loads fail"
        pieces.append(Piece(f"{what} is written atomically", without, missing))
    savers = common_savers()
    for home, name in savers:
        replace_once(home, name, _whole)
    missing = "" if savers or not writes_common_state() else "save_common, the function that writes common.pt"
    without = "common.pt is not replaced as a whole: a rank that ends meanwhile leaves a part, and loads fail"
    return [*pieces, *([Piece("so is common.pt", without, missing)] if savers or missing else []), protect_metadata()]


def _is_local(path: Any) -> bool:
    return isinstance(path, str | os.PathLike) and "://" not in str(path)


def _opening(opener: Callable[..., Any]) -> Callable[..., Any]:
    """Open files as `opener` does, but replace those of `WHOLE_FILES` atomically."""

    def opened(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if mode == "w" and _is_local(path) and os.path.basename(path) in WHOLE_FILES:
            return replacing(path)
        return opener(path, mode, *args, **kwargs)

    return opened


def _whole(save: Callable[..., None]) -> Callable[..., None]:
    """Save into the folder that is the last argument, and replace its files atomically."""

    def saved(*args: Any) -> None:
        *before, folder = args
        if _is_local(folder) and _writes_common_state():
            with filling(Path(folder)) as beside:
                save(*before, str(beside))
        else:
            save(*args)

    return saved


def _writes_common_state() -> bool:
    import torch.distributed as dist

    return dist.get_rank() == 0


def protect_metadata() -> Piece:
    """Delay restarts while torch writes and renames the metadata of a checkpoint, which a single rank does."""
    from torch.distributed.checkpoint import FileSystemWriter

    effect, without = "no restart interrupts torch's metadata", "a restart may cut the metadata that torch writes"
    for kind in FileSystemWriter.__mro__:
        if "finish" in vars(kind):
            replace_once(kind, "finish", _protected)
            return Piece(effect, without)
    return Piece(effect, without, "torch.distributed.checkpoint.FileSystemWriter.finish")


def _protected(finish: Callable[..., Any]) -> Callable[..., Any]:
    def finished(writer: Any, *args: Any, **kwargs: Any) -> Any:
        with section(f"the metadata of {writer.path}"):
            return finish(writer, *args, **kwargs)

    return finished
