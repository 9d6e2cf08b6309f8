"""A rank of a fit in whose attempts faults are drawn: at named points, and at instants that a timer chooses.

The faults, and `NVRX_TEST_DRAWN`, are those of `tests.harness.instants`.
"""

from __future__ import annotations

import hashlib
import importlib
import random
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback
from nvrx_lightning.restart import loops, memory
from nvrx_lightning.restart.fit import RestartableFit
from torch.optim.optimizer import register_optimizer_step_post_hook

from nvrx_core.inprocess import live_state
from tests.harness.instants import SPARED, Drawn, Instants, drawn_plan, follow
from tests.harness.lightning.setting import Setting
from tests.harness.lightning.workers import fit
from tests.harness.process.workers.record import Record

__all__: list[str] = []

importlib.reload(fit)  # the template has imported it as another rank
PLAN = drawn_plan(two=0.2)
POINTS = {
    "hooks": (
        "setup", "train_start", "batch_start", "before_forward", "train", "backward", "before_step", "scheduler",
        "batch_end", "after_stop", "epoch_end", "epoch_start", "validation", "validation_last", "dump", "train_end",
    ),
    "step": (
        "capture", "vote", "voted", "advance", "advanced", "left", "commit_ended", "_trainer_state",
        "_trainer_state_ended", "reached", "reached_ended", "_end_batch", "_end_batch_ended",
    ),
    "recovery": (
        "choose", "choose_ended", "_restore", "_restore_ended", "set_up", "set_up_ended", "checkpoint_ended",
        "take_over", "take_over_ended", "adopt", "adopt_ended", "resume_ended", "train_started", "train_started_ended",
        "loaded", "loaded_ended",
    ),
}  # fmt: skip
"""Where a fault is drawn; `_ended` is after a call of this name."""
CALLS: tuple[tuple[Any, str], ...] = (
    (live_state.rows, "capture"), (live_state.tensors, "adopt"), (live_state.LiveState, "resume"),
    (live_state.LiveState, "commit"), (memory.FitMemory, "choose"), (memory.FitMemory, "reached"),
    (memory.FitMemory, "set_up"), (memory.FitMemory, "take_over"), (memory.FitMemory, "checkpoint"),
    (RestartableFit, "_trainer_state"), (RestartableFit, "_restore"), (RestartableFit, "loaded"),
    (RestartableFit, "train_started"), (loops, "_end_batch"),
)  # fmt: skip
UNINTERRUPTED = {"advance", "save_checkpoint", "save"}
"""Functions that no restart interrupts: `atomic()`. A rank that hangs there is ended at the hard timeout."""


def draw_fault(draw: random.Random, iteration: int, world: int) -> Drawn:
    group = draw.choice(["instant", "instant", "hooks", "step", "recovery" if iteration else "step"])
    point = draw.choice(POINTS[group]) if group in POINTS else None
    after = draw.choice([1, 1, 1, 2, 3, 4]) if group != "recovery" else 1
    delay = draw.choice([0.0, draw.uniform(0, 5e-4), draw.uniform(0, 5e-3)])
    if point is None:
        delay = draw.choice([draw.uniform(0.001, 0.15), draw.uniform(0.001, 0.6)])
    return Drawn(draw.randrange(world), draw.choice(PLAN["kinds"]), point, after, delay)


class DrawnFaults(fit.Faults):
    """Injects the drawn faults of this rank, by attempts of the fit."""

    def __init__(self, setting: Setting, record: Record) -> None:
        super().__init__(setting, record)
        self.drawn = Instants(
            PLAN, record,
            draw=draw_fault,
            # Without a fault, the fit would end: a point may not be reached.
            last=lambda draw, world: Drawn(draw.randrange(world), "exception", None, 0, draw.uniform(0.1, 0.3)),
            # Lightning drops what is raised there, and leaves out a collective.
            spared=SPARED | {"_broadcast_sigterm_tensor"},
            unwatched=frozenset(UNINTERRUPTED),
            deaths=1,
            again=0.3,
        )  # fmt: skip
        if PLAN["faults"]:
            self.follow()

    def __call__(self, where: str, step: int) -> None:
        self.drawn(where)

    def follow(self) -> None:
        """Be told of attempts, and of calls in them."""
        attempt = RestartableFit._attempt

        def followed(restartable: RestartableFit, call_wrapper: Any) -> Any:
            try:
                self.drawn.begin(call_wrapper)
                return attempt(restartable, call_wrapper)
            finally:
                self.drawn.end()

        RestartableFit._attempt = followed  # type: ignore[method-assign]
        for owner, name in CALLS:
            follow(owner, name, self.drawn, name, f"{name}_ended")
        follow(live_state._Ports, "_gather", self.drawn, "vote", "voted")
        follow(memory._Step, "__call__", self.drawn, "advance", "advanced")


def digest(optimizer: torch.optim.Optimizer) -> str:
    found = hashlib.sha256()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for name, each in sorted(optimizer.state[parameter].items()):
                local = each.to_local() if hasattr(each, "to_local") else torch.as_tensor(each)
                found.update(name.encode() + local.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


class Counting(Callback):
    """A callback with a state: it counts batches, and averages their losses; it tells them at the end."""

    def __init__(self, record: Record) -> None:
        self.record, self.batches, self.mean, self.losses = record, 0, torch.zeros(1), list[float]()

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *_: Any) -> None:
        self.batches += 1
        self.mean = 0.9 * self.mean + 0.1 * outputs["loss"].detach()
        self.losses = [*self.losses[-9:], float(outputs["loss"])]

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self.batches, "mean": self.mean, "losses": self.losses}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.batches, self.mean, self.losses = state["batches"], state["mean"], state["losses"]

    def on_train_end(self, trainer: Any, module: Any) -> None:
        rates = [group["lr"] for each in trainer.optimizers for group in each.param_groups]
        self.record(
            "counted", attempt=fit.attempt_now(), rank=trainer.global_rank, batches=self.batches, mean=self.mean.item(),
            losses=self.losses, optimizer=[digest(each) for each in trainer.optimizers], rates=rates,
        )  # fmt: skip


def main() -> None:
    make_trainer = fit.make_trainer

    def with_more(setting: Setting, faults: fit.Faults, record: Record) -> Any:
        trainer = make_trainer(setting, faults, record)
        trainer.callbacks.insert(0, Counting(record))

        last: list[Any] = []

        def stepped(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            first = optimizer.state[optimizer.param_groups[0]["params"][0]]
            now = [optimizer, int(first["step"]) if first else 0]
            if now != last:  # torch calls the hook twice
                last[:] = now
                record("stepped", attempt=fit.attempt_now(), step=now[1])

        register_optimizer_step_post_hook(stepped)
        return trainer

    fit.make_trainer = with_more
    fit.Faults = DrawnFaults  # type: ignore[misc]
    fit.main()


if __name__ == "__main__":
    main()
