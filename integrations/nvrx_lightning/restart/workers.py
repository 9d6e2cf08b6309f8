"""The random numbers of data loader workers, for random transforms that go on after a restart as before it.

A worker seeds its generators from a number that its loader draws, and its transforms draw from them, batch by batch. So
each worker leaves its states in shared memory after each batch; those that belong to a checkpoint are kept, and the
workers of the attempt that resumes from it begin with them. A worker is ahead of the training: a few of its last states
are there.
"""

from __future__ import annotations

import logging
import pickle
import random
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch.utils.data import DataLoader, get_worker_info

from nvrx_lightning.subclassing import become

__all__ = ["WorkerStates", "detach", "resuming_workers"]

log = logging.getLogger("nvrx_lightning")
KEPT: Final = 16
"""Number of checkpoints and epochs whose states are kept."""
_AHEAD: Final = 6
"""Batches by which a worker is ahead of the training, besides those that its loader prefetches."""
_SLOT: Final = 24 * 1024
"""Bytes for the states of a worker: torch's take 5 KiB, numpy's and Python's 3 KiB each."""

_States = dict[int, bytes]
"""States by the worker that begins with them."""
_Kept = Callable[[], _States]
"""The states of a checkpoint: those with which a worker has begun are there once it has begun."""


class _Ring:
    """The first state and the last states of each worker of one iterator, in shared memory.

    Args:
        workers: their number.
        ahead: batches of a worker that may be ahead of the training.
        begin: the batch of the epoch with which the iterator has begun.
    """

    def __init__(self, workers: int, ahead: int, begin: int) -> None:
        self._slots = torch.zeros((workers, 1 + ahead, _SLOT), dtype=torch.uint8).share_memory_()
        self._drawn = torch.zeros(workers, dtype=torch.bool).share_memory_()
        self.begin = begin

    def write(self, worker: int, batches: int) -> None:
        """Write the states of this process, a worker that has made so many batches."""
        state = _state()
        if len(state) > _SLOT - 8:
            return
        slot, length = self._slot(worker, batches), bytearray(len(state).to_bytes(8, "little"))
        slot[8 : 8 + len(state)] = torch.frombuffer(bytearray(state), dtype=torch.uint8)
        slot[:8] = torch.frombuffer(length, dtype=torch.uint8)  # last: the first state is read once it is there
        if batches:
            self._drawn[worker] |= not torch.equal(self._slot(worker, batches - 1), slot)

    def at(self, batch: int) -> _Kept:
        """Return the states with which the workers begin an iterator that begins with a batch of the epoch.

        A worker that has made none of the batches before it may not have begun yet: its first state is read later. The
        shared memory, of which a container has little, is held until then.
        """
        workers, done = len(self._slots), batch - self.begin
        found, first = _States(), dict[int, int]()
        for worker in range(workers):
            now = (done + worker) % workers
            batches = (done - now + workers - 1) // workers
            if state := self._read(now, batches):
                found[worker] = state
            elif not batches:
                first[worker] = now
        if not first:
            return lambda: found
        return lambda: {**found, **{worker: self._read(now, 0) for worker, now in first.items()}}

    def _slot(self, worker: int, batches: int) -> torch.Tensor:
        slot: torch.Tensor = self._slots[worker, 1 + batches % (self._slots.shape[1] - 1) if batches else 0]
        return slot

    def _read(self, worker: int, batches: int) -> bytes:
        slot = self._slot(worker, batches).numpy().tobytes()
        return slot[8 : 8 + int.from_bytes(slot[:8], "little")]

    @property
    def drawn(self) -> bool:
        """Whether the workers draw random numbers."""
        return bool(self._drawn.any())


class _Recording:
    """A collate function that writes the states of its worker after each batch."""

    def __init__(self, collate: Callable[[Any], Any], ring: _Ring) -> None:
        self._collate, self._ring, self._batches = collate, ring, 0

    def __call__(self, samples: Any) -> Any:
        batch = self._collate(samples)
        if (info := get_worker_info()) is not None:
            self._batches += 1
            self._ring.write(info.id, self._batches)
        return batch


class _Beginning:
    """A function for the start of a worker: the user's, then the states to go on with."""

    def __init__(self, users: Callable[[int], Any] | None, ring: _Ring, states: _States) -> None:
        self._users, self._ring, self._states = users, ring, states

    def __call__(self, worker: int) -> None:
        if self._users is not None:
            self._users(worker)
        if self._states.get(worker):
            _restore(self._states[worker])
        self._ring.write(worker, 0)


def _state() -> bytes:
    numpy = sys.modules.get("numpy")
    return pickle.dumps(
        (random.getstate(), torch.get_rng_state().numpy().tobytes(), numpy and numpy.random.get_state())
    )


def _restore(state: bytes) -> None:
    python, cpu, numpy = pickle.loads(state)
    random.setstate(python)
    torch.set_rng_state(torch.frombuffer(bytearray(cpu), dtype=torch.uint8))
    if numpy is not None and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(numpy)


class WorkerStates:
    """The states of a training loader's workers at the checkpoints of a fit, on this rank."""

    def __init__(self) -> None:
        self._ring: _Ring | None = None  # None as well where a batch's number does not tell how many a worker has made
        self._saved: OrderedDict[str, _Kept] = OrderedDict()
        self._seeds: OrderedDict[int, torch.Tensor] = OrderedDict()
        self._resumed: _States = {}
        self._left = self._drawn = self._warned = False

    def keep(self, token: str, batch: int) -> None:
        """Keep the states for a checkpoint, by its token, whose training resumes with a batch of the epoch."""
        if self._ring is not None:
            self._saved[token] = self.now(batch)
            while len(self._saved) > KEPT:
                self._saved.popitem(last=False)

    def now(self, batch: int) -> _Kept:
        """Return the states for a training that resumes with a batch of the epoch."""
        if self._ring is None:
            return _States
        self._drawn = self._ring.drawn
        return self._ring.at(batch)

    def resume(self, token: str | None) -> None:
        """Resume from a checkpoint."""
        self.go_on(self._saved.get(token or "", _States))

    def go_on(self, kept: _Kept) -> None:
        """Resume with these states."""
        self._resumed = kept()

    def begin_attempt(self) -> None:
        """Begin an attempt, without a checkpoint until one is loaded."""
        self._drawn = self._drawn or (self._ring is not None and self._ring.drawn)
        self._ring, self._resumed = None, {}

    def follow(self, loader: Any, epoch: Callable[[], int], resumed: tuple[int, int, bool]) -> None:
        """Follow the workers of a training loader, and the generator from which it draws their seed.

        Args:
            loader: the loader.
            epoch: returns the number of the epoch.
            resumed: the epoch that is resumed, its first batch, and whether batches are left.
        """
        if isinstance(loader, DataLoader) and (loader.num_workers > 0 or loader.generator is not None):
            self._left = resumed[2]
            following: Any = become(loader, resuming_workers)
            following.nvrx_begin(self, epoch, resumed)

    def iterate(self, loader: Any, epoch: int, begin: int, make: Callable[[], Any]) -> Any:
        """Return an iterator over an epoch's batches, from the batch `begin` on, which may be the end.

        The workers of an iterator that begins anew in the middle are seeded as those at the beginning were, and so
        are persistent workers, in whichever epoch: the number is drawn from a copy of the generator.
        """
        persists, self._ring = loader.persistent_workers, None
        if persists and loader._iterator is not None:
            return make()
        given, states, key = loader.generator, self._resumed, 0 if persists else epoch
        self._resumed = {}
        again = key in self._seeds and (begin > 0 or (persists and epoch > 0))
        if not again:
            self._seeds[key] = (torch.default_generator if given is None else given).get_state()
        while len(self._seeds) > KEPT:
            self._seeds.popitem(last=False)
        collate, users = loader.collate_fn, loader.worker_init_fn
        try:
            if again:
                loader.generator = torch.Generator()
                loader.generator.set_state(self._seeds[key])
                if self._drawn and not states and (self._left or not begin):
                    self._warn()
            if loader.num_workers > 0:
                self._ring = _Ring(loader.num_workers, loader.prefetch_factor + _AHEAD, begin)
                loader.collate_fn = _Recording(collate, self._ring)
                loader.worker_init_fn = _Beginning(users, self._ring, states if again else {})
            return make()
        finally:
            loader.collate_fn, loader.worker_init_fn, loader.generator = collate, users, given

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "the random numbers of the data loader's workers begin anew, so that random transforms differ from a "
                "run without the fault: those of persistent workers are known in their first epoch only, and those of "
                "a rank that has not seen the checkpoint saved are not; set persistent_workers=False"
            )


def detach(loader: Any) -> None:
    """Let a loader that an earlier attempt has followed be iterated for itself."""
    if hasattr(loader, "nvrx_states"):
        loader.nvrx_states = None


def resuming_workers(kind: Any) -> type[Any]:
    """Return a subclass of a `DataLoader` whose workers go on with their random numbers."""

    class ResumingWorkers(kind):  # type: ignore[misc]
        def nvrx_begin(self, states: WorkerStates, epoch: Callable[[], int], resumed: tuple[int, int, bool]) -> None:
            """Begin an attempt."""
            self.nvrx_states, self.nvrx_epoch, self.nvrx_resumed = states, epoch, resumed

        def __iter__(self) -> Iterator[Any]:
            if self.nvrx_states is None:
                return super().__iter__()
            epoch, (resumed, batch, _) = self.nvrx_epoch(), self.nvrx_resumed
            self.nvrx_resumed = -1, 0, False
            begin = batch if epoch == resumed else 0
            iterator: Iterator[Any] = self.nvrx_states.iterate(self, epoch, begin, super().__iter__)
            return iterator

    return ResumingWorkers
