"""A training whose state lives in memory, with faults at drawn points; what it writes down is what it has committed.

`NVRX_TEST_LIVE` has, as JSON: `steps`, `faults` (how many iterations have one), `seed`, `kinds` (`exception`, `kill`,
`asynchronous`), `points`, `active` (the others are reserves), `sharded`, `least` (no kill below so many ranks),
`touched` (the steps at which rank 0 changes a parameter elsewhere), `transfer` (seconds that the first one of
a rank takes), `group` (the timeout of the process group in seconds), `soft` (the
soft timeout in seconds), `alternate` (the places move on by one process in each iteration: who has had the first one
becomes a reserve), `second` (a second live state follows the end of the first one's training), `twice` (each step is
committed twice), `limit` (of restarts without progress), `unsaved` (at which place of a pass each third one fails),
`amount` (by how much a parameter is changed elsewhere), `seeds` (each rank begins with other weights) and `compare`
(the live state compares replicas).
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import random
import signal
import threading
from collections import Counter
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from nvrx_core import inprocess
from nvrx_core.inprocess import rank_assignment
from nvrx_core.inprocess.live import objects as tensors
from nvrx_core.inprocess.live_state import _Ports
from tests.harness.process.workers.record import Record

PLAN: dict[str, Any] = {
    "steps": 30, "faults": 0, "seed": 0, "kinds": ["exception"], "active": None, "sharded": False, "least": 2,
    "touched": [], "transfer": 0.0, "group": 1800.0, "soft": 60.0, "alternate": False, "second": False, "twice": False,
    "limit": None, "unsaved": "", "amount": 0.0, "seeds": False, "compare": False,
    "points": ["build", "resumed", "data", "forward", "backward", "ready", "advance", "advanced", "committed"],
    **json.loads(os.environ.get("NVRX_TEST_LIVE", "{}")),
}  # fmt: skip
WIDTH, SHARDS = 24, 2
record = Record.of_environment()


class Injected(RuntimeError):
    """The fault."""


class Alternate(rank_assignment.RankAssignment):
    """A user's assignment that puts the first of those who have trained in reserve."""

    def __call__(self, ctx: rank_assignment.RankAssignmentCtx) -> rank_assignment.RankAssignmentCtx:
        state = ctx.state
        following = 0 if ctx.snapshot is None else ctx.snapshot.iteration + 1
        place, active = (state.rank - following) % state.world_size, PLAN["active"] or 1
        state.mode = inprocess.Mode.ACTIVE if place < active else inprocess.Mode.INACTIVE
        state.active_rank, state.active_world_size = (place if place < active else None), active
        return ctx


class Faults:
    """One fault in each of the first iterations, drawn alike on all ranks."""

    def __init__(self) -> None:
        self.point: str | None = None
        self.hits: Counter[str] = Counter()
        self.iteration, self.inside = -1, False

    def begin(self, call: inprocess.CallWrapper, rank: int, world: int) -> None:
        self.point, self.hits, self.iteration, self.inside = None, Counter(), call.iteration, True
        if call.iteration >= PLAN["faults"]:
            return
        draw = random.Random(f"{PLAN['seed']}:{call.iteration}")
        self.kind, victim, point, self.after = (
            draw.choice(PLAN["kinds"]), draw.randrange(world), draw.choice(PLAN["points"]), draw.choice([1, 1, 2, 3]),
        )  # fmt: skip
        if self.kind == "kill" and call.state.world_size <= PLAN["least"]:
            self.kind = "exception"
        delay = draw.uniform(0.0, 0.1)
        if victim == rank and self.kind == "asynchronous":
            timer = threading.Timer(delay, self.fire, [call.iteration])
            timer.daemon = True
            timer.start()
        elif victim == rank:
            self.point = point
            self.after = 1 if point in ("build", "resumed") else self.after

    def __call__(self, point: str) -> None:
        self.hits[point] += 1
        if point == self.point and self.hits[point] == self.after:
            self.fire(self.iteration)

    def fire(self, iteration: int) -> None:
        if iteration != self.iteration or not self.inside:
            return
        record("injected", kind=self.kind, point=self.point, iteration=iteration)
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "asynchronous":
            main = ctypes.c_ulong(threading.main_thread().ident or 0)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(Injected))
        else:
            raise Injected(self.point)


faults = Faults()


class Sampler:
    """A position in the data: the batch follows from it and the rank."""

    def __init__(self) -> None:
        self.position = 0

    def next(self, rank: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1000 * self.position + rank)
        self.position += 1
        return torch.randn(8, WIDTH, generator=generator)

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


def make_model(rank: int, kind: str, *, seed: int = 7) -> Any:
    """Return a model of `replicas`, `shards`, or `mixed` for shards with replicas, the whole of it equal on all ranks.

    The random numbers that follow are the rank's.
    """
    torch.manual_seed(seed)
    normalized = [torch.nn.BatchNorm1d(WIDTH)] if kind == "replicas" else []
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, WIDTH), *normalized, torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(WIDTH, 1)
    )
    torch.manual_seed(100 + rank)
    random.seed(rank)
    if kind != "replicas":
        world = dist.get_world_size()
        shape = (world // SHARDS, SHARDS) if kind == "mixed" else (world,)
        names = ("replicas", "shards") if kind == "mixed" else ("shards",)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        for layer in model:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def digest(tensors: Any) -> str:
    found = hashlib.sha256()
    for each in tensors:
        local = each.to_local() if hasattr(each, "to_local") else each
        found.update(local.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def train(live: inprocess.LiveState, second: inprocess.LiveState, call: inprocess.CallWrapper) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=PLAN["group"]))
    rank = dist.get_rank()
    faults.begin(call, rank, dist.get_world_size())
    faults("build")
    model = make_model(rank, "shards" if PLAN["sharded"] else "replicas", seed=7 + rank * PLAN["seeds"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda number: 0.999**number)
    sampler = Sampler()

    def advance() -> None:
        faults("advance")
        optimizer.step()
        scheduler.step()
        record("step", step=scheduler.last_epoch - 1)
        faults("advanced")

    first = live.resume(model, optimizer, advance, shared={"scheduler": scheduler}, local={"sampler": sampler})
    if first is None:
        first = 0
        live.start(first)
    last = inprocess.last_restart()
    record("resumed", iteration=call.iteration, step=first, highest=None if last is None else last.highest_step)
    faults("resumed")
    # Without new buckets, whose sums would be in another order.
    ddp = model if PLAN["sharded"] else DistributedDataParallel(model, init_sync=False, find_unused_parameters=True)
    for step in range(first, PLAN["steps"]):
        faults("data")
        if PLAN["unsaved"] == "begin" and step and step % 3 == 0 and rank == 0:
            raise OSError("no space left")
        batch = sampler.next(rank) + random.random()
        faults("forward")
        loss = (ddp(batch) - batch[:, :1]).square().mean()
        loss.register_hook(lambda gradient: faults("backward"))
        loss.backward()
        faults("ready")
        if step in PLAN["touched"] and rank == 0:
            with torch.no_grad():
                next(model.parameters()).add_(PLAN["amount"])
        live.commit(step)
        if PLAN["twice"]:
            live.commit(step)
        faults("committed")
        if PLAN["unsaved"] == "end" and step % 3 == 2 and rank == 0:
            raise OSError("no space left")
        optimizer.zero_grad()
    parameters = list(model.parameters())
    states = [optimizer.state[each][name] for each in parameters for name in ("exp_avg", "exp_avg_sq")]
    record(
        "end", rank=rank, world=dist.get_world_size(), weights=digest([*parameters, *states]),
        local=digest([*model.buffers(), torch.get_rng_state()]) + str(random.random()),
    )  # fmt: skip
    if PLAN["second"]:
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters())
        second.resume(model, optimizer, optimizer.step)
    dist.destroy_process_group()


def main() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))  # torch imports its compiler in the first step
    parameter.grad = torch.zeros(1)
    torch.optim.AdamW([parameter], foreach=True).step()
    live, second = inprocess.LiveState(compare_replicas=PLAN["compare"]), inprocess.LiveState()
    active = PLAN["active"]
    assignment = (
        inprocess.Compose(rank_assignment.MaxActiveWorldSize(active), rank_assignment.FillGaps())
        if active else inprocess.Compose(rank_assignment.ActivateAllRanks(), rank_assignment.ShiftRanks())
    )  # fmt: skip

    def guarded(call_wrapper: inprocess.CallWrapper) -> None:
        try:
            train(live, second, call_wrapper)
        finally:
            faults.inside = False

    if PLAN["alternate"]:
        assignment = Alternate()
    send = tensors.send

    def send_slowly(objects: tensors.Objects, to: int, interruptible: tensors.Interruptible) -> None:
        taken, PLAN["transfer"] = PLAN["transfer"], 0.0
        threading.Event().wait(taken)  # executes no bytecode, as a transfer
        send(objects, to, interruptible)

    tensors.send = send_slowly
    gather = _Ports._gather

    def gather_and_fail(ports: _Ports, row: torch.Tensor) -> list[torch.Tensor]:
        table = gather(ports, row)
        if faults.point == "voted" and faults.hits["voted"] + 1 == faults.after:
            threading.Event().wait(0.5)  # until the others have passed the vote
        faults("voted")
        return table

    _Ports._gather = gather_and_fail  # type: ignore[method-assign]
    soft = timedelta(seconds=PLAN["soft"])
    inprocess.Wrapper(
        rank_assignment=assignment,
        no_progress_limit=PLAN["limit"],
        soft_timeout=soft,
        hard_timeout=soft + timedelta(seconds=30),
    )(guarded)()


if __name__ == "__main__":
    main()
