"""Data: loaders, workers, samplers, transforms."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Sampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    get_worker_info,
)  # fmt: skip

from tests.harness.lightning.programs.base import (
    Net,
    checkpoint,
    make_trainer,
    plain,
    samples,
    saved_at_epochs,
    train_loader,
    validation_loader,
)  # fmt: skip
from tests.harness.lightning.programs.expectation import differs, same, warned

__all__: list[str] = []

TEARDOWN = "the Trainer's teardown failed while a restart was prepared"
"""Lightning's own, of persistent workers, after a fault at the end of the fit."""


@differs("^sample order$", warned="it is one of several")
def several_loaders() -> Any:
    """two training loaders, by `CombinedLoader`"""
    loaders = CombinedLoader({"first": train_loader(), "second": train_loader(batch_size=2)}, "min_size")
    return make_trainer(), Pairs(), loaders


class Pairs(Net):
    def loss(self, batch: Any) -> torch.Tensor:
        return sum(super(Pairs, self).loss(each) for each in batch.values())  # type: ignore[return-value]


@same
def validation_loaders() -> Any:
    """two validation loaders"""
    return make_trainer(), TwoValidations(), train_loader(), [validation_loader(), validation_loader()]


class TwoValidations(Net):
    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        self.log("val_loss", self.loss(batch), sync_dist=True)


@same
def workers() -> Any:
    """`num_workers=2`"""
    return make_trainer(), Net(), train_loader(num_workers=2), validation_loader()


class Noisy(Dataset[Any]):
    """Random transforms, with each of the three generators."""

    def __init__(self) -> None:
        self.data = samples()

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        inputs, targets = self.data[index]
        return inputs + 0.1 * torch.rand(8) + random.random() + float(np.random.rand()), targets


@same
def random_transforms() -> Any:
    """random transforms in the process itself"""
    return make_trainer(), Net(), DataLoader(Noisy(), batch_size=4, shuffle=True)


@same
def random_transforms_in_workers() -> Any:
    """random transforms in workers"""
    return make_trainer(), Net(), DataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=2)


@warned(TEARDOWN, always=False)
def persistent_workers() -> Any:
    """`persistent_workers=True`"""
    return make_trainer(), Net(), train_loader(num_workers=2, persistent_workers=True), validation_loader()


@warned(TEARDOWN, always=False)
def persistent_workers_and_saves_of_epochs() -> Any:
    """`persistent_workers=True`, saved at the ends of epochs"""
    loader = train_loader(num_workers=2, persistent_workers=True)
    return make_trainer(checkpoints=[saved_at_epochs()]), Net(), loader, validation_loader()


@differs("^sample order$", warned=f"workers begin anew|{TEARDOWN}")
def random_transforms_in_persistent_workers() -> Any:
    """random transforms in persistent workers"""
    loader = DataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=2, persistent_workers=True)
    return make_trainer(), Net(), loader


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
        data = samples()
        return iter([data[index] for index in range(rank, len(data), world)])


@differs("^sample order$", warned="its data set is iterable")
def iterable() -> Any:
    """an iterable data set, saved in the middle of an epoch"""
    return make_trainer(), Net(), DataLoader(Stream(), batch_size=4)


@warned("its data set is iterable")
def iterable_and_saves_of_epochs() -> Any:
    """an iterable data set, saved at the ends of epochs"""
    trainer = make_trainer(checkpoints=[saved_at_epochs()])
    return trainer, Net(), DataLoader(Stream(), batch_size=4)


class Stateful:
    """A loader that keeps its position."""

    def __init__(self) -> None:
        self.data, self.done = samples(), 0

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Iterator[Any]:
        begin, self.done = self.done % 6, self.done % 6
        rank = torch.distributed.get_rank()
        for number in range(begin, 6):
            self.done += 1
            picked = [self.data[(number * 2 + rank) * 4 + index] for index in range(4)]
            yield default_collate(picked)

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done = state["done"]


@warned("it has a state of its own")
def stateful_loader() -> Any:
    """a loader with `state_dict` and `load_state_dict`"""
    return make_trainer(), Net(), Stateful()


class Continued(Stateful):
    """As torchdata's `StatefulDataLoader`: loaded after its last batch, it has none left before it is iterated anew."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded = 0

    def __iter__(self) -> Iterator[Any]:
        self.done, self.loaded = self.loaded, 0
        return super().__iter__() if self.done < 6 else iter(())

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.loaded = state["done"]


@warned("it has a state of its own")
def stateful_loader_at_the_end_of_an_epoch() -> Any:
    """a loader with a state, as torchdata's, saved after the last batch of an epoch"""
    trainer = make_trainer(checkpoints=[checkpoint(every_n_train_steps=6)])
    return trainer, Net(), Continued(), validation_loader()


@same
def weighted_sampler() -> Any:
    """`WeightedRandomSampler`, with `use_distributed_sampler=False`"""
    sampler = WeightedRandomSampler(torch.arange(1.0, 97.0), 24, generator=torch.Generator().manual_seed(4))
    return make_trainer(use_distributed_sampler=False), Net(), DataLoader(samples(), batch_size=4, sampler=sampler)


class OwnSampler(pl.LightningDataModule):
    def train_dataloader(self) -> Any:
        data = samples()
        return DataLoader(data, batch_size=4, sampler=DistributedSampler(data))


@same
def distributed_sampler() -> Any:
    """a `DistributedSampler` of the user's, in a data module"""
    return make_trainer(use_distributed_sampler=False), Net(), OwnSampler()


@differs("^sample order$")
def given_generator() -> Any:
    """a loader with `generator=`"""
    loader = train_loader(generator=torch.Generator().manual_seed(4))
    return make_trainer(use_distributed_sampler=False), Net(), loader


class Data(pl.LightningDataModule):
    def prepare_data(self) -> None:
        self.prepared = True

    def setup(self, stage: str) -> None:
        self.data = samples()

    def train_dataloader(self) -> Any:
        return DataLoader(self.data, batch_size=4, shuffle=True)

    def val_dataloader(self) -> Any:
        return validation_loader()


@same
def data_module() -> Any:
    """a data module"""
    return make_trainer(), Net(), Data()


@same
def reloaded_loaders() -> Any:
    """`reload_dataloaders_every_n_epochs=1`"""
    return make_trainer(reload_dataloaders_every_n_epochs=1), Net(), Data()


@same
def limited_batches() -> Any:
    """`limit_train_batches=0.5`"""
    return make_trainer(limit_train_batches=0.5), Net(), train_loader(batch_size=3), validation_loader()


class ListOfPairs(Net):
    def loss(self, batch: Any) -> torch.Tensor:
        return sum(super(ListOfPairs, self).loss(each) for each in batch)  # type: ignore[return-value]


@warned("it is one of several")
def list_of_loaders() -> Any:
    """a list of two training loaders of different lengths, saved at the ends of epochs"""
    return make_trainer(checkpoints=[saved_at_epochs()]), ListOfPairs(), [train_loader(), train_loader(batch_size=6)]


class EpochSampler(Sampler[int]):
    """The samples of this rank, in an order of the epoch."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 24

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(48, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        return iter(order[torch.distributed.get_rank() :: 2])


@same
def sampler_of_ones_own() -> Any:
    """a sampler of the user's with `set_epoch`"""
    loader = DataLoader(samples(), batch_size=4, sampler=EpochSampler())
    return make_trainer(use_distributed_sampler=False), Net(), loader


class Buckets(Sampler[list[int]]):
    """Batches of neighbours, in a random order."""

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Iterator[list[int]]:
        rank = torch.distributed.get_rank()
        for bucket in torch.randperm(6).tolist():
            begin = bucket * 16 + rank * 8
            yield list(range(begin, begin + 8))


@same
def batch_sampler() -> Any:
    """a batch sampler of the user's that draws its order"""
    loader = DataLoader(samples(), batch_sampler=Buckets())
    return make_trainer(use_distributed_sampler=False), Net(), loader


class Harder(Dataset[Any]):
    """Inputs with noise that grows from epoch to epoch."""

    def __init__(self) -> None:
        self.data, self.level = samples(), 0

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        inputs, targets = self.data[index]
        return inputs + 0.1 * self.level, targets


class Curriculum(Net):
    def on_train_epoch_start(self) -> None:
        self.trainer.train_dataloader.dataset.level = self.current_epoch  # type: ignore[union-attr]


@differs("^output of training_step.loss$")
def curriculum() -> Any:
    """a data set that `on_train_epoch_start` changes"""
    return make_trainer(), Curriculum(), DataLoader(Harder(), batch_size=4, shuffle=True)


class CurriculumByBatch(Net):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.level = self.current_epoch

    def loss(self, batch: Any) -> torch.Tensor:
        return super().loss((batch[0] + 0.1 * self.current_epoch, batch[1]))


@same
def curriculum_of_the_module() -> Any:
    """a training step that depends on `current_epoch`"""
    return plain(CurriculumByBatch())


@same
def uneven() -> Any:
    """data whose last batch is padded"""
    return make_trainer(), Net(), DataLoader(samples(90), batch_size=4, shuffle=True), validation_loader()


class DrawsItsData(Net):
    def val_dataloader(self) -> Any:
        return DataLoader(TensorDataset(torch.randn(32, 8), torch.randn(32, 1)), batch_size=4)


@differs("^validation samples$")
def data_that_is_drawn() -> Any:
    """validation data that `val_dataloader` draws, without a generator of its own"""
    return make_trainer(), DrawsItsData(), train_loader()


class WorkerStream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        info: Any = get_worker_info()
        begin = torch.distributed.get_rank() * 2 + info.id
        data = samples()
        return iter([data[index] for index in range(begin, len(data), 4)])


@warned("its data set is iterable")
def iterable_in_workers() -> Any:
    """an iterable data set in workers, saved at the ends of epochs"""
    loader = DataLoader(WorkerStream(), batch_size=4, num_workers=2)
    return make_trainer(checkpoints=[saved_at_epochs()]), Net(), loader


def seed_worker(worker: int) -> None:
    seed = torch.initial_seed() % 2**32
    random.seed(seed + worker)
    np.random.seed(seed)


def mixed_up(items: list[Any]) -> Any:
    """Mixes each batch with itself."""
    inputs, targets = default_collate(items)
    order, share = torch.randperm(len(inputs)), random.random()
    return share * inputs + (1 - share) * inputs[order], share * targets + (1 - share) * targets[order]


@same
def random_collation_in_workers() -> Any:
    """a random `collate_fn` in workers with a `worker_init_fn`"""
    loader = train_loader(num_workers=2, collate_fn=mixed_up, worker_init_fn=seed_worker)
    return make_trainer(), Net(), loader
