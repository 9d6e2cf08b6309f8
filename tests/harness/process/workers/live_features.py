"""Trainings that use much of what a step changes, with their state in memory, and faults in the first iterations.

`NVRX_TEST_FEATURES` has, as JSON: `training` (`mixed precision`, `sharded` or `adversarial`), `shards` (over how many
ranks a model is divided; 0: it is not), `faults` (of each iteration: the rank, the kind, the point and at which time of
it), and `active` (how many ranks train; the others are reserves).
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Sampler

from nvrx_core import inprocess
from nvrx_core.inprocess import rank_assignment
from nvrx_core.inprocess.live_state import _Ports
from tests.harness.process.workers.record import Record

__all__: list[str] = []

PLAN: dict[str, Any] = {
    "training": "mixed precision",
    "shards": 0,
    "faults": [],
    "active": 2,
    **json.loads(os.environ.get("NVRX_TEST_FEATURES", "{}")),
}
STEPS, OVERFLOWS = 24, (5, 11)
WIDTH, SAMPLES = 12, 400
record = Record.of_environment()


class Injected(RuntimeError):
    """The fault."""


class Faults:
    """The fault of an iteration, if it is one of this rank."""

    def __init__(self) -> None:
        self.due: list[Any] = []
        self.hits: Counter[str] = Counter()
        self.iteration = 0

    def begin(self, iteration: int, rank: int) -> None:
        self.iteration = iteration
        planned = PLAN["faults"][iteration] if iteration < len(PLAN["faults"]) else [None]
        self.due, self.hits = planned if planned[0] == rank else [], Counter()

    def __call__(self, point: str) -> None:
        self.hits[point] += 1
        if not self.due or self.due[2:] != [point, self.hits[point]]:
            return
        _, kind, *_ = self.due
        self.due = []
        if point == "voted":
            threading.Event().wait(0.5)  # until the others have passed the vote
        record("injected", kind=kind, point=point)
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise Injected(point)


faults = Faults()


def told(iteration: int, rank: int, step: int, **more: object) -> None:
    """Record a step, which the objects of an earlier iteration do in the recovery of a rank that was in its vote."""
    record("trained", rank=rank, step=step, recovered=iteration != faults.iteration, **more)


def digest(found: Any) -> str:
    total = hashlib.sha256()
    for each in found:
        local = each.to_local() if isinstance(each, DTensor) else torch.as_tensor(each)
        total.update(local.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()[:16]


def digest_of(optimizer: torch.optim.Optimizer) -> str:
    states = [optimizer.state[each] for group in optimizer.param_groups for each in group["params"]]
    return digest(each for state in states for _, each in sorted(state.items()))


class Position:
    """How many samples have been trained on: what workers have fetched besides is fetched again."""

    def __init__(self) -> None:
        self.trained = 0

    def state_dict(self) -> dict[str, int]:
        return {"trained": self.trained}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.trained = state["trained"]


class Order(Sampler[int]):
    """The samples of a rank, from its position on."""

    def __init__(self, position: Position, rank: int, world: int) -> None:
        self.position, self.rank, self.world = position, rank, world

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(3)).tolist()
        return iter(order[self.rank :: self.world][self.position.trained :])


class Samples(torch.utils.data.Dataset[tuple[int, torch.Tensor]]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.randn(WIDTH, generator=torch.Generator().manual_seed(index))


def train_in_mixed_precision(live: inprocess.LiveState, call: inprocess.CallWrapper) -> None:
    """A model that is built on the meta device, its moving average, a GradScaler whose steps overflow at times, two
    batches accumulated for a step, and a loader with workers."""
    iteration, rank, world = call.iteration, dist.get_rank(), dist.get_world_size()
    torch.manual_seed(100 + rank)
    with torch.device("meta"):
        model = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, WIDTH), torch.nn.BatchNorm1d(WIDTH), torch.nn.ReLU(), torch.nn.Dropout(0.2),
            torch.nn.Linear(WIDTH, 1),
        )  # fmt: skip
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=STEPS + 1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    position = Position()

    indices: list[int] = []

    def advance() -> None:
        faults("advance")
        weights = digest(model.parameters())
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        average.update_parameters(model)
        told(iteration, rank, scheduler.last_epoch - 1, index=indices, scale=scaler.get_scale(),
             stepped=digest(model.parameters()) != weights)  # fmt: skip

    first = live.resume(
        model, optimizer, advance, shared={"scheduler": scheduler, "scaler": scaler}, local={"position": position},
        averages=[average],
    )  # fmt: skip
    record("resumed", iteration=iteration, step=first)
    if first is None:
        model.to_empty(device="cpu")
        torch.manual_seed(7)
        for each in model:
            if hasattr(each, "reset_parameters"):
                each.reset_parameters()
        torch.manual_seed(100 + rank)
        average.to_empty(device="cpu")
        average.module.load_state_dict(model.state_dict())
        average.n_averaged.zero_()
        first = 0
        live.start(first)
    loader = DataLoader(
        Samples(), batch_size=4, sampler=Order(position, rank, world), num_workers=2, generator=torch.Generator()
    )
    ddp = DistributedDataParallel(model, init_sync=False)
    batches = iter(loader)
    for step in range(first, STEPS):
        indices.clear()
        for part in range(2):
            index, batch = next(batches)
            position.trained += len(index)
            indices += index.tolist()
            with ddp.no_sync() if part == 0 else nullcontext():
                loss = (ddp(batch) - batch[:, :1]).square().mean()
                if step in OVERFLOWS and rank == 1:
                    loss = loss * float("inf")
                scaler.scale(loss).backward()
            faults("between" if part == 0 else "ready")
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        live.commit(step)
        faults("committed")
        optimizer.zero_grad()
    record(
        "end", rank=rank, weights=digest(model.parameters()), optimizer=digest_of(optimizer),
        buffers=digest(model.buffers()), average=digest(average.parameters()),
        average_buffers=digest(average.module.buffers()), averaged=int(average.n_averaged),
        scaler=scaler.state_dict(), rate=scheduler.get_last_lr(), position=position.trained,
        random=digest([torch.get_rng_state()]),
    )  # fmt: skip


class Scale:
    """A scale of the loss: an overflow on any rank halves it, and leaves the step out on all."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.scale, self.good = optimizer, 1024.0, 0
        self.overflows = False

    def unscale(self, parameters: list[Any]) -> None:
        """All ranks call it: each has a part of the gradients only."""
        found = torch.zeros(1)
        for each in parameters:
            each.grad.div_(self.scale)
            found += (~each.grad.to_local().isfinite()).any()
        dist.all_reduce(found)
        self.overflows = bool(found)

    def step(self) -> None:
        if not self.overflows:
            self.optimizer.step()
        self.good = 0 if self.overflows else self.good + 1
        self.scale *= 0.5 if self.overflows else 2.0 if self.good % 3 == 0 else 1.0

    def state_dict(self) -> dict[str, Any]:
        return {"scale": self.scale, "good": self.good}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scale, self.good = state["scale"], state["good"]


def sharded(model: torch.nn.Sequential) -> torch.nn.Sequential:
    """Divide a model over ranks, with replicas of each part where there are more of them."""
    if PLAN["shards"]:
        replicas = dist.get_world_size() // PLAN["shards"]
        shape, names = ((replicas, PLAN["shards"]), ("replicas", "shards")) if replicas > 1 else ((-1,), ("shards",))
        shape = tuple(dist.get_world_size() if each < 0 else each for each in shape)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        for each in model:
            if list(each.parameters()):
                fully_shard(each, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def train_in_shards(live: inprocess.LiveState, call: inprocess.CallWrapper) -> None:
    """A model that is divided, and built on the meta device, its moving average, which is divided as well, a scale of
    the loss with overflows, clipping, and two batches accumulated for a step, of which the first one is not reduced."""
    iteration, rank, world = call.iteration, dist.get_rank(), dist.get_world_size()

    def make() -> torch.nn.Sequential:
        with torch.device("meta"):
            return sharded(
                torch.nn.Sequential(
                    torch.nn.Linear(WIDTH, WIDTH), torch.nn.LayerNorm(WIDTH), torch.nn.ReLU(), torch.nn.Dropout(0.2),
                    torch.nn.Linear(WIDTH, 1),
                )
            )  # fmt: skip

    model, average = make(), make()
    average.requires_grad_(False)
    parameters, averaged = list(model.parameters()), list(average.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-2, foreach=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=STEPS + 1)
    scale, position = Scale(optimizer), Position()
    indices: list[int] = []

    def advance() -> None:
        faults("advance")
        weights = digest(parameters)
        scale.step()
        scheduler.step()
        with torch.no_grad():
            for mean, now in zip(averaged, parameters, strict=True):
                mean.to_local().lerp_(now.to_local(), 0.2)
        told(iteration, rank, scheduler.last_epoch - 1, index=indices, scale=scale.scale,
             stepped=digest(parameters) != weights)  # fmt: skip

    first = live.resume(
        model, optimizer, advance, shared={"scheduler": scheduler, "scale": scale}, local={"position": position},
        averages=[average],
    )  # fmt: skip
    record("resumed", iteration=iteration, step=first)
    if first is None:
        for each in (model, average):
            each.to_empty(device="cpu")
            torch.manual_seed(7)
            for layer in each:
                if hasattr(layer, "reset_parameters"):
                    layer.reset_parameters()
        torch.manual_seed(100 + rank)
        first = 0
        live.start(first)
    samples = Samples()
    order = Order(position, rank, world)
    for step in range(first, STEPS):
        indices.clear()
        for part in range(2):
            index = list(order)[:2]
            batch = torch.stack([samples[each][1] for each in index])
            position.trained += len(index)
            indices += index
            model.set_requires_gradient_sync(part == 1)
            loss = (model(batch) - batch[:, :1]).square().mean()
            if step in OVERFLOWS and rank == 1:
                loss = loss * float("inf")
            (loss * scale.scale).backward()
            faults("between" if part == 0 else "ready")
        scale.unscale(parameters)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        live.commit(step)
        faults("committed")
        optimizer.zero_grad()
    record(
        "end", rank=rank, weights=digest(parameters), optimizer=digest_of(optimizer), average=digest(averaged),
        scale=scale.state_dict(), rate=scheduler.get_last_lr(), position=position.trained,
        random=digest([torch.get_rng_state()]),
    )  # fmt: skip


def train_adversarially(live: inprocess.LiveState, call: inprocess.CallWrapper) -> None:
    """Two models with an optimizer each, which take turns: two commits a pass.

    Replicas freeze the one that is not trained; of those that are divided, its gradients are dropped.
    """
    iteration, rank, world = call.iteration, dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    generator = sharded(torch.nn.Sequential(torch.nn.Linear(4, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH)))
    critic = sharded(
        torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Dropout(0.1), torch.nn.Linear(WIDTH, 1))
    )
    torch.manual_seed(100 + rank)
    both = torch.nn.ModuleList([critic, generator])
    optimizers = [torch.optim.AdamW(each.parameters(), lr=1e-2) for each in both]

    number = 0

    def advance() -> None:
        faults("advance")
        before = [digest(each.parameters()) for each in both]
        for turn, optimizer in enumerate(optimizers):
            optimizer.step()  # of what is frozen, nothing has a gradient
            if digest(both[turn].parameters()) != before[turn]:
                faults(f"stepped {turn}")
        stepped = [digest(each.parameters()) != was for each, was in zip(both, before, strict=True)]
        told(iteration, rank, number, stepped=stepped)

    first = live.resume(both, optimizers, advance)
    record("resumed", iteration=iteration, step=first)
    if first is None:
        first = 0
        live.start(first)
    for number in range(first, 2 * STEPS):
        trained, frozen = (critic, generator) if number % 2 == 0 else (generator, critic)
        if not PLAN["shards"]:
            trained.requires_grad_(True)
            frozen.requires_grad_(False)
        real, made = torch.randn(8, WIDTH), generator(torch.randn(8, 4))
        loss = -critic(made).mean()
        if trained is critic:
            loss = torch.nn.functional.softplus(-critic(real)).mean() - loss
        loss.backward()
        for each in () if PLAN["shards"] else trained.parameters():
            dist.all_reduce(each.grad.div_(world))
        frozen.zero_grad()
        faults("ready")
        live.commit(number)
        faults("committed")
        both.zero_grad()
    record(
        "end", rank=rank, weights=digest(both.parameters()), optimizer=[digest_of(each) for each in optimizers],
        random=digest([torch.get_rng_state()]),
    )  # fmt: skip


def main() -> None:
    live = inprocess.LiveState()
    training: Callable[..., None] = {
        "mixed precision": train_in_mixed_precision, "sharded": train_in_shards, "adversarial": train_adversarially,
    }[PLAN["training"]]  # fmt: skip
    gather = _Ports._gather

    def gather_and_fail(ports: _Ports, row: torch.Tensor) -> list[torch.Tensor]:
        table = gather(ports, row)
        faults("voted")
        return table

    _Ports._gather = gather_and_fail  # type: ignore[method-assign]

    def train(call_wrapper: inprocess.CallWrapper) -> None:
        dist.init_process_group("gloo")
        faults.begin(call_wrapper.iteration, dist.get_rank())
        training(live, call_wrapper)
        dist.destroy_process_group()

    soft = timedelta(seconds=60)
    inprocess.Wrapper(
        rank_assignment=inprocess.Compose(
            rank_assignment.MaxActiveWorldSize(PLAN["active"]), rank_assignment.FillGaps()
        ),
        soft_timeout=soft,
        hard_timeout=soft + timedelta(seconds=30),
    )(train)()


if __name__ == "__main__":
    main()
