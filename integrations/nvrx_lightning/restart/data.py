"""The position in an epoch, saved in samples, so that a smaller world resumes where the larger one stopped.

A `DistributedSampler` distributes the sample order of an epoch round-robin over its replicas. After some batches, the
replicas together have consumed a prefix of that order, whatever their number. So an epoch is resumed by distributing
the rest of the order over the remaining replicas: each sample is seen once, except for the padding that the sampler
adds at the end anyway. No data is loaded and discarded.

Lightning counts the batches of one replica. After the loss of a rank this number changes, so it is converted.
"""

from __future__ import annotations

import copy
import logging
import math
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Self

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset

from nvrx_lightning.restart.drawn_order import EpochDraws, continued_batches, generators_of, repeats
from nvrx_lightning.subclassing import become

__all__ = ["Position", "TrainData", "batches_left", "begins_epoch", "epoch_order"]

log = logging.getLogger("nvrx_lightning")
DRAWN: Final = "its sampler draws another order each time"


@dataclass(frozen=True)
class Position:
    """The position in an epoch at which a checkpoint was saved.

    Attributes:
        replicas: the number of replicas over which the data was distributed.
        batches: the number of batches of the epoch that each replica had processed.
        length: the number of batches of the epoch for each replica.
        samples: the number of samples of the epoch that all replicas together had consumed; None if unknown.
    """

    replicas: int
    batches: int
    length: int
    samples: int | None = None

    def written(self) -> dict[str, int | None]:
        """Return the form that a checkpoint stores."""
        return asdict(self)

    @property
    def ended(self) -> bool:
        """Whether all batches of the epoch had been processed."""
        return self.batches >= self.length > 0

    @classmethod
    def read(cls, written: object) -> Self | None:
        """Return the position in a checkpoint; None in one that has none."""
        if not isinstance(written, dict):
            return None
        try:
            return cls(**{each.name: written[each.name] for each in fields(cls)})
        except KeyError:
            return None


@dataclass(frozen=True)
class _Start:
    """The start of the resumed epoch: its number, the samples consumed before, the batches that count as done."""

    epoch: int
    samples: int
    batches: int


def epoch_order(kind: Any) -> type[Any]:
    """Return a subclass of a `DistributedSampler` that yields the rest of one epoch, and the others in full."""

    class EpochOrder(kind):  # type: ignore[misc]
        nvrx_start: _Start | None = None
        nvrx_plain = kind.__iter__ is DistributedSampler.__iter__

        def nvrx_begin(self, replicas: int, rank: int, start: _Start | None) -> None:
            """Set the replicas, and the epoch that is resumed in the middle."""
            self.nvrx_start = start
            if (self.num_replicas, self.rank) != (replicas, rank):
                order = self.shuffle, self.seed, self.drop_last
                DistributedSampler.__init__(self, self.dataset, replicas, rank, *order)
            if start is not None:
                self.set_epoch(start.epoch)

        def __iter__(self) -> Iterator[Any]:
            start = self.nvrx_start
            if start is None or not start.samples or self.epoch != start.epoch:
                return super().__iter__()  # type: ignore[no-any-return]
            order = _whole_order(self)
            end = self.total_size if self.drop_last else len(order)
            rest = _dealt(order, order[start.samples : end], self.num_replicas, drop_last=self.drop_last)
            return iter(rest[self.rank :: self.num_replicas])

    return EpochOrder


def _whole_order(sampler: Any) -> list[Any]:
    """Return the order of the epoch for all replicas, as the sampler creates it for a single one."""
    whole = copy.copy(sampler)
    whole.nvrx_start, whole.num_replicas, whole.rank = None, 1, 0
    whole.num_samples = whole.total_size = len(sampler.dataset)
    return list(whole)


def _dealt(order: list[Any], rest: list[Any], replicas: int, *, drop_last: bool) -> list[Any]:
    """Return the rest of an order, padded or cut to a multiple of the number of replicas."""
    if drop_last:
        return rest[: len(rest) // replicas * replicas]
    padding = -len(rest) % replicas
    return rest + (order * math.ceil(padding / max(1, len(order))))[:padding]


def batches_left(sampler: Any, samples: int, batch_size: int, *, drop_last: bool) -> int:
    """Return the number of batches left for each replica of a sampler after `samples` of the epoch were consumed."""
    replicas, total = int(sampler.num_replicas), len(sampler.dataset)
    if sampler.drop_last:
        each = max(0, min(total, sampler.total_size) - samples) // replicas
    else:
        each = math.ceil(max(0, total - samples) / replicas)
    return int(each // batch_size if drop_last else math.ceil(each / batch_size))


def begins_epoch(trainer: Any, resumed: Position | None, *, exactly: bool) -> bool:
    """Return whether an attempt starts with the first batch of a new epoch.

    Lightning ends the epoch itself when the checkpoint is from the hook after its last batch, which had not completed.

    Args:
        trainer: its counters are those of the checkpoint.
        resumed: the position in the checkpoint.
        exactly: the batch or epoch in which the checkpoint was saved is finished first.
    """
    epoch, batch = trainer.fit_loop.epoch_progress.current, trainer.fit_loop.epoch_loop.batch_progress.current
    if epoch.started == epoch.processed:
        return True
    return not exactly and resumed is not None and resumed.ended and bool(batch.completed < batch.processed)


class TrainData:
    """The training data of one attempt.

    Args:
        replicas: the number of replicas over which the data is distributed.
        rank: the replica of this process.
        resumed: the position in the checkpoint that the attempt resumes from; None without a checkpoint.
        exactly: finish an epoch whose batches are all done; else Lightning begins the next one.
        draws: the generator states with which the epochs of the fit began; None in the first attempt.
    """

    def __init__(
        self, replicas: int, rank: int, resumed: Position | None, *, exactly: bool = False,
        draws: EpochDraws | None = None,
    ) -> None:  # fmt: skip
        self._replicas, self._rank, self._resumed, self._exactly = replicas, rank, resumed, exactly
        self._draws = draws if draws is not None else EpochDraws()
        self._start: _Start | None = None
        self._loader: Any = None
        self._setup = 0
        self._skipped = -1, 0, False

    def prepare(self, loader: Any, trainer: Any, *, setup: int, resuming: bool) -> None:
        """Make a training loader begin where the checkpoint was saved, and correct Lightning's counters.

        Args:
            loader: the loader, with the sampler that Lightning has put into it.
            trainer: its counters are those of the checkpoint.
            setup: the number of the set-up of the training data, counted from 1; each asks for all loaders.
            resuming: a checkpoint was loaded in this attempt.
        """
        setup, self._setup = self._setup, setup
        if self._setup == setup:
            self._refuse("it is one of several")
            return
        if reason := _foreign(loader):
            if resuming:
                _set_epoch(loader, trainer.fit_loop.epoch_progress.current.processed)
                self._refuse(reason)
            return
        self._loader = loader
        sampler = _sampler_of(loader)
        if sampler is None:
            self._skip(loader, trainer, resuming=resuming)
            return
        become(sampler, epoch_order).nvrx_begin(self._replicas, self._rank, None)
        if resuming:
            self._start = self._resume(loader, sampler, trainer)
            sampler.nvrx_begin(self._replicas, self._rank, self._start)
            if self._start.batches and not (
                sampler.nvrx_plain or repeats(lambda: _whole_order(sampler), generators_of(loader))
            ):
                self._refuse(DRAWN)
            else:
                _silence()

    def position(self, trainer: Any, *, further: int = 0) -> Position:
        """Return the current position, for a checkpoint; `further` batches count as processed."""
        loop, length = trainer.fit_loop, trainer.num_training_batches
        batches = loop.epoch_loop.batch_progress.current.processed + further
        length = int(length) if length != math.inf else 0
        return Position(self._replicas, batches, length, self._samples(loop, batches))

    def resumed(self, loader: Any) -> tuple[int, int, bool]:
        """Return the epoch in which a loader is resumed, its first batch there, and whether batches are left.

        The epoch of a loader that is not resumed is -1.
        """
        if loader is not self._loader:
            return -1, 0, False
        if self._start is None:
            return self._skipped
        return self._start.epoch, self._start.batches, self._start.samples < len(loader.sampler.dataset)

    def _samples(self, loop: Any, batches: int) -> int | None:
        size = getattr(self._loader, "batch_size", None)
        if size is None or _sampler_of(self._loader) is None:
            return None
        start = self._start
        if start is None or start.epoch != loop.epoch_progress.current.processed:
            return batches * int(size) * self._replicas
        return start.samples + (batches - start.batches) * int(size) * self._replicas

    def _resume(self, loader: Any, sampler: Any, trainer: Any) -> _Start:
        """Find the resumed epoch and its start, and correct the counters."""
        loop, length = trainer.fit_loop, _limited(len(loader), trainer.limit_train_batches)
        epoch, current = loop.epoch_progress.current, loop.epoch_loop.batch_progress.current
        if epoch.started == epoch.processed:
            return _Start(epoch.processed, 0, 0)
        saved = self._resumed or Position(self._replicas, current.processed, length)
        if current.processed >= saved.length > 0:
            _shift(current, length - current.processed)
            if self._exactly:
                return _Start(epoch.processed, len(sampler.dataset) + self._replicas, length)
            return _Start(epoch.processed + 1, 0, 0)
        # Up to the last optimizer step: a checkpoint has no gradients accumulated since.
        done = current.processed - current.processed % max(1, int(trainer.accumulate_grad_batches))
        samples = self._consumed(saved, done, int(loader.batch_size))
        if saved.replicas != self._replicas:
            left = batches_left(sampler, samples, int(loader.batch_size), drop_last=loader.drop_last)
            done = max(0, length - left)
        _shift(current, done - current.processed)
        return _Start(epoch.processed, samples, done)

    def _consumed(self, saved: Position, done: int, batch_size: int) -> int:
        """Return the number of samples consumed; those of batches without an optimizer step yet are seen again."""
        if saved.samples is None:
            return done * batch_size * saved.replicas
        return saved.samples - (saved.batches - done) * batch_size * saved.replicas

    def _skip(self, loader: Any, trainer: Any, *, resuming: bool) -> None:
        """Skip the completed batches of a batch sampler without replicas, if each replica has its batches as before."""
        loop = trainer.fit_loop
        epoch, current = loop.epoch_progress.current, loop.epoch_loop.batch_progress.current
        try:
            batches: Any = become(loader.batch_sampler, continued_batches)
        except TypeError:  # a list of batches, or a class with slots
            self._loader = None
            if resuming:
                _set_epoch(loader, epoch.processed)
                self._refuse(f"its batch sampler is a {type(loader.batch_sampler).__name__}")
            return
        batches.nvrx_begin(self._draws, lambda: epoch.processed, loader)
        if not resuming:
            return
        ended = not self._exactly and epoch.started > epoch.processed and current.processed >= len(loader)
        _set_epoch(loader, epoch.processed + ended)
        if ended or epoch.started == epoch.processed:
            return
        if self._resumed is not None and self._resumed.replicas != self._replicas:
            self._refuse("its batches are made by a sampler of its own")
        elif self._draws.knows(epoch.processed) or batches.nvrx_repeats(len(loader)):
            batches.nvrx_done = current.processed
            left = current.processed < _limited(len(loader), trainer.limit_train_batches)
            self._skipped = epoch.processed, current.processed, left
            _silence()
        else:
            self._refuse(DRAWN)

    def _refuse(self, reason: str) -> None:
        if self._start is not None:
            _sampler_of(self._loader).nvrx_begin(self._replicas, self._rank, None)
        self._loader = self._start = None
        if self._rank == 0:
            log.warning(
                "the training data is not continued exactly: nvrx leaves the position of this loader to the loader "
                "itself (%s). After a restart in the middle of an epoch, samples may be seen twice or not at all, "
                "unless the loader has state_dict() and load_state_dict()", reason,
            )  # fmt: skip


def _foreign(loader: Any) -> str:
    """Return why a loader is not resumed, "" if it is."""
    if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict"):
        return "it has a state of its own"
    if not isinstance(loader, DataLoader):
        return f"it is a {type(loader).__name__} and no torch DataLoader"
    if isinstance(loader.dataset, IterableDataset):
        return "its data set is iterable"
    if _sampler_of(loader) is None and loader.batch_sampler is None:
        return f"its sampler is a {type(loader.sampler).__name__}"
    return ""


def _sampler_of(loader: Any) -> Any:
    """Return the loader's `DistributedSampler`, if its batches are formed by a plain `BatchSampler`; else None."""
    batches = getattr(loader, "batch_sampler", None)
    if type(batches) is not BatchSampler or not isinstance(loader.sampler, DistributedSampler):
        return None
    return loader.sampler


def _silence() -> None:
    """Suppress Lightning's warning about a loader without state, for this fit, which needs none."""
    warnings.filterwarnings("ignore", "You're resuming from a checkpoint that ended before the epoch ended")


def _set_epoch(loader: Any, epoch: int) -> None:
    """Set the epoch before the loader is iterated: Lightning sets it after its workers start (issue 21938)."""
    batches = getattr(loader, "batch_sampler", None)
    for sampler in (getattr(loader, "sampler", None), getattr(batches, "sampler", None)):
        if callable(begin := getattr(sampler, "set_epoch", None)):
            begin(epoch)


def _limited(length: int, limit: float | None) -> int:
    """Return the number of batches of an epoch under `limit_train_batches`."""
    if limit is None:
        return length
    return min(length, limit) if isinstance(limit, int) else int(length * limit)


def _shift(current: Any, by: int) -> None:
    """Shift the counters of the epoch's batches."""
    for name in ("ready", "started", "processed", "completed"):
        setattr(current, name, getattr(current, name) + by)
