"""The data of a fit, in every way in which a user may load it."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, IterableDataset, SequentialSampler

from tests.harness.lightning.setting import Setting

__all__ = ["Samples", "dist_size", "initial_rank", "make_loader", "shards"]


def initial_rank() -> int:
    return int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", os.environ.get("LOCAL_RANK", "0"))))


def dist_size() -> int:
    return int(os.environ["WORLD_SIZE"])


class Samples(Dataset[Any]):
    def __init__(self, number: int) -> None:
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(number, 16, generator=generator)
        self.y = torch.randn(number, 4, generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return self.x[index], self.y[index], index


class Stream(IterableDataset[Any]):
    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def __iter__(self) -> Any:
        return iter([self.samples[index] for index in range(len(self.samples))])


class Pairs(BatchSampler):
    """A batch sampler of the user's."""

    def __iter__(self) -> Any:
        return iter(list(super().__iter__()))


class StatefulLoader:
    """A loader of the user's that keeps its position; after the last batch it is at the start of the next epoch."""

    def __init__(self, samples: Samples, batch: int) -> None:
        share = list(range(initial_rank(), len(samples), dist_size()))
        self.batches = DataLoader(samples, batch_sampler=[share[at : at + batch] for at in range(0, len(share), batch)])
        self.done = 0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Any:
        begin, self.done = self.done % len(self), self.done % len(self)
        for batch in itertools.islice(self.batches, begin, None):
            self.done += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done = state["done"]


class ContinuedLoader(StatefulLoader):
    """A loader as torchdata's `StatefulDataLoader`: one that is loaded after its last batch has none left at first."""

    def __init__(self, samples: Samples, batch: int) -> None:
        super().__init__(samples, batch)
        self.loaded = 0

    def __iter__(self) -> Any:
        self.done, self.loaded = self.loaded, 0
        return self.count(itertools.islice(self.batches, self.done, None))

    def count(self, batches: Any) -> Any:
        for batch in batches:
            self.done += 1
            yield batch

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.loaded = state["done"]


class Data(pl.LightningDataModule):
    """The data in a module, which makes a new loader each time."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.setting = setting

    def train_dataloader(self) -> Any:
        return make_loader(dataclasses.replace(self.setting, data="map"))


def shards(setting: Setting) -> bool:
    """Whether Lightning distributes the data over the ranks."""
    return setting.data not in ("own_sampler", "drawn", "generator")


def _map(setting: Setting, samples: Samples, **more: Any) -> Any:
    return DataLoader(samples, **{"batch_size": setting.batch, "shuffle": True, **setting.loader, **more})


LOADERS: dict[str, Callable[[Setting, Samples], Any]] = {
    "map": _map,
    "drawn": _map,
    "module": lambda setting, _: Data(setting),
    "iterable": lambda setting, samples: DataLoader(Stream(samples), batch_size=setting.batch, **setting.loader),
    "stateful": lambda setting, samples: StatefulLoader(samples, setting.batch),
    "continued": lambda setting, samples: ContinuedLoader(samples, setting.batch),
    "generator": lambda setting, samples: _map(setting, samples, generator=torch.Generator().manual_seed(5)),
    "own_sampler": lambda setting, samples: _map(
        setting, samples, shuffle=None, sampler=DistributedSampler(samples, dist_size(), initial_rank())
    ),
    "own_batches": lambda setting, samples: DataLoader(
        samples, batch_sampler=Pairs(SequentialSampler(samples), setting.batch, False)
    ),
}


def make_loader(setting: Setting) -> Any:
    return LOADERS[setting.data](setting, Samples(setting.samples))
