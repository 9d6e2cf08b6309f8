"""The remaining batches of a sampler with a random order, in the same order as before the restart.

Some orders depend on nothing but random generators: the process's own (`shuffle=True` without a `DistributedSampler`,
`WeightedRandomSampler`), or one that the user has given (`generator=`). Their states are saved at the start of an
epoch; an attempt that resumes in this epoch draws its order from these states again.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import torch

from nvrx_lightning.restart.random_state import RandomState

__all__ = ["EpochDraws", "continued_batches", "generators_of", "repeats"]

KEPT: Final = 16
"""Number of epochs whose states are kept."""


class _State:
    """The states of the process's generators and of those passed to a loader."""

    def __init__(self, generators: list[torch.Generator]) -> None:
        self.random = RandomState.now()
        self._given = [each.get_state() for each in generators]

    def restore_given(self, generators: list[torch.Generator]) -> None:
        """Restore the states of the loader's generators."""
        for each, state in zip(generators, self._given, strict=False):
            each.set_state(state)


class EpochDraws:
    """The generator states at the start of each epoch of a fit on this rank, over all attempts."""

    def __init__(self) -> None:
        self._states: OrderedDict[int, _State] = OrderedDict()

    def knows(self, epoch: int) -> bool:
        """Return whether the epoch has begun in this process."""
        return epoch in self._states

    def batches(
        self, epoch: int, make: Callable[[], Iterator[Any]], generators: list[torch.Generator], done: int
    ) -> Iterator[Any]:
        """Yield the batches of an epoch that are not done.

        Args:
            epoch: its number.
            make: creates the iterator over the batches.
            generators: those that the user passed to the loader.
            done: the number of batches to skip.
        """
        present = RandomState.now()
        if (known := self._states.get(epoch)) is not None:
            known.restore_given(generators)
            if done:
                known.random.restore()
        else:
            self._keep(epoch, _State(generators))
        order = make()
        left_out = list(itertools.islice(order, done))
        if left_out:
            present.restore()  # these were drawn before the checkpoint
        yield from order

    def _keep(self, epoch: int, state: _State) -> None:
        self._states[epoch] = state
        while len(self._states) > KEPT:
            self._states.popitem(last=False)


def continued_batches(kind: Any) -> type[Any]:
    """Return a subclass of a batch sampler that skips the completed batches, once."""

    class ContinuedBatches(kind):  # type: ignore[misc]
        nvrx_draws = EpochDraws()
        nvrx_generators: tuple[torch.Generator, ...] = ()
        nvrx_done = 0

        def nvrx_begin(self, draws: EpochDraws, epoch: Callable[[], int], loader: Any) -> None:
            """Begin an attempt, given the number of its epoch."""
            self.nvrx_draws, self.nvrx_epoch, self.nvrx_done = draws, epoch, 0
            self.nvrx_generators = generators_of(loader)

        def __iter__(self) -> Iterator[Any]:
            done, self.nvrx_done = self.nvrx_done, 0
            return self._nvrx_batches(super().__iter__, done)

        def nvrx_repeats(self, length: int) -> bool:
            """Return whether an order of this number of batches is the same each time."""
            make = super().__iter__
            return repeats(lambda: itertools.islice(make(), length), self.nvrx_generators)

        def _nvrx_batches(self, make: Callable[[], Iterator[Any]], done: int) -> Iterator[Any]:
            yield from self.nvrx_draws.batches(self.nvrx_epoch(), make, list(self.nvrx_generators), done)

    return ContinuedBatches


def generators_of(loader: Any) -> tuple[torch.Generator, ...]:
    """Return the generators that the user passed to a loader or to its samplers."""
    batches = getattr(loader, "batch_sampler", None)
    owners = (loader, getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None))
    values = (value for owner in owners for value in getattr(owner, "__dict__", {}).values())
    return tuple({id(each): each for each in values if isinstance(each, torch.Generator)}.values())


def repeats(order: Callable[[], Iterable[Any]], generators: Iterable[torch.Generator] = ()) -> bool:
    """Return whether a sampler repeats its order: else the rest of a new order is not the rest of the old one."""
    given = list(generators)
    before = _State(given)
    try:
        return [repr(each) for each in order()] == [repr(each) for each in order()]
    finally:
        before.random.restore()
        before.restore_given(given)
