"""A rank of `live_training` with faults at drawn points, and at instants that a timer chooses."""

from __future__ import annotations

import faulthandler
import random
import signal
from collections.abc import Callable
from typing import Any

import torch
from nvrx_megatron import MegatronLiveState

from nvrx_core.inprocess import CallWrapper, current_call
from tests.harness.instants import SPARED, Drawn, Instants, drawn_plan, follow
from tests.harness.megatron import live_training
from tests.harness.process.workers import live_faults
from tests.harness.process.workers.record import Record

__all__: list[str] = []

PLAN = drawn_plan(least=2)
POINTS = {
    "pass": ("data", "forward", "ready", "capture", "captured", "vote", "voted", "committed", "tail"),
    "step": ("passed", "advance", "advanced", "gather", "gathered"),
    "recovery": (
        "begin", "group", "build", "holds", "exchange", "recover", "vote", "voted", "passed", "advance", "capture",
        "adopt", "adopted", "restore", "restored", "chosen", "gather", "gathered", "resumed",
    ),
    "transfer": ("send", "sent", "receive", "received"),
}  # fmt: skip
"""Where a fault is drawn."""
record = Record.of_environment()


def draw_fault(draw: random.Random, iteration: int, world: int) -> Drawn:
    group = draw.choice(["instant", "instant", "pass", "pass", "step", "recovery", "recovery", "transfer"])
    point = draw.choice(POINTS[group]) if group in POINTS else None
    after = 1 if group in ("recovery", "transfer") else draw.choice([1, 1, 1, 2, 3])
    delay = draw.choice([0.0, 0.0, 0.0, draw.uniform(0, 1e-3), draw.uniform(0, 2e-2)])
    if point is None:
        delay = draw.choice([draw.uniform(0.0005, 0.1), draw.uniform(0.001, 0.4)])
    victim = None if group == "transfer" else draw.randrange(world)
    return Drawn(victim, draw.choice(PLAN["kinds"]), point, after, delay)


class Faults(Instants):
    """Those of this rank; they begin before the training does, which knows its rank only later."""

    def begin(self, call: CallWrapper, *ranks: int) -> None:
        if ranks:
            self("group")
        else:
            super().begin(call)


faults = Faults(
    PLAN, record,
    draw=draw_fault,
    last=lambda draw, world: Drawn(draw.randrange(world), "exception", "data", 5),
    spared=SPARED | {"__del__", "__enter__", "__exit__"},  # what `__del__` raises is dropped
    unwatched=frozenset({"advance"}),  # as in `live_faults`
    told=frozenset({"advance", "_advance"}),
)  # fmt: skip


def follow_phases() -> None:
    live_faults.faults = live_training.faults = faults  # type: ignore[assignment]
    live_faults.follow_phases()
    follow(MegatronLiveState, "_take_over", faults, "restored", "chosen")


def tell_what_is_held() -> None:
    """Record what this rank has in memory before it resumes."""
    resume = MegatronLiveState.resume

    def resumed(live: MegatronLiveState, *args: Any, **kwargs: Any) -> Any:
        memory = None if live._live is None else live._live._training.memory
        call = current_call()
        if memory is not None and call is not None:
            assert live._live is not None
            record(
                "holds", iteration=call.iteration, rank=call.state.active_rank, passed=live._live.passed_vote(),
                shard=live._live.shard or (), version=memory.version, pending=memory.pending and memory.pending.stamp,
                beginning=memory.beginning and memory.beginning.stamp, torn=memory.torn,
            )  # fmt: skip
        faults("holds")
        return resume(live, *args, **kwargs)

    MegatronLiveState.resume = resumed  # type: ignore[method-assign]


def around(train: Callable[[], None], call: CallWrapper) -> None:
    try:
        torch.set_grad_enabled(True)  # between `__enter__` and the body of a `with`, an instant leaves it off
        faults.begin(call)
        faults("begin")
        train()
    finally:
        faults.end()


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    if PLAN["faults"]:
        follow_phases()
        tell_what_is_held()
    live_training.main(around)
