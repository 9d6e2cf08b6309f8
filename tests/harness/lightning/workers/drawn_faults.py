"""A rank of a fit in whose attempts faults are drawn: at named points, and at instants that a timer chooses.

`NVRX_TEST_DRAWN` has, as JSON: `seed`, `faults` (how many attempts have one), `kinds` (`exception`, `hang`, `kill`),
`two` (how often an attempt has a second one) and `least` (no kill with so few ranks left). Without it, there are none:
that is the twin. An exception at an instant is raised by the handler of a timer's signal: at whatever bytecode the main
thread is, in code of Lightning, torch and nvrx alike.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback
from nvrx_lightning.restart import loops, memory
from nvrx_lightning.restart.fit import RestartableFit
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from nvrx_core.inprocess import live_state
from tests.harness.lightning.setting import Setting
from tests.harness.lightning.workers import fit
from tests.harness.process.workers.record import Record

__all__: list[str] = []

importlib.reload(fit)  # the template has imported it as another rank
PLAN: dict[str, Any] = {
    "seed": 0, "faults": 0, "kinds": ["exception"], "two": 0.2, "least": 1,
    **json.loads(os.environ.get("NVRX_TEST_DRAWN", "{}")),
}  # fmt: skip
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
"""Functions that no restart interrupts: `atomic()`."""
SPARED = {
    "_broadcast_sigterm_tensor", "__torch_dispatch__", "_acquireLock", "_releaseLock", "_clear_cache", "isEnabledFor",
}  # fmt: skip
"""Functions in which no exception is raised at an instant: Lightning drops it and leaves out a collective; torch keeps
a mode of fake tensors, and aborts the process at the next one; the lock of logging would stay held, in which each later
line of any thread would wait, that of nvrx's monitor thread, too."""


class Injected(RuntimeError):
    """The fault."""


@dataclass
class Drawn:
    """One fault of an attempt: at the `after`th time at a point, `delay` seconds later; without a point, that long
    after the attempt has begun."""

    victim: int
    kind: str
    point: str | None
    after: int
    delay: float


class DrawnFaults(fit.Faults):
    """Draws the faults of each attempt, alike on all ranks, and injects those of this rank."""

    def __init__(self, setting: Setting, record: Record) -> None:
        super().__init__(setting, record)
        self.mine: list[Drawn] = []
        self.armed: list[tuple[float, int, Drawn]] = []  # by the instant
        self.kind, self.where = "", ""
        self.hits: Counter[str] = Counter()
        self.inside, self.iteration = False, -1
        if PLAN["faults"]:
            signal.signal(signal.SIGALRM, self.at_instant)
            self.follow()

    def follow(self) -> None:
        """Be told of attempts, and of calls in them."""
        attempt = RestartableFit._attempt

        def followed(restartable: RestartableFit, call_wrapper: Any) -> Any:
            try:
                self.begin(call_wrapper)
                return attempt(restartable, call_wrapper)
            finally:
                self.inside = False
                signal.setitimer(signal.ITIMER_REAL, 0)

        RestartableFit._attempt = followed  # type: ignore[method-assign]
        for owner, name in CALLS:
            setattr(owner, name, self.around(name, getattr(owner, name)))
        gather = live_state._Ports._gather

        def voting(ports: Any, row: Any) -> Any:
            self("vote", 0)
            rows = gather(ports, row)
            self("voted", 0)
            return rows

        live_state._Ports._gather = voting  # type: ignore[method-assign]
        register_optimizer_step_pre_hook(lambda *_: self("advance", 0))
        register_optimizer_step_post_hook(lambda *_: self("advanced", 0))

    def around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def around(*args: Any, **kwargs: Any) -> Any:
            self(name, 0)
            result = call(*args, **kwargs)
            self(f"{name}_ended", 0)
            return result

        return around

    def begin(self, call: Any) -> None:
        """Draw the faults of an attempt."""
        state = call.state
        rank = state.rank if state.active_rank is None else state.active_rank
        world = state.world_size if state.active_world_size is None else state.active_world_size
        self.mine, self.armed, self.hits = [], [], Counter()
        self.iteration, self.inside = call.iteration, True
        if call.iteration >= PLAN["faults"]:
            return
        draw = random.Random(f"{PLAN['seed']}:{call.iteration}")
        drawn = [self.drawn(draw, world) for _ in range(1 + (draw.random() < PLAN["two"]))]
        may_kill = state.world_size > PLAN["least"]
        for each in drawn:
            if each.kind == "kill":
                each.kind, may_kill = "kill" if may_kill else "exception", False
        # Without a fault, the fit would end: a point may not be reached.
        drawn.append(Drawn(draw.randrange(world), "exception", None, 0, draw.uniform(0.1, 0.3)))
        mine = [each for each in drawn if each.victim == rank]
        self.mine = [each for each in mine if each.point is not None]
        for each in mine:
            if each.point is None:
                self.arm(each)

    def drawn(self, draw: random.Random, world: int) -> Drawn:
        group = draw.choice(["instant", "instant", "hooks", "step", "recovery" if self.iteration else "step"])
        point = draw.choice(POINTS[group]) if group in POINTS else None
        after = draw.choice([1, 1, 1, 2, 3, 4]) if group != "recovery" else 1
        delay = draw.choice([0.0, draw.uniform(0, 5e-4), draw.uniform(0, 5e-3)])
        if point is None:
            delay = draw.choice([draw.uniform(0.001, 0.15), draw.uniform(0.001, 0.6)])
        return Drawn(draw.randrange(world), draw.choice(PLAN["kinds"]), point, after, delay)

    def __call__(self, where: str, step: int) -> None:
        if not self.mine or not self.inside:
            return
        self.hits[where] += 1
        for each in list(self.mine):
            if each.point == where and self.hits[where] == each.after:
                self.mine.remove(each)
                if each.delay:
                    self.arm(each)
                else:
                    self.kind, self.where = each.kind, where
                    self.fire([])

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
        self.arm(Drawn(fault.victim, "exception", None, 0, 0.3))  # this one may be dropped, as in a `__del__`
        self.kind, self.where = fault.kind, f"{fault.delay:.6f} s after {fault.point or 'the begin'}"
        self.fire([f"{each.f_code.co_filename}:{each.f_lineno} {each.f_code.co_name}" for each in frames(frame)])

    def fire(self, landed: list[str]) -> None:
        if self.kind == "hang" and UNINTERRUPTED.intersection(each.f_code.co_name for each in frames(sys._getframe())):
            self.kind = "exception"  # a rank that hangs there is ended at the hard timeout
        self.record("fault", kind=self.kind, where=self.where, attempt=self.iteration, landed=landed[:12])
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "hang":
            time.sleep(1000)
        raise Injected(self.where)


def frames(frame: Any) -> Iterator[Any]:
    """Return a frame and those that have called it."""
    while frame is not None:
        yield frame
        frame = frame.f_back


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
