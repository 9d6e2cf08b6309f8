"""The rest of an epoch is dealt out to any number of ranks, each sample once."""

from __future__ import annotations

import itertools
import warnings
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from nvrx_lightning.restart.data import Position, TrainData, batches_left, begins_epoch, epoch_order
from nvrx_lightning.subclassing import become
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler, SequentialSampler


def loader_of(samples: int, replicas: int, rank: int, batch: int = 4, **options: Any) -> DataLoader[Any]:
    sampler = DistributedSampler(range(samples), replicas, rank, seed=3)  # type: ignore[arg-type, var-annotated]
    return DataLoader(range(samples), batch, sampler=sampler, **options)  # type: ignore[arg-type]


def trainer_at(loader: Any, epoch: int, done: int, *, ended: bool = False, accumulate: int = 1) -> Any:
    """A Trainer that has loaded a checkpoint."""
    started = epoch if ended else epoch + 1
    counters = dict.fromkeys(("ready", "started", "processed", "completed"), done)
    loop = SimpleNamespace(
        epoch_progress=SimpleNamespace(current=SimpleNamespace(started=started, processed=epoch)),
        epoch_loop=SimpleNamespace(batch_progress=SimpleNamespace(current=SimpleNamespace(**counters))),
    )
    return SimpleNamespace(
        fit_loop=loop, limit_train_batches=1.0, num_training_batches=len(loader), accumulate_grad_batches=accumulate
    )


def resumed(samples: int, replicas: int, position: Position, epoch: int = 0, **options: Any) -> list[list[list[int]]]:
    """The batches that each replica sees of the rest of the epoch."""
    seen = []
    for rank in range(replicas):
        loader = loader_of(samples, replicas, rank, **options)
        trainer = trainer_at(loader, epoch, position.batches)
        TrainData(replicas, rank, position).prepare(loader, trainer, setup=1, resuming=True)
        seen.append([batch.tolist() for batch in loader])
        done = trainer.fit_loop.epoch_loop.batch_progress.current.processed
        assert done + len(seen[-1]) == len(loader)
    return seen


def whole(samples: int, replicas: int, epoch: int = 0, **options: Any) -> list[list[list[int]]]:
    seen = []
    for rank in range(replicas):
        loader = loader_of(samples, replicas, rank, **options)
        loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        seen.append([batch.tolist() for batch in loader])
    return seen


@pytest.mark.parametrize(("samples", "done", "epoch"), list(itertools.product((64, 61, 17), (1, 2), (0, 5))))
def test_the_same_world_sees_the_batches_that_it_has_not_seen(samples, done, epoch):
    position = Position(replicas=2, batches=done, length=-(-samples // 8), samples=done * 8)
    assert resumed(samples, 2, position, epoch) == [batches[done:] for batches in whole(samples, 2, epoch)]


@pytest.mark.parametrize(("samples", "before", "after"), list(itertools.product((96, 97, 61), (3, 4), (1, 2, 3, 5))))
def test_another_world_sees_the_samples_that_nobody_has_seen(samples, before, after):
    first = whole(samples, before)
    position = Position(before, 2, len(first[0]), 2 * 4 * before)
    seen = Counter(index for batches in first for batch in batches[:2] for index in batch)
    seen += Counter(index for batches in resumed(samples, after, position) for batch in batches for index in batch)
    assert set(seen) == set(range(samples))
    assert sum(seen.values()) - samples < after


def test_a_second_loss_in_an_epoch_goes_on_from_the_first():
    loader = loader_of(120, 2, 0)
    trainer = trainer_at(loader, 0, 3)
    data = TrainData(2, 0, Position(3, 3, 10, 36))
    data.prepare(loader, trainer, setup=1, resuming=True)
    current = trainer.fit_loop.epoch_loop.batch_progress.current
    assert (current.processed, len(loader)) == (4, 15)  # 84 samples left, 11 batches for each of 2
    current.processed += 2
    assert data.position(trainer) == Position(2, 6, 15, 36 + 2 * 8)


def test_an_epoch_that_had_ended_is_ended_for_any_world():
    loader = loader_of(120, 2, 0)
    trainer = trainer_at(loader, 1, 10)
    TrainData(2, 0, Position(3, 10, 10, 120)).prepare(loader, trainer, setup=1, resuming=True)
    assert trainer.fit_loop.epoch_loop.batch_progress.current.processed == len(loader) == 15
    assert loader.sampler.epoch == 2  # type: ignore[attr-defined]
    assert len(list(loader)) == 15


@pytest.mark.parametrize("replicas", [2, 3])
def test_an_epoch_that_is_to_be_finished_has_no_batches_left(replicas):
    loader = loader_of(120, replicas, 0)
    trainer = trainer_at(loader, 1, 10)
    TrainData(replicas, 0, Position(3, 10, 10, 120), exactly=True).prepare(loader, trainer, setup=1, resuming=True)
    assert trainer.fit_loop.epoch_loop.batch_progress.current.processed == len(loader)
    assert list(loader) == []
    loader.sampler.set_epoch(2)  # type: ignore[attr-defined]
    assert [batch.tolist() for batch in loader] == whole(120, replicas, 2)[0]


def test_an_epoch_begins_after_one_whose_last_batch_was_the_end():
    middle, end = Position(2, 3, 8), Position(2, 8, 8)
    for position, done, completed, begins in ((middle, 3, 2, False), (end, 8, 7, True), (end, 8, 8, False)):
        trainer = trainer_at(range(8), 0, done)
        trainer.fit_loop.epoch_loop.batch_progress.current.completed = completed
        assert begins_epoch(trainer, position, exactly=False) is begins
        assert not begins_epoch(trainer, position, exactly=True)
    assert begins_epoch(trainer_at(range(8), 1, 8, ended=True), None, exactly=True)
    assert not begins_epoch(trainer_at(range(8), 0, 3), None, exactly=True)


def test_batches_without_their_optimizer_step_are_seen_again():
    loader = loader_of(64, 2, 0)
    trainer = trainer_at(loader, 0, 3, accumulate=2)
    TrainData(2, 0, Position(2, 3, 8, 24)).prepare(loader, trainer, setup=1, resuming=True)
    assert trainer.fit_loop.epoch_loop.batch_progress.current.processed == 2
    assert [batch.tolist() for batch in loader] == whole(64, 2)[0][2:]


def test_the_other_epochs_are_as_before():
    loader = loader_of(61, 2, 1)
    TrainData(2, 1, Position(2, 3, 8, 24)).prepare(loader, trainer_at(loader, 0, 3), setup=1, resuming=True)
    list(loader)
    loader.sampler.set_epoch(1)  # type: ignore[attr-defined]
    assert [batch.tolist() for batch in loader] == whole(61, 2, 1)[1]


@pytest.mark.parametrize("drop_last", [False, True])
def test_the_batches_left_are_those_that_come(drop_last):
    for samples, consumed, replicas in itertools.product((50, 51, 96), (0, 12, 24, 48), (1, 2, 3)):
        loader = loader_of(samples, replicas, 0, drop_last=drop_last)
        sampler: Any = become(loader.sampler, epoch_order)
        length = -(-samples // 8)
        TrainData(replicas, 0, Position(2, 3, length, consumed)).prepare(
            loader, trainer_at(loader, 0, 3), setup=1, resuming=True
        )
        assert len(list(loader)) == batches_left(sampler, consumed, 4, drop_last=drop_last)


def test_loaders_that_cannot_be_continued_are_left_alone_with_a_note(caplog):
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(8))

    class Stateful(DataLoader[Any]):
        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    cases = ((DataLoader(Stream(), 4), "iterable"), (Stateful(range(8), 4), "state of its own"))  # type: ignore[arg-type]
    for loader, why in cases:
        caplog.clear()
        TrainData(1, 0, None).prepare(loader, trainer_at([1], 0, 1), setup=1, resuming=True)
        assert why in caplog.text
        assert len(list(loader)) == 2


def test_a_loader_with_a_state_of_its_own_gets_its_epoch_before_it_is_iterated():
    class Stateful(DataLoader[Any]):
        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    samples = list(range(16))
    loader = Stateful(samples, 4, sampler=DistributedSampler(samples, 2, 0))  # type: ignore[arg-type]
    expected = DistributedSampler(samples, 2, 0)  # type: ignore[var-annotated, arg-type]
    expected.set_epoch(2)
    trainer = trainer_at([3], 2, 1)
    TrainData(2, 0, None).prepare(loader, trainer, setup=1, resuming=True)
    assert list(loader.sampler) == list(expected)


class Wrapped(DistributedSampler[Any]):
    """As Lightning wraps a sampler of the user's."""

    def __init__(self, sampler: Any) -> None:
        super().__init__(range(64), 2, 0, shuffle=False)  # type: ignore[arg-type]
        self.sampler = sampler

    def __iter__(self) -> Any:
        drawn = list(self.sampler)
        return (drawn[index] for index in super().__iter__())


@pytest.mark.parametrize("drawn", [False, True])
def test_an_order_that_is_drawn_each_time_is_not_continued(drawn, caplog):
    sampler: Any = RandomSampler(range(64)) if drawn else SequentialSampler(range(64))
    for loader in (DataLoader(range(64), 4, sampler=sampler), DataLoader(range(64), 4, sampler=Wrapped(sampler))):  # type: ignore[arg-type, var-annotated]
        caplog.clear()
        state = torch.get_rng_state()
        TrainData(2, 0, Position(2, 3, len(loader), 24)).prepare(
            loader, trainer_at(loader, 0, 3), setup=1, resuming=True
        )
        assert torch.equal(torch.get_rng_state(), state)
        assert ("draws another order" in caplog.text) == drawn
        assert len(list(loader)) == (len(loader) if drawn else len(loader) - 3)


@pytest.mark.parametrize("drawn", [False, True])
def test_lightnings_warning_is_silent_where_the_epoch_is_continued(drawn):
    sampler: Any = RandomSampler(range(64)) if drawn else SequentialSampler(range(64))
    for loader in (DataLoader(range(64), 4, sampler=sampler), DataLoader(range(64), 4, sampler=Wrapped(sampler))):  # type: ignore[arg-type, var-annotated]
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            TrainData(2, 0, Position(2, 3, len(loader), 24)).prepare(
                loader, trainer_at(loader, 0, 3), setup=1, resuming=True
            )
            warnings.warn("You're resuming from a checkpoint that ended before the epoch ended and", stacklevel=1)
        assert bool(heard) == drawn


def test_an_order_that_is_drawn_each_time_begins_with_the_epoch(caplog):
    loader = DataLoader(range(64), 4, sampler=RandomSampler(range(64)))  # type: ignore[arg-type, var-annotated]
    TrainData(2, 0, Position(2, 16, 16, None)).prepare(
        loader, trainer_at(loader, 1, 0, ended=True), setup=1, resuming=True
    )
    assert not caplog.text


def test_of_several_loaders_none_is_continued(caplog):
    data, position = TrainData(2, 0, Position(2, 3, 8, 24)), 3
    loader, other = loader_of(64, 2, 0), loader_of(64, 2, 0)
    trainer = trainer_at(loader, 0, position)
    data.prepare(loader, trainer, setup=1, resuming=True)
    data.prepare(other, trainer, setup=1, resuming=True)
    assert "one of several" in caplog.text
    assert [batch.tolist() for batch in loader] == whole(64, 2)[0]


def test_a_loader_that_is_made_again_for_each_epoch_is_none_of_several(caplog):
    data = TrainData(2, 0, None)
    for epoch in range(3):
        loader = loader_of(64, 2, 0)
        trainer = trainer_at(loader, epoch, 0, ended=True)
        data.prepare(loader, trainer, setup=epoch + 1, resuming=False)
    trainer.fit_loop.epoch_loop.batch_progress.current.processed = 3
    assert data.position(trainer).samples == 24
    assert not caplog.text


def test_a_position_is_read_as_it_was_written_and_nothing_else():
    position = Position(2, 3, 8, None)
    assert Position.read(position.written()) == position
    assert Position.read(None) is None
    assert Position.read({"replicas": 2}) is None


class Slotted:
    __slots__ = ()

    def __iter__(self) -> Any:
        return iter([[0, 1], [2, 3]])

    def __len__(self) -> int:
        return 2


@pytest.mark.parametrize("batches", [[[0, 1], [2, 3]], Slotted()])
def test_a_batch_sampler_that_cannot_be_continued_is_left_as_it_is(batches, caplog):
    loader: Any = DataLoader(range(4), batch_sampler=batches)  # type: ignore[arg-type]
    TrainData(2, 0, None).prepare(loader, trainer_at(loader, 0, 0), setup=1, resuming=False)
    assert caplog.records == []
    data = TrainData(2, 0, Position(2, 1, 2))
    data.prepare(loader, trainer_at(loader, 0, 1), setup=1, resuming=True)
    assert f"its batch sampler is a {type(batches).__name__}" in caplog.text
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]
    assert data.resumed(loader) == (-1, 0, False)
