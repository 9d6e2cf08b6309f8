"""An order that is drawn from random generators goes on where it was, and draws nothing twice."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from nvrx_lightning.restart.drawn_order import KEPT, EpochDraws, continued_batches, generators_of
from nvrx_lightning.subclassing import become
from torch.utils.data import DataLoader, WeightedRandomSampler


def loader_of(kind: str) -> DataLoader[Any]:
    data: Any = range(32)
    if kind == "weighted":
        return DataLoader(data, 4, sampler=WeightedRandomSampler([1.0] * 32, 32))
    return DataLoader(data, 4, shuffle=True, generator=torch.Generator().manual_seed(3) if kind == "given" else None)


def begin(loader: Any, draws: EpochDraws, epoch: int, done: int = 0) -> None:
    batches = become(loader.batch_sampler, continued_batches)
    batches.nvrx_begin(draws, lambda: epoch, loader)
    batches.nvrx_done = done


@pytest.mark.parametrize("kind", ["process", "weighted", "given"])
def test_an_epoch_goes_on_in_the_order_that_was_drawn(kind):
    torch.manual_seed(1)
    loader, draws = loader_of(kind), EpochDraws()
    begin(loader, draws, 0)
    first = [batch.tolist() for batch in loader]
    begin(loader, draws, 1)
    second = [batch.tolist() for batch in loader]
    after = torch.rand(1)
    torch.manual_seed(9)  # a checkpoint's random numbers
    expected = torch.rand(1)
    torch.manual_seed(9)
    begin(loader, draws, 0, done=3)
    iterator = iter(loader.batch_sampler)
    rest = list(iterator)
    assert rest == first[3:]
    assert torch.rand(1) == expected
    begin(loader, draws, 1, done=1)
    assert [batch.tolist() for batch in loader] == second[1:]
    assert after != expected


def test_a_given_generator_begins_an_epoch_where_it_began_before():
    loader, draws = loader_of("given"), EpochDraws()
    begin(loader, draws, 0)
    whole = [batch.tolist() for batch in loader]
    begin(loader, draws, 0)
    assert [batch.tolist() for batch in loader] == whole
    begin(loader, draws, 1)
    assert [batch.tolist() for batch in loader] != whole


def test_whether_an_order_repeats_is_asked_without_drawing():
    for kind in ("process", "given"):
        loader = loader_of(kind)
        begin(loader, EpochDraws(), 0)
        states = [torch.get_rng_state(), *(each.get_state() for each in generators_of(loader))]
        assert not loader.batch_sampler.nvrx_repeats(len(loader))  # type: ignore[union-attr]
        now = [torch.get_rng_state(), *(each.get_state() for each in generators_of(loader))]
        assert all(torch.equal(*pair) for pair in zip(states, now, strict=True))


def test_the_states_of_the_last_epochs_are_kept():
    draws = EpochDraws()
    for epoch in range(KEPT + 1):
        list(draws.batches(epoch, lambda: iter([]), [], 0))
    assert [draws.knows(epoch) for epoch in (0, 1, KEPT)] == [False, True, True]
