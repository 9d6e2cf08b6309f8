"""A rank of a training whose state lives in memory, with faults at drawn points and at instants that a timer chooses.

Besides what `tests.harness.instants` says, `NVRX_TEST_DRAWN` has `kind` (of the training: `replicas`, `shards`, `mixed`
for shards with replicas), `steps`, `active` (how many ranks train; the others are reserves) and `teams` (a replica that
has lost a rank is given up).
"""

from __future__ import annotations

import faulthandler
import random
import signal
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from nvrx_core import inprocess
from nvrx_core.inprocess import live_state, rank_assignment
from nvrx_core.inprocess.live import training
from tests.harness.instants import SPARED, Drawn, Instants, drawn_plan, follow
from tests.harness.process.workers.live_training import SHARDS, Sampler, digest, make_model
from tests.harness.process.workers.record import Record

__all__: list[str] = []

PLAN = drawn_plan(kind="replicas", steps=60, active=None, teams=False, least=2)
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
"""Where a fault is drawn."""
UNWATCHED = {"advance", "send", "receive", "send_row", "receive_row"}
"""An atomic section, in which a hang ends at the hard timeout, and transfers, which take as long as they take, and end
at the timeout of the process group."""
record = Record.of_environment()


def draw_fault(draw: random.Random, iteration: int, world: int) -> Drawn:
    group = draw.choice(["instant", "instant", "pass", "pass", "step", "recovery", "recovery", "transfer"])
    point = draw.choice(POINTS[group]) if group in POINTS else None
    after = 1 if group in ("recovery", "transfer") else draw.choice([1, 1, 1, 2, 3, 4])
    delay = draw.choice([0.0, 0.0, 0.0, 0.0, draw.uniform(0, 5e-4), draw.uniform(0, 5e-3)])
    if point is None:
        delay = draw.choice([draw.uniform(0.0005, 0.03), draw.uniform(0.001, 0.1)])
    victim = None if group == "transfer" else draw.randrange(world)
    return Drawn(victim, draw.choice(PLAN["kinds"]), point, after, delay)


faults = Instants(
    PLAN, record,
    draw=draw_fault,
    last=lambda draw, world: Drawn(draw.randrange(world), "exception", "data", 6),
    spared=SPARED | {"__del__", "__enter__", "__exit__"},  # what `__del__` raises is dropped
    unwatched=frozenset(UNWATCHED),
    told=frozenset({"advance", "_advance"}),
)  # fmt: skip


def follow_phases() -> None:
    """Be told of the phases of a commit and of a resume."""
    follow(live_state.rows, "capture", faults, "capture", "captured")
    follow(live_state.rows, "restore", faults, "restore", "restored")
    follow(live_state.tensors, "adopt", faults, "adopt", "adopted")
    follow(live_state.tensors, "send", faults, "send", "sent")
    follow(live_state.tensors, "receive", faults, "receive", "received")
    follow(live_state._Ports, "_gather", faults, "vote", "voted")
    follow(live_state._Ports, "exchange", faults, "exchange")
    follow(live_state._Ports, "enter_atomic", faults, "passed")
    follow(training, "recover", faults, "recover")


def reduce(state: object, bucket: dist.GradBucket) -> Any:
    """Sum a bucket of gradients."""
    faults("hook")
    future = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True).get_future()
    faults("reduce")
    return future.then(lambda done: done.value()[0])


reduce.__annotations__.clear()  # torch compares them with types, and these are texts


def train(live: inprocess.LiveState, call: inprocess.CallWrapper) -> None:
    faults("begin")
    dist.init_process_group("gloo")
    faults("group")
    rank, world = dist.get_rank(), dist.get_world_size()
    faults("build")
    model = make_model(rank, PLAN["kind"])
    model[-1].register_forward_pre_hook(lambda *_: faults("layer"))
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
        follow_phases()
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
