"""A rank of a training whose state lives in memory, with faults at drawn points and at instants that a timer chooses.

`NVRX_TEST_DRAWN` has, as JSON: `kind` (of the training: `replicas`, `shards`, `mixed` for shards with replicas),
`steps`, `active` (how many ranks train; the others are reserves), `teams` (a replica that has lost a rank is given
up), `seed`, `faults` (how many iterations have one), `kinds` (`exception`, `hang`, `kill`), `two` (how often an
iteration has a second one) and `least` (no kill with so few ranks left). Without faults, it is the twin.

All ranks draw the same faults; each injects its own. An exception at an instant is raised by the handler of a timer's
signal: at whatever bytecode the main thread is, in code of torch and nvrx alike.
"""

from __future__ import annotations

import faulthandler
import hashlib
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from nvrx_core import inprocess
from nvrx_core.inprocess import live_state, rank_assignment
from nvrx_core.inprocess.live import training
from tests.harness.process.workers.record import Record

__all__: list[str] = []

PLAN: dict[str, Any] = {
    "kind": "replicas", "steps": 60, "active": None, "teams": False, "seed": 0, "faults": 0, "kinds": ["exception"],
    "two": 0.3, "least": 2, **json.loads(os.environ.get("NVRX_TEST_DRAWN", "{}")),
}  # fmt: skip
WIDTH, SHARDS = 24, 2
POINTS = {
    "pass": (
        "data", "forward", "layer", "backward", "hook", "reduce", "ready", "capture", "captured", "vote", "voted",
        "committed", "zeroed",
    ),
    "step": ("passed", "advance", "middle", "advanced"),
    "recovery": (
        "begin", "group", "build", "holds", "exchange", "recover", "vote", "voted", "passed", "advance", "capture",
        "adopt", "adopted", "restore", "restored", "resumed", "wrapped",
    ),
    "transfer": ("send", "sent", "receive", "received"),
}  # fmt: skip
"""Where a fault is drawn. A point of the recovery may not be met: then the pass has a fault at `LAST`."""
LAST = "data", 6
SPARED = {
    "__torch_dispatch__", "_acquireLock", "_releaseLock", "_clear_cache", "isEnabledFor", "__del__", "__enter__",
    "__exit__",
}  # fmt: skip
"""Functions in which no exception is raised at an instant, as none of nvrx's is: torch keeps a mode of fake tensors,
and aborts the process at the next one, or goes on without gradients; the lock of logging would stay held, in which
nvrx's monitor thread would wait; what `__del__` raises is dropped."""
UNWATCHED = {"advance", "send", "receive", "send_row", "receive_row"}
"""Functions in which there is no hang: one in an atomic section ends at the hard timeout, and one in a transfer, which
takes as long as it takes, at the timeout of the process group."""
record = Record.of_environment()


class Injected(RuntimeError):
    """The fault."""


@dataclass
class Drawn:
    """A fault of an iteration: at the `after`th time at a point, `delay` seconds later; without a point, that long
    after the iteration has begun. Without a victim, it is that of each rank that comes to the point."""

    victim: int | None
    kind: str
    point: str | None
    after: int = 1
    delay: float = 0.0


class Faults:
    """The faults of this rank."""

    def __init__(self) -> None:
        self.mine: list[Drawn] = []
        self.armed: list[tuple[float, int, Drawn]] = []  # by the instant
        self.hits: Counter[str] = Counter()
        self.inside, self.iteration = False, -1
        if PLAN["faults"]:
            signal.signal(signal.SIGALRM, self.at_instant)

    def begin(self, call: inprocess.CallWrapper) -> None:
        """Draw the faults of an iteration."""
        state = call.state
        rank = state.rank if state.active_rank is None else state.active_rank
        world = state.world_size if state.active_world_size is None else state.active_world_size
        self.mine, self.armed, self.hits = [], [], Counter()
        self.iteration, self.inside = call.iteration, True
        if call.iteration >= PLAN["faults"]:
            return
        draw = random.Random(f"{PLAN['seed']}:{call.iteration}")
        drawn = [self.drawn(draw, world) for _ in range(1 + (draw.random() < PLAN["two"]))]
        may_die = state.world_size - PLAN["least"]
        for each in drawn:
            if each.kind == "kill":
                dies = 1 if each.victim is not None else 2  # of those that send, at most
                each.kind, may_die = ("kill" if may_die >= dies else "exception"), may_die - dies
        drawn.append(Drawn(draw.randrange(world), "exception", *LAST))
        mine = [each for each in drawn if each.victim in (rank, None)]
        self.mine = [each for each in mine if each.point is not None]
        for each in mine:
            if each.point is None:
                self.arm(each)

    def drawn(self, draw: random.Random, world: int) -> Drawn:
        group = draw.choice(["instant", "instant", "pass", "pass", "step", "recovery", "recovery", "transfer"])
        point = draw.choice(POINTS[group]) if group in POINTS else None
        after = 1 if group in ("recovery", "transfer") else draw.choice([1, 1, 1, 2, 3, 4])
        delay = draw.choice([0.0, 0.0, 0.0, 0.0, draw.uniform(0, 5e-4), draw.uniform(0, 5e-3)])
        if point is None:
            delay = draw.choice([draw.uniform(0.0005, 0.03), draw.uniform(0.001, 0.1)])
        victim = None if group == "transfer" else draw.randrange(world)
        return Drawn(victim, draw.choice(PLAN["kinds"]), point, after, delay)

    def __call__(self, point: str) -> None:
        if not self.mine or not self.inside:
            return
        self.hits[point] += 1
        for each in list(self.mine):
            if each.point == point and self.hits[point] == each.after:
                self.mine.remove(each)
                if each.delay:
                    self.arm(each)
                else:
                    self.fire(each.kind, point)

    def arm(self, fault: Drawn) -> None:
        self.armed = sorted([*self.armed, (time.monotonic() + fault.delay, id(fault), fault)])
        self.wait()

    def wait(self) -> None:
        """Set the timer to the first of the instants."""
        left = self.armed[0][0] - time.monotonic() if self.armed else 0.0
        signal.setitimer(signal.ITIMER_REAL, max(left, 1e-6) if self.armed else 0.0)

    def at_instant(self, signum: int, frame: Any) -> None:
        if not self.inside or not self.armed:
            return
        if SPARED.intersection(each.f_code.co_name for each in frames(frame)):
            signal.setitimer(signal.ITIMER_REAL, 1e-3)
            return
        (_, _, fault), *self.armed = self.armed
        self.wait()
        self.fire(fault.kind, f"{fault.delay:.6f} s after {fault.point or 'the begin'}")

    def fire(self, kind: str, where: str) -> None:
        inside = list(frames(sys._getframe(1)))
        advances = any(each.f_code.co_name in ("advance", "_advance") for each in inside)
        if kind == "hang" and UNWATCHED.intersection(each.f_code.co_name for each in inside):
            kind = "exception"
        landed = [f"{each.f_code.co_filename}:{each.f_lineno} {each.f_code.co_name}" for each in inside]
        record("fault", kind=kind, where=where, iteration=self.iteration, advances=advances, landed=landed[:12])
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "hang":
            time.sleep(1000)
        raise Injected(where)

    def end(self) -> None:
        self.inside = False
        signal.setitimer(signal.ITIMER_REAL, 0)


def frames(frame: Any) -> Iterator[Any]:
    """Return a frame and those that have called it."""
    while frame is not None:
        yield frame
        frame = frame.f_back


faults = Faults()


def follow() -> None:
    """Be told of the phases of a commit and of a resume."""

    def between(owner: Any, name: str, before: str, after: str = "") -> None:
        call: Callable[..., Any] = getattr(owner, name)

        def followed(*args: Any, **kwargs: Any) -> Any:
            faults(before)
            result = call(*args, **kwargs)
            if after:
                faults(after)
            return result

        setattr(owner, name, followed)

    between(live_state.rows, "capture", "capture", "captured")
    between(live_state.rows, "restore", "restore", "restored")
    between(live_state.tensors, "adopt", "adopt", "adopted")
    between(live_state.tensors, "send", "send", "sent")
    between(live_state.tensors, "receive", "receive", "received")
    between(live_state._Ports, "_gather", "vote", "voted")
    between(live_state._Ports, "exchange", "exchange")
    between(live_state._Ports, "enter_atomic", "passed")
    between(training, "recover", "recover")


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


def make_model(rank: int, world: int) -> torch.nn.Module:
    """Return the model, equal on all ranks; the random numbers that follow are the rank's."""
    torch.manual_seed(7)
    normalized = [torch.nn.BatchNorm1d(WIDTH)] if PLAN["kind"] == "replicas" else []
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, WIDTH), *normalized, torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(WIDTH, 1)
    )
    torch.manual_seed(100 + rank)
    random.seed(rank)
    if PLAN["kind"] != "replicas":
        mixed = PLAN["kind"] == "mixed"
        shape = (world // SHARDS, SHARDS) if mixed else (world,)
        names = ("replicas", "shards") if mixed else ("shards",)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        for layer in model:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    model[-1].register_forward_pre_hook(lambda *_: faults("layer"))
    return model


def reduce(state: object, bucket: dist.GradBucket) -> Any:
    """Sum a bucket of gradients."""
    faults("hook")
    future = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True).get_future()
    faults("reduce")
    return future.then(lambda done: done.value()[0])


reduce.__annotations__.clear()  # torch compares them with types, and these are texts


def digest(found: Any) -> str:
    total = hashlib.sha256()
    for each in found:
        local = each.to_local() if hasattr(each, "to_local") else each
        total.update(local.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()[:16]


def train(live: inprocess.LiveState, call: inprocess.CallWrapper) -> None:
    faults("begin")
    dist.init_process_group("gloo")
    faults("group")
    rank, world = dist.get_rank(), dist.get_world_size()
    faults("build")
    model = make_model(rank, world)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda number: 0.999**number)
    sampler = Sampler()

    def advance() -> None:
        faults("advance")
        optimizer.step()
        faults("middle")
        scheduler.step()
        record("step", step=scheduler.last_epoch - 1)
        faults("advanced")

    memory = live._training.memory
    record(
        "holds", iteration=call.iteration, rank=rank, world=world, passed=live.passed_vote(), shard=live.shard,
        version=memory.version, pending=memory.pending and memory.pending.stamp,
        beginning=memory.beginning and memory.beginning.stamp, torn=memory.torn,
    )  # fmt: skip
    faults("holds")
    first = live.resume(model, optimizer, advance, shared={"scheduler": scheduler}, local={"sampler": sampler})
    recovery = live._training.recovery
    record(
        "resumed", iteration=call.iteration, rank=rank, step=first, needs=live.shard,
        fresh=getattr(recovery, "fresh", ()), exchanged=recovery is not None,
    )  # fmt: skip
    if first is None:
        first = 0
        live.start(first)
    faults("resumed")
    ddp = model
    if PLAN["kind"] == "replicas":
        # Without new buckets, whose sums would be in another order.
        ddp = DistributedDataParallel(model, init_sync=False, find_unused_parameters=True)
        ddp.register_comm_hook(None, reduce)
    faults("wrapped")
    for step in range(first, PLAN["steps"]):
        faults("data")
        batch = sampler.next(rank) + random.random()
        faults("forward")
        loss = (ddp(batch) - batch[:, :1]).square().mean()
        loss.register_hook(lambda gradient: faults("backward"))
        loss.backward()
        faults("ready")
        live.commit(step)
        faults("committed")
        optimizer.zero_grad()
        faults("zeroed")
    parameters = list(model.parameters())
    states = [optimizer.state[each][name] for each in parameters for name in ("exp_avg", "exp_avg_sq")]
    record(
        "end", rank=rank, world=world, weights=digest([*parameters, *states]), position=sampler.position,
        local=digest([*model.buffers(), torch.get_rng_state()]) + str(random.random()),
        rate=scheduler.get_last_lr()[0],
    )  # fmt: skip
    dist.destroy_process_group()


def main() -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    live = inprocess.LiveState()
    if PLAN["faults"]:
        follow()
    active = PLAN["active"]
    if PLAN["teams"]:
        replica = rank_assignment.Layer(key_or_fn=lambda state: state.rank // SHARDS, min_ranks=SHARDS)
        assigned: Any = rank_assignment.Tree([rank_assignment.Layer(), replica])
    elif active:
        assigned = inprocess.Compose(rank_assignment.MaxActiveWorldSize(active), rank_assignment.FillGaps())
    else:
        assigned = inprocess.Compose(rank_assignment.ActivateAllRanks(), rank_assignment.ShiftRanks())

    def guarded(call_wrapper: inprocess.CallWrapper) -> None:
        try:
            torch.set_grad_enabled(True)  # between `__enter__` and the body of a `with`, an instant leaves it off
            faults.begin(call_wrapper)
            train(live, call_wrapper)
        finally:
            faults.end()

    inprocess.Wrapper(
        rank_assignment=assigned,
        no_progress_limit=None,
        soft_timeout=timedelta(seconds=1.5),
        hard_timeout=timedelta(seconds=30),
    )(guarded)()


if __name__ == "__main__":
    main()
