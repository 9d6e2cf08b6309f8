"""What FaultToleranceCallback costs a training step without faults: the time in its hooks, in microseconds.

    python tests/benchmarks/lightning_callback.py [--steps N]

A step of Lightning announces some thirty actions to the profiler and calls two hooks of the callback. Both are timed
here without the rest of Lightning, whose own time varies by more; the rank monitor is a real one, in a process beside.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import time
from types import SimpleNamespace
from typing import Any

from lightning.pytorch.profilers import PassThroughProfiler
from nvrx_lightning.monitoring.training import Training

from nvrx_core.fault_tolerance import start_local_monitor

LIMIT = 0.01
"""Of a step of 10 ms."""
BATCH = 200
HOOKS = (
    "[Callback]TQDMProgressBar.{}", "[Callback]FaultToleranceCallback.{}", "[Callback]ModelCheckpoint{{}}.{}",
    "[LightningModule]Model.{}",
)  # fmt: skip
OUTSIDE = [hook.format(name) for name in ("on_train_batch_start", "on_train_batch_end") for hook in HOOKS]
INSIDE = [hook.format(name) for name in ("on_before_zero_grad", "on_before_backward", "on_after_backward",
                                         "on_before_optimizer_step") for hook in HOOKS]  # fmt: skip
INSIDE += [f"[Strategy]DDPStrategy.{name}" for name in ("training_step", "backward", "batch_to_device")]
FETCH = "[_TrainingEpochLoop].train_dataloader_next"


def step(profiler: Any) -> None:
    """What Lightning tells the profiler in a step of automatic optimization."""
    profiler.start(FETCH)
    profiler.stop(FETCH)
    with profiler.profile("run_training_batch"):
        for action in INSIDE:
            with profiler.profile(action):
                pass
    for action in OUTSIDE:
        with profiler.profile(action):
            pass


def timed(trainer: Any, training: Training | None) -> float:
    """Returns the seconds of a step, as the mean of a batch of them."""
    begun = time.perf_counter()
    for _ in range(BATCH):
        step(trainer.profiler)
        if training is not None:
            training.batch_ended()
    return (time.perf_counter() - begun) / BATCH


def measure(steps: int) -> dict[str, float]:
    """Returns microseconds a step: with the callback, without it, and the difference, as medians."""
    client = start_local_monitor()
    plain, watched = (SimpleNamespace(profiler=PassThroughProfiler(), global_step=1) for _ in range(2))
    watched.global_rank, watched.world_size = 0, 1
    training = Training(watched, client, None, heartbeats=True, log=logging.getLogger("benchmark"))
    training.begin(None)
    training.started()
    pairs = [(timed(watched, training), timed(plain, None)) for _ in range(max(1, steps // BATCH))]
    client.shutdown_workload_monitoring()
    found = {
        "with": statistics.median(mine for mine, _ in pairs),
        "without": statistics.median(other for _, other in pairs),
        "callback": statistics.median(mine - other for mine, other in pairs),
    }
    return {name: round(seconds * 1e6, 1) for name, seconds in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=20_000)
    found = measure(parser.parse_args().steps)
    share = found["callback"] / 10_000
    print(json.dumps({**found, "share_of_10_ms": round(share, 5), "limit": LIMIT}))
    raise SystemExit(share > LIMIT)


if __name__ == "__main__":
    main()
