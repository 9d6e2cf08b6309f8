"""Checkpoints: written atomically, found again, and agreed on by all ranks.

A write runs in an atomic section of the wrapper. The collectives around it (gathers, barriers) do not, because a peer
may have left. The saves themselves record which file is the newest, so the record covers every callback and every
`CheckpointIO`. A file counts if it is complete and visible to all ranks.
"""

from __future__ import annotations

import json
import logging
import threading
import zipfile
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from fsspec.core import url_to_fs  # type: ignore[import-untyped]

from nvrx_core.fault.exceptions import text_of
from nvrx_core.inprocess import current_call

__all__ = ["Saved", "SavedCheckpoints", "agree", "atomic", "atomic_writes", "is_whole", "newest_in", "step_in"]

log = logging.getLogger("nvrx_lightning")
CONSIDERED: Final = 8
"""How many of the newest checkpoints are considered."""
WRITES: Final = 3
"""How many writes of a path are remembered."""
EXAMINED: Final = 64
"""In how many of the newest files of a folder the job is looked for."""


def atomic() -> AbstractContextManager[object]:
    """Return the atomic section of the wrapped call; a null context outside of a call or in another thread."""
    call = current_call()
    if call is None or threading.current_thread() is not threading.main_thread():
        return nullcontext()
    return call.atomic()


def atomic_writes(kind: Any) -> type[Any]:
    """Return a subclass of a `CheckpointIO` whose writes no restart interrupts."""

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
    """A saved checkpoint: its path, and the global step of its contents."""

    path: str
    step: int


class SavedCheckpoints:
    """The checkpoints that this rank knows. Files of weights alone do not count: no optimizer can resume from them."""

    def __init__(self) -> None:
        self._saved: dict[str, Saved] = {}
        self._unusable = set[str]()
        self._failed: tuple[str, str] | None = None
        self._tokens: dict[str, deque[str]] = {}
        self._written: dict[str, int] = {}

    def writing(self, path: object, step: int) -> None:
        """Note a file of any kind, with its global step."""
        self._written[str(path)] = step

    def later_than(self, step: int) -> frozenset[str]:
        """Return the files that this rank has seen written at a later global step."""
        return frozenset(path for path, at in self._written.items() if at > step)

    @property
    def tokens(self) -> set[str]:
        """The tokens of what may be in the files, the last writes of which may have failed."""
        return {token for tokens in self._tokens.values() for token in tokens}

    def saving(self, path: object, step: int, token: str = "") -> None:
        """Note a checkpoint that is about to be written: a single file appears only when it is complete.

        The shards of a sharded checkpoint are replaced one by one, so it counts once all of them are written.

        Args:
            path: its path.
            step: the global step.
            token: of the states that this process keeps for it.
        """
        self._tokens.setdefault(str(path), deque(maxlen=WRITES)).append(token)
        if Path(str(path)).is_dir():
            self._saved.pop(str(path), None)
        else:
            self.saved(path, step)

    def saved(self, path: object, step: int) -> None:
        """Note a saved checkpoint; a path that is written again counts as new."""
        self._saved.pop(str(path), None)
        self._saved[str(path)] = Saved(str(path), step)
        self._unusable.discard(str(path))

    def found(self, others: Iterable[Saved]) -> None:
        """Note checkpoints that another rank knows: it may be lost before the next one is saved."""
        self._saved = {each.path: each for each in others if each.path not in self._saved} | self._saved

    def removed(self, path: object) -> None:
        """Forget a checkpoint."""
        for known in (self._saved, self._tokens, self._written):
            known.pop(str(path), None)

    def failed_to_load(self, path: object, error: BaseException) -> None:
        """Note that it could not be loaded in this attempt."""
        self._failed = str(path), text_of(error)

    def attempt_ended(self, *, by_this_rank: bool) -> None:
        """Never load again what could not be loaded, unless another rank's fault has interrupted it.

        Args:
            by_this_rank: the attempt was ended by a fault of this rank.
        """
        failed, self._failed = self._failed, None
        if failed is not None and by_this_rank:
            log.error("checkpoint %s cannot be loaded, an older one is used: %s", *failed)
            self._unusable.add(failed[0])

    def newest(self) -> list[Saved]:
        """Return the newest checkpoints, the last one first."""
        usable = [each for each in self._saved.values() if each.path not in self._unusable]
        return list(reversed(usable))[:CONSIDERED]

    def can_see(self, path: str) -> bool:
        """Return whether this rank can load the checkpoint, as far as it knows."""
        return path not in self._unusable and _exists(path)


def agree(store: Any, rank: int, world_size: int, saved: SavedCheckpoints) -> str | None:
    """Choose the checkpoint that all ranks load: the newest one that is complete and visible to all of them.

    Args:
        store: the store of the iteration, empty at its start.
        rank: of this process in the iteration.
        world_size: of the iteration.
        saved: the checkpoints that this rank knows; afterwards those that any rank knew, too.

    Returns:
        Its path; None when there is none.
    """
    store = torch.distributed.PrefixStore("nvrx_lightning", store)
    store.set(f"saved/{rank}", json.dumps([(each.path, each.step) for each in saved.newest()]))
    if rank != 0:
        told = [Saved(*each) for each in json.loads(store.get("offered"))]
        store.set(f"seen/{rank}", json.dumps([saved.can_see(each.path) for each in told]))
        saved.found(told)
        return json.loads(store.get("chosen")) or None
    told = [each for each in _saved_by_any(store, world_size) if saved.can_see(each.path) and is_whole(each.path)]
    store.set("offered", json.dumps([(each.path, each.step) for each in told]))
    saved.found(told)
    chosen = _seen_by_all(store, world_size, [each.path for each in told]) if told else ""
    store.set("chosen", json.dumps(chosen))
    return chosen or None


def _saved_by_any(store: Any, world_size: int) -> list[Saved]:
    """Return the checkpoints of all ranks, newest first: rank 0 may have been a spare until this iteration."""
    lists = _answers(store, [f"saved/{rank}" for rank in range(world_size)])
    steps = {path: step for each in lists for path, step in each}
    if len(steps) > 1:
        steps = {path: step_in(path, step) for path, step in steps.items()}
    return [Saved(path, steps[path]) for path in sorted(steps, key=lambda path: -steps[path])[:CONSIDERED]]


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
    """Return whether a local checkpoint is complete, judged by its structure; a remote one is assumed to be."""
    local = Path(path.removeprefix("file://"))
    if not local.exists():
        return _exists(path)
    parts = (local / ".metadata", local / "meta.pt") if local.is_dir() else (local,)
    return all(part.is_file() and _has_directory(part) for part in parts if part.suffix != "" or local.is_dir())


def _has_directory(file: Path) -> bool:
    """Return whether torch's zip archive has its directory, at its end; a file of another format passes."""
    with file.open("rb") as opened:
        begins = opened.read(4)
    if begins != b"PK\x03\x04":
        return file.stat().st_size > 0
    return zipfile.is_zipfile(file)


def step_in(path: str, otherwise: int) -> int:
    """Return the global step of a checkpoint's contents: a path to be rewritten may still have the old contents."""
    local = Path(path.removeprefix("file://"))
    file = local / "meta.pt" if local.is_dir() else local
    with suppress(Exception):  # boundary: another format, whose step is the one it was saved at
        return int(torch.load(file, map_location="cpu", mmap=True, weights_only=False)["global_step"])
    return otherwise


def _exists(path: str) -> bool:
    files, local = url_to_fs(path)
    return bool(files.exists(local))


def newest_in(folders: Iterable[Path], refusal: Callable[[dict[str, Any]], str]) -> tuple[list[str], list[str]]:
    """Return the complete checkpoints in a run's folders that can be resumed, newest first.

    Args:
        folders: where they are.
        refusal: returns why a checkpoint with these contents does not count, "" if it does.

    Returns:
        Those that count, and of the others the path and the reason.
    """
    files = dict[Path, int]()
    for each in (each for folder in folders if folder.is_dir() for each in folder.glob("*.ckpt")):
        with suppress(OSError):  # it is being removed, or not readable
            if is_whole(str(each)):
                files[each] = each.stat().st_mtime_ns
    taken, refused = list[str](), list[str]()
    for each in sorted(files, key=lambda each: -files[each])[:EXAMINED]:
        contents = _contents(each)
        if contents is None:
            refused.append(f"{each}, in a format that nvrx cannot read")
        elif not (each.is_dir() or "optimizer_states" in contents):
            refused.append(f"{each}, of weights alone")
        elif reason := refusal(contents):
            refused.append(f"{each}, {reason}")
        else:
            taken.append(str(each))
    return taken[:CONSIDERED], refused


def _contents(checkpoint: Path) -> dict[str, Any] | None:
    """Return the contents of a checkpoint, without reading its tensors; None for another format."""
    file = checkpoint / "meta.pt" if checkpoint.is_dir() else checkpoint
    with suppress(Exception):  # boundary: another format
        loaded = torch.load(file, map_location="cpu", mmap=True, weights_only=False)
        return loaded if isinstance(loaded, dict) else None
    return None
