"""Atomic checkpoints in folders.

All ranks write a checkpoint into a folder of this attempt; then one rank renames the folder, which commits the
checkpoint. A save that is interrupted or killed leaves a folder that no load considers and that the next attempt
removes before it starts. Each attempt has a folder name of its own, so the files of two attempts never mix, even if a
writer of the first outlives it. The collective part of a save is outside of `CallWrapper.atomic()`: a section that
waits for a lost rank could not be interrupted.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import re
import secrets
import shutil
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nvrx_core.errors import require
from nvrx_core.failpoint import hit
from nvrx_core.inprocess.call.current import interruptions
from nvrx_core.inprocess.wrap import current_call
from nvrx_megatron import internals
from nvrx_megatron.atomic_file import section, synchronise_folder
from nvrx_megatron.manifest import damage, write_manifest

if TYPE_CHECKING:
    import torch.distributed as dist

__all__ = ["AtomicCheckpoint", "Attempt"]

log = logging.getLogger("nvrx_megatron")

_PARTIAL: Final = "partial-"
_NAME: Final = re.compile(r"step-(\d+)-(\d+)")


class AtomicCheckpoint:
    """The checkpoints of a job in one folder, which all ranks share.

    An object may be made once, outside of the function that is called anew after each fault: a restart ends the
    attempts before it. One with a `group` is made within the function, because its group ends with the iteration.

    Example:
        checkpoints = AtomicCheckpoint("/checkpoints/run-1", keep=2)
        if found := checkpoints.latest():
            step, folder = found
            state = dist_checkpointing.load(sharded_state, str(folder))
        ...
        checkpoints.save(step, lambda folder: dist_checkpointing.save(sharded_state, str(folder)))

    Args:
        folder: where the checkpoints are; created if missing.
        keep: how many of the newest checkpoints to keep; None for all.
        group: the process group of the ranks that save; default all.
        checksums: detect damaged files at a load, and not only missing or truncated ones. For this the first rank of
            the group reads all files after they are written and before they are loaded.

    Raises:
        ValueError: when `keep` is below 1.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        keep: int | None = None,
        group: dist.ProcessGroup | None = None,
        *,
        checksums: bool = False,
    ) -> None:
        require(keep is None or keep >= 1, "keep", keep, "at least 1, or None for all")
        self.folder, self.keep, self.group, self.checksums = Path(folder), keep, group, checksums
        self._attempts: weakref.WeakSet[Attempt] = weakref.WeakSet()
        self._apart: Callable[[], dist.ProcessGroup | None] = _no_group

    def latest(self) -> tuple[int, Path] | None:
        """Return the step and the folder of the newest complete checkpoint; None if there is none.

        A collective call if process groups are initialised, so that all ranks load the same one. A damaged checkpoint
        is logged, and the previous one is used.
        """
        found: tuple[int, Path] | None = self._from_leader(self._newest)
        return found

    def _newest(self) -> tuple[int, Path] | None:
        for step, _, folder in reversed(self._complete()):
            if (wrong := damage(folder)) is None:
                return step, folder
            log.warning("checkpoint %s is not used: %s", folder, wrong)
        return None

    def _from_leader(self, find: Callable[[], Any]) -> Any:
        """Run a function on the first rank of the group, and return its result, or raise its error, on all ranks."""
        found: list[Any] = [_outcome(find) if self._leads() else None]
        if _is_initialized():
            import torch.distributed as dist

            dist.broadcast_object_list(found, group_src=0, group=self._group())
        if isinstance(found[0], Exception):
            raise found[0]
        return found[0]

    def save(self, step: int, write: Callable[[Path], object]) -> Path:
        """Save a checkpoint; a collective call of all ranks.

        Args:
            step: its number; the highest is the newest.
            write: writes this rank's part into the given folder, such as `dist_checkpointing.save` or
                `torch.distributed.checkpoint.save` of the whole state.

        Returns:
            The folder of the complete checkpoint.
        """
        attempt = self._begin(step)
        try:
            self._write(write, attempt.folder)
            self._barrier()
            self._from_leader(attempt.commit)
        finally:
            self._attempts.discard(attempt)
        return attempt.target

    def _write(self, write: Callable[[Path], object], folder: Path) -> None:
        """Write this rank's part; an error names the folder and its free space, which writers in C do not.

        An interrupt gets no note: a file system that has gone may hold `statvfs` up, or fail it.
        """
        try:
            write(folder)
        except BaseException as error:  # boundary: a user's save
            if isinstance(error, (Exception, internals.checkpoint_exception())):
                with contextlib.suppress(OSError):
                    free = os.statvfs(self.folder)
                    text = f"whose disk has {free.f_bavail * free.f_frsize} bytes left"
                    error.add_note(f"while {folder} was written, {text}")
            raise

    def begin(self, step: int) -> Attempt:
        """Create the folder of an attempt, for a background save; a collective call of all ranks.

        The next attempt removes the folder if the attempt has failed by then, if a restart has ended it, or if nothing
        refers to it. The first attempt of an iteration creates a process group of gloo, for the calls of this object.
        """
        self._set_apart()
        return self._begin(step)

    def _begin(self, step: int) -> Attempt:
        number, token = self._from_leader(lambda: self._prepare(step))
        attempt = Attempt(self, step, number, token, interruptions())
        self._attempts.add(attempt)
        _hit("checkpoint-write")
        return attempt

    def _prepare(self, step: int) -> tuple[int, str]:
        """Remove the folders of ended attempts, create one for this attempt, and return its number and token."""
        self.folder.mkdir(parents=True, exist_ok=True)
        running = [attempt for attempt in self._attempts if attempt.is_current()]
        for left in set(self.folder.glob(f"{_PARTIAL}*")) - {attempt.folder for attempt in running}:
            shutil.rmtree(left, ignore_errors=True)  # a writer that outlives its attempt may still add a file
        numbers = [
            *(number for at, number, _ in self._complete() if at == step),
            *(attempt.number for attempt in running if attempt.step == step),
        ]
        number, token = 1 + max(numbers, default=-1), secrets.token_hex(4)
        self._partial(step, number, token).mkdir()
        return number, token

    def _partial(self, step: int, number: int, token: str) -> Path:
        return self.folder / f"{_PARTIAL}{_name(step, number)}-{token}"

    def _complete(self) -> list[tuple[int, int, Path]]:
        """Return the complete checkpoints, the newest last: step, attempt, folder."""
        return sorted(_steps(self.folder))

    def _leads(self) -> bool:
        if not _is_initialized():
            return True
        import torch.distributed as dist

        return dist.get_rank(self._group()) == 0

    def _barrier(self) -> None:
        if _is_initialized():
            import torch.distributed as dist

            dist.barrier(group=self._group())

    def _group(self) -> dist.ProcessGroup | None:
        """Return the group for the object's own collectives."""
        apart = self._apart()
        return apart if apart is not None and _is_registered(apart) else self.group

    def _set_apart(self) -> None:
        """Create a group of gloo for the object's own collectives, once in an iteration; a collective call.

        The thread of a background save has collectives in the job's group. Those of the main thread that met them there
        would be in another order on a rank that has written sooner.
        """
        if not _is_initialized() or self._group() is not self.group:
            return
        import torch.distributed as dist

        ranks = None if self.group is None else dist.get_process_group_ranks(self.group)
        self._apart = weakref.ref(dist.new_group(ranks, backend="gloo", use_local_synchronization=ranks is not None))

    def _prune(self) -> None:
        if self.keep is not None:
            for _, _, folder in self._complete()[: -self.keep]:
                shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True, eq=False)
class Attempt:
    """One attempt to save a checkpoint.

    Attributes:
        checkpoints: the checkpoints that it belongs to.
        step: its number.
        number: the number of the checkpoint among those of this step.
        token: makes the name of the folder unique.
        interruptions: how many iterations of wrapped functions had been interrupted in this process when it began.
    """

    checkpoints: AtomicCheckpoint
    step: int
    number: int
    token: str
    interruptions: int

    @property
    def folder(self) -> Path:
        """The folder to write to."""
        return self.checkpoints._partial(self.step, self.number, self.token)

    @property
    def target(self) -> Path:
        """The folder of the complete checkpoint."""
        return self.checkpoints.folder / _name(self.step, self.number)

    def is_current(self) -> bool:
        """Return whether the attempt can be completed: a restart ends it, and the return of the function does not."""
        return self.interruptions == interruptions() and not _is_aborted()

    def commit(self) -> None:
        """Commit the checkpoint; to be called on all ranks after all have written. It waits for no other rank.

        For a background save of Megatron, it is a finalize function:
        `request = dist_checkpointing.save(state, str(attempt.folder), async_sharded_save=True)`, then
        `request.add_finalize_fn(attempt.commit)`.
        """
        if self._was_interrupted() or not self.checkpoints._leads():
            return
        try:
            write_manifest(self.folder, self.checkpoints.checksums)
            with section(f"checkpoint {self.target.name}"):
                synchronise_folder(self.folder)
                _hit("checkpoint-rename")
                self.folder.rename(self.target)
                synchronise_folder(self.checkpoints.folder)
        finally:
            self.checkpoints._attempts.discard(self)
        _hit("checkpoint-marker")
        self.checkpoints._prune()

    def finish(self, future: Future[Any]) -> bool:
        """Wait for a background save of torch (`async_save`), and complete it; a collective call.

        Args:
            future: the return value of `torch.distributed.checkpoint.async_save`.

        Returns:
            Whether the checkpoint is complete; it is not if a restart has ended the attempt, which is logged.

        Raises:
            Exception: the exception of the save; the attempt has ended.
        """
        if self._was_interrupted():
            return False
        self._complete(future)
        return True

    def poll(self, future: Future[Any]) -> bool:
        """Complete a background save of torch if it is done on all ranks, without waiting; a collective call.

        Args:
            future: the return value of `torch.distributed.checkpoint.async_save`.

        Returns:
            Whether the attempt has ended, so that the next save can begin: its checkpoint is complete, or a restart
            has ended it, which is logged.

        Raises:
            Exception: the exception of the save; the attempt has ended.
        """
        if self._was_interrupted():
            return True
        done = _all_ranks(future.done(), self.checkpoints._group())
        if done:
            self._complete(future)
        return done

    def _complete(self, future: Future[Any]) -> None:
        try:
            future.result()
            self.checkpoints._barrier()
            self.checkpoints._from_leader(self.commit)
        finally:
            self.checkpoints._attempts.discard(self)

    def _was_interrupted(self) -> bool:
        if self.is_current():
            return False
        if self in self.checkpoints._attempts:
            self.checkpoints._attempts.discard(self)
            log.warning("the save of step %d is dropped: a restart has ended the iteration that began it", self.step)
        return True


def _outcome(find: Callable[[], Any]) -> Any:
    """Return a function's result, or its error in a form that can be sent to other ranks."""
    try:
        return find()
    except Exception as error:  # boundary: all ranks raise it
        try:
            pickle.loads(pickle.dumps(error))
        except Exception as reason:  # boundary: an exception of any class
            return RuntimeError(f"{type(error).__name__}: {error} (it cannot be sent to other ranks: {reason})")
        return error


def _hit(failpoint: str) -> None:
    call = current_call()
    hit(failpoint, -1 if call is None else call.iteration)


def _name(step: int, number: int) -> str:
    return f"step-{step:08d}-{number}"


def _steps(folder: Path) -> Iterator[tuple[int, int, Path]]:
    with contextlib.suppress(FileNotFoundError):
        for path in folder.iterdir():
            if match := _NAME.fullmatch(path.name):
                yield int(match[1]), int(match[2]), path


def _is_initialized() -> bool:
    """Return whether there are other ranks to agree with.

    Raises:
        RuntimeError: when a restart has aborted the groups: each rank would take itself for the only one.
    """
    import torch.distributed as dist

    if not dist.is_initialized() and _is_aborted():
        raise RuntimeError("a restart has aborted the process groups: the ranks cannot agree on a checkpoint any more")
    return dist.is_initialized()


def _no_group() -> None:
    """A reference to a group that there is not."""


def _is_registered(group: dist.ProcessGroup) -> bool:
    import torch.distributed as dist

    try:
        return dist.get_rank(group) >= 0
    except ValueError:  # a restart, or the user, has ended it
        return False


def _is_aborted() -> bool:
    """Return whether a restart has aborted the groups, and the function goes on, as in a handler or in `atomic()`."""
    from nvrx_core.inprocess.groups.observer import is_aborted

    return is_aborted()


def _all_ranks(truth: bool, group: dist.ProcessGroup | None) -> bool:
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        return truth
    backend = dist.get_backend(group)
    device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")
    flag = torch.tensor([int(truth)], device=device)
    dist.all_reduce(flag, op=dist.ReduceOp.MIN, group=group)
    return bool(flag.item())
