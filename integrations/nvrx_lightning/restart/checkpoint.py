"""Checkpoints: written without interruption, found again, and agreed on by all ranks.

A write lies in an atomic section of the wrapper; the collectives around it (gathers, barriers) do not, as a rank may
have left already. Which file is the newest is known from the saves themselves, so that it holds for every callback and
every `CheckpointIO`. A file counts when it is whole, and all ranks can see it.
"""

from __future__ import annotations

import json
import logging
import threading
import zipfile
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from fsspec.core import url_to_fs  # type: ignore[import-untyped]

from nvrx_core.fault.exceptions import text_of
from nvrx_core.inprocess import current_call

__all__ = ["Saved", "SavedCheckpoints", "agree", "atomic_writes", "is_whole", "newest_in", "step_in"]

log = logging.getLogger("nvrx_lightning")
CONSIDERED: Final = 8
"""How many of the newest checkpoints are considered."""


def atomic() -> AbstractContextManager[object]:
    """Return the atomic section of the wrapped call; nothing outside of one, or in another thread."""
    call = current_call()
    if call is None or threading.current_thread() is not threading.main_thread():
        return nullcontext()
    return call.atomic()


def atomic_writes(kind: Any) -> type[Any]:
    """Return a subclass of a `CheckpointIO`: no restart interrupts its writes."""

    class AtomicWrites(kind):  # type: ignore[misc]
        def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
            with atomic():
                super().save_checkpoint(*args, **kwargs)

        def remove_checkpoint(self, *args: Any, **kwargs: Any) -> None:
            with atomic():
                super().remove_checkpoint(*args, **kwargs)

    return AtomicWrites


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was saved: its path, and the global step of its contents."""

    path: str
    step: int


class SavedCheckpoints:
    """What the fit has saved, as this rank knows it. Weights alone are none: an optimizer cannot go on from them."""

    def __init__(self) -> None:
        self._saved: dict[str, Saved] = {}
        self._unusable = set[str]()

    def saving(self, path: object, step: int) -> None:
        """Note a checkpoint that is about to be written: a file is there once it is whole.

        The parts of a sharded one are replaced one by one, so it counts when all of them are written.
        """
        if Path(str(path)).is_dir():
            self.removed(path)
        else:
            self.saved(path, step)

    def saved(self, path: object, step: int) -> None:
        """Note a checkpoint; a path that is written again counts as new."""
        self._saved.pop(str(path), None)
        self._saved[str(path)] = Saved(str(path), step)
        self._unusable.discard(str(path))

    def removed(self, path: object) -> None:
        """Forget a checkpoint."""
        self._saved.pop(str(path), None)

    def failed_to_load(self, path: object, error: BaseException) -> None:
        """Never load this one again."""
        log.error("checkpoint %s cannot be loaded, an older one is used: %s", path, text_of(error))
        self._unusable.add(str(path))

    def newest(self) -> list[Saved]:
        """Return what was saved last, the last one first."""
        usable = [each for each in self._saved.values() if each.path not in self._unusable]
        return list(reversed(usable))[:CONSIDERED]

    def can_see(self, path: str) -> bool:
        """Return whether this rank can load it, as far as it knows."""
        return path not in self._unusable and _exists(path)


def agree(store: Any, rank: int, world_size: int, saved: SavedCheckpoints) -> str | None:
    """Choose the checkpoint that all ranks load: the newest one that is whole and that all of them see.

    Args:
        store: the iteration's, empty at its start.
        rank: of this process in the iteration.
        world_size: of the iteration.
        saved: what this rank knows.

    Returns:
        Its path; None when there is none.
    """
    store = torch.distributed.PrefixStore("nvrx_lightning", store)
    store.set(f"saved/{rank}", json.dumps([(each.path, each.step) for each in saved.newest()]))
    if rank != 0:
        offered = json.loads(store.get("offered"))
        store.set(f"seen/{rank}", json.dumps([saved.can_see(path) for path in offered]))
        return json.loads(store.get("chosen")) or None
    offered = [path for path in _saved_by_any(store, world_size) if saved.can_see(path) and is_whole(path)]
    store.set("offered", json.dumps(offered))
    chosen = _seen_by_all(store, world_size, offered) if offered else ""
    store.set("chosen", json.dumps(chosen))
    return chosen or None


def _saved_by_any(store: Any, world_size: int) -> list[str]:
    """Return what any rank has saved, newest first: rank 0 may have waited in reserve until this iteration."""
    lists = _answers(store, [f"saved/{rank}" for rank in range(world_size)])
    steps = {path: step for each in lists for path, step in each}
    if len(steps) > 1:
        steps = {path: step_in(path, step) for path, step in steps.items()}
    return sorted(steps, key=lambda path: -steps[path])[:CONSIDERED]


def _answers(store: Any, keys: list[str]) -> list[Any]:
    if not keys:
        return []
    store.wait(keys)
    return [json.loads(answer) for answer in store.multi_get(keys)]


def _seen_by_all(store: Any, world_size: int, offered: list[str]) -> str:
    seen = _answers(store, [f"seen/{rank}" for rank in range(1, world_size)])
    for number, path in enumerate(offered):
        if all(each[number] for each in seen):
            return path
    log.warning("no checkpoint of %s is visible on all ranks: checkpoints must lie on a shared file system", offered)
    return ""


def is_whole(path: str) -> bool:
    """Return whether a local checkpoint is complete, as far as its structure tells; others are believed."""
    local = Path(path.removeprefix("file://"))
    if not local.exists():
        return _exists(path)
    parts = (local / ".metadata", local / "meta.pt") if local.is_dir() else (local,)
    return all(part.is_file() and _has_directory(part) for part in parts if part.suffix != "" or local.is_dir())


def _has_directory(file: Path) -> bool:
    """A file that torch writes is a zip archive, whose directory is at its end; another format is believed."""
    with file.open("rb") as opened:
        begins = opened.read(4)
    if begins != b"PK\x03\x04":
        return file.stat().st_size > 0
    return zipfile.is_zipfile(file)


def step_in(path: str, otherwise: int) -> int:
    """Return the global step of a checkpoint's contents: a path that is written again may still have the older ones."""
    local = Path(path.removeprefix("file://"))
    file = local / "meta.pt" if local.is_dir() else local
    with suppress(Exception):  # boundary: another format, whose step is the one it was saved at
        return int(torch.load(file, map_location="cpu", mmap=True, weights_only=False)["global_step"])
    return otherwise


def _exists(path: str) -> bool:
    files, local = url_to_fs(path)
    return bool(files.exists(local))


def newest_in(folders: Iterable[Path]) -> list[str]:
    """Return the checkpoints of a run's folders that are whole, newest first."""
    found = [each for folder in folders if folder.is_dir() for each in folder.glob("*.ckpt") if is_whole(str(each))]
    by_age = sorted(found, key=lambda each: -each.stat().st_mtime_ns)
    return [str(each) for each in by_age[:CONSIDERED] if _can_resume(each)]


def _can_resume(checkpoint: Path) -> bool:
    """Return whether there is more in it than weights; one in another format is believed."""
    if checkpoint.is_dir():
        return True
    with suppress(Exception):  # boundary: another format
        return "optimizer_states" in torch.load(checkpoint, map_location="cpu", mmap=True, weights_only=False)
    return True
