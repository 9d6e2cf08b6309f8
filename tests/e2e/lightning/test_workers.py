"""The random numbers of data loader workers go on after a restart; here, the loader of one process."""

from __future__ import annotations

import gc
import multiprocessing
import random
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from nvrx_lightning.restart.random_state import RandomState
from nvrx_lightning.restart.workers import WorkerStates, detach
from torch.utils.data import DataLoader, Dataset, Sampler


class Noise(Dataset[Any]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return index, torch.rand(()).item(), random.random(), float(np.random.rand())


class Still(Noise):
    def __getitem__(self, index: int) -> Any:
        return index


class From(Sampler[int]):
    """The samples of an epoch from one on."""

    def __init__(self) -> None:
        self.begin = 0

    def __iter__(self) -> Any:
        begin, self.begin = self.begin, 0
        return iter(range(begin, 12))


class Fit:
    """What a fit does with a loader: it sets up one in each attempt, and iterates it in each epoch."""

    def __init__(self, data: Dataset[Any], **options: Any) -> None:
        self.data, self.options, self.states = data, options, WorkerStates()
        self.epoch = SimpleNamespace(processed=0)

    def set_up(self, epoch: int = -1, batch: int = 0) -> None:
        self.sampler = From()
        self.sampler.begin = 2 * batch
        self.loader = DataLoader(self.data, batch_size=2, sampler=self.sampler, **self.options)
        self.states.follow(self.loader, lambda: self.epoch.processed, (epoch, batch, batch < 6))

    def run(self, epoch: int, *, saves: int = -1, begin: int = 0) -> list[str]:
        self.epoch.processed = epoch
        batches = []
        for number, batch in enumerate(self.loader, begin):
            batches.append(repr(batch))
            if number + 1 == saves:
                self.states.keep("token", saves)
        return batches

    def restart(self, epoch: int, batch: int, *, token: str | None = "token") -> None:
        self.states.begin_attempt()
        self.states.resume(token)
        self.set_up(epoch, batch)


@pytest.fixture(autouse=True)
def seeded():
    before = RandomState.now()
    torch.manual_seed(1)
    yield
    before.restore()


def two_epochs(data: Dataset[Any], **options: Any) -> tuple[list[str], list[str]]:
    torch.manual_seed(1)
    fit = Fit(data, **options)
    fit.set_up()
    return fit.run(0), fit.run(1)


@pytest.mark.parametrize("batch", [1, 2, 3, 5])
def test_random_transforms_go_on_in_the_middle_of_an_epoch(batch):
    _, whole = two_epochs(Noise(), num_workers=2)
    torch.manual_seed(1)
    fit = Fit(Noise(), num_workers=2)
    fit.set_up()
    fit.run(0)
    assert fit.run(1, saves=batch) == whole
    fit.restart(1, batch)
    assert fit.run(1, begin=batch) == whole[batch:]


def test_random_transforms_go_on_after_a_second_restart_in_an_epoch():
    whole, _ = two_epochs(Noise(), num_workers=2)
    torch.manual_seed(1)
    fit = Fit(Noise(), num_workers=2)
    fit.set_up()
    fit.run(0, saves=1)
    fit.restart(0, 1)
    assert fit.run(0, saves=4, begin=1) == whole[1:]
    fit.restart(0, 4)
    assert fit.run(0, begin=4) == whole[4:]


def test_a_worker_that_begins_after_a_checkpoint_was_saved_begins_so_again():
    saved = multiprocessing.Event()
    fit = Fit(Noise(), num_workers=2, worker_init_fn=lambda worker: worker and saved.wait())
    fit.set_up()
    batches = iter(fit.loader)
    next(batches)
    fit.states.keep("token", 1)
    saved.set()
    rest = [repr(batch) for batch in batches]
    fit.restart(0, 1)
    assert fit.run(0, begin=1) == rest


def test_persistent_workers_take_no_number_from_the_generator_when_they_begin_anew(caplog):
    fit = Fit(Still(), num_workers=1, persistent_workers=True)
    fit.set_up()
    fit.run(0)
    before = torch.get_rng_state()
    fit.restart(1, 0, token=None)
    fit.run(1)
    assert torch.equal(torch.get_rng_state(), before)
    assert caplog.records == []


def test_a_generator_of_the_users_gives_no_number_to_an_epoch_that_is_resumed():
    given = torch.Generator().manual_seed(4)
    fit = Fit(Still(), generator=given)
    fit.set_up()
    fit.run(0)
    before = given.get_state()
    fit.restart(0, 3)
    fit.run(0, begin=3)
    assert torch.equal(given.get_state(), before)
    assert fit.loader.generator is given


def test_random_transforms_that_begin_anew_are_warned_of_once(caplog):
    fit = Fit(Noise(), num_workers=1)
    fit.set_up()
    fit.run(0)
    for _ in range(2):
        fit.restart(0, 2, token="of another rank")
        fit.run(0, begin=2)
    (record,) = caplog.records
    assert "random numbers of the data loader's workers begin anew" in record.getMessage()


@pytest.mark.parametrize(("data", "batch"), [(Still(), 2), (Noise(), 6)])
def test_there_is_nothing_to_warn_of_without_random_numbers_or_without_batches(data, batch, caplog):
    fit = Fit(data, num_workers=1)
    fit.set_up()
    fit.run(0)
    fit.restart(0, batch, token="of another rank")
    fit.run(0, begin=batch)
    assert caplog.records == []


def test_a_users_functions_are_called_and_put_back():
    def users(worker: int) -> None:
        random.seed(worker)

    fit = Fit(Noise(), num_workers=1, worker_init_fn=users)
    fit.set_up()
    collate = fit.loader.collate_fn
    first, second = fit.run(0), fit.run(1)
    assert (fit.loader.collate_fn, fit.loader.worker_init_fn) == (collate, users)
    python = [[repr(batch).split("tensor")[3] for batch in each] for each in (first, second)]
    assert python[0] == python[1]


def test_a_loader_of_the_users_that_is_set_up_for_its_length_alone_takes_no_states_of_the_attempt():
    whole, _ = two_epochs(Noise(), num_workers=2)
    torch.manual_seed(1)
    fit = Fit(Noise(), num_workers=2)
    fit.set_up()
    fit.run(0, saves=3)
    fit.states.begin_attempt()
    fit.states.resume("token")
    detach(fit.loader)
    list(fit.loader)
    fit.sampler.begin = 6
    fit.states.follow(fit.loader, lambda: fit.epoch.processed, (0, 3, True))
    assert fit.run(0, begin=3) == whole[3:]
    detach(DataLoader(Noise()))


def test_a_checkpoint_holds_no_shared_memory_once_its_workers_have_begun():
    fit = Fit(Noise(), num_workers=1)
    fit.set_up()
    fit.run(0, saves=1)
    ring = weakref.ref(fit.states._ring)
    fit.restart(0, 1)
    gc.collect()
    assert ring() is None
