"""Runs an unmodified Megatron-LM script on CPU and gloo, as `python -m nvrx_megatron` does: no file of it is changed.

Its tree is in NVRX_TEST_MEGATRON_LM; folders with what it imports may follow. What stands in for a GPU is set up first;
then `nvrx_megatron.__main__` runs. The faults are injected in `train_step`, counted over the whole process.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import time
import types
from pathlib import Path
from typing import Any

import nvrx_megatron
import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_pre_hook

from examples.megatron import on_cpu
from nvrx_core.inprocess import current_call
from nvrx_core.testing import inject
from nvrx_core.testing.fault_kinds import kind_of
from tests.harness.process.workers.record import Record, usage

__all__ = ["run"]

TREE = "NVRX_TEST_MEGATRON_LM"
FAULTS = "NVRX_TEST_MEGATRON_FAULTS"  # rank:call of train_step=kind, ..., or rank:call@place=kind
SCRIPT = "NVRX_TEST_MEGATRON_SCRIPT"  # pretrain_gpt.py, unless it is another one

record = Record.of_environment()
me = os.environ["RANK"]


def fake_device() -> None:
    """Fake the torch.cuda calls that Megatron-LM makes at its start."""
    cuda: Any = torch.cuda
    on_cpu.install()
    cuda.is_available = lambda: True
    cuda.is_initialized = lambda: False
    cuda.device_count = lambda: int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    properties = types.SimpleNamespace(
        major=8, minor=0, total_memory=1 << 34, name="cpu", multi_processor_count=1, uuid="0"
    )
    cuda.get_device_properties = lambda *args: properties
    cuda.get_device_capability = lambda *args: (8, 0)
    cuda.get_device_name = lambda *args: "cpu"
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        setattr(cuda, name, lambda *args: 0)
    cuda.device_memory_used = lambda *args: 0
    names = ("allocation.all.current", "allocated_bytes.all.current", "allocated_bytes.all.peak")
    cuda.memory_stats = lambda *args: dict.fromkeys((*names, "reserved_bytes.all.current"), 0)
    cuda.is_current_stream_capturing = lambda: False
    torch.nn.Module.cuda = lambda self, device=None: self  # type: ignore[method-assign,assignment]
    barrier = dist.barrier

    def barrier_of_no_device(*args: Any, device_ids: Any = None, **kwargs: Any) -> Any:
        return barrier(*args, **kwargs)

    dist.barrier = barrier_of_no_device


def fake_build(tree: Path) -> None:
    """Fake what requires a CUDA compiler or a newer Python."""
    from tests.harness.megatron.site import sitecustomize  # noqa: F401 - the template was not started with it

    if (tree / "megatron/legacy/fused_kernels/__init__.py").exists():
        sys.modules["megatron.legacy.fused_kernels"] = types.SimpleNamespace(load=lambda args: None)  # type: ignore[assignment]


def watch_training() -> None:
    """Record each start, and each step with its loss; inject a fault into a step where one is due."""
    import megatron.training as package
    from megatron.training import training

    faults = dict(entry.split("=") for entry in filter(None, os.environ.get(FAULTS, "").split(",")))
    pretrain, initialise, step = package.pretrain, training.initialize_megatron, training.train_step
    log, agree = training.training_log, training.logical_and_across_model_parallel_group
    calls = [0]

    def fault(place: str) -> None:
        if kind := faults.pop(f"{me}:{calls[0]}{place}", None):
            inject(kind_of(kind), stamp=lambda at: record("fault_injected", at=at, kind=kind))

    def at(place: str, function: Any) -> Any:
        def called(*args: Any, **kwargs: Any) -> Any:
            fault(place)
            return function(*args, **kwargs)

        return called

    def pretrained(*args: Any, **kwargs: Any) -> Any:
        record("pretrain", iteration=iteration())
        return pretrain(*args, **kwargs)

    def initialize_megatron(*args: Any, **kwargs: Any) -> Any:
        place = {"rank": os.environ["RANK"], "world": os.environ["WORLD_SIZE"]}
        at = time.monotonic()
        record("enter", at=at, iteration=iteration(), **place, **usage(), groups=nvrx_megatron.state_report())
        return initialise(*args, **kwargs)

    def train_step(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        fault("")
        result = step(*args, **kwargs)
        loss = {name: float(value) for name, value in result[0].items() if "loss" in name}
        done = training.get_args().curr_iteration
        from tests.harness.megatron.live_training import digest, states  # imports megatron-core

        model, optimizer = args[2:4]
        layers = getattr(optimizer, "chained_optimizers", [optimizer])
        parameters = [each for chunk in model for each in chunk.parameters()]
        record(
            "step", iteration=iteration(), step=done, rank=os.environ["RANK"], loss=loss.get("lm loss"),
            state=digest([*parameters, *states(layers), torch.get_rng_state()]),
        )  # fmt: skip
        return result

    package.pretrain, training.initialize_megatron, training.train_step = pretrained, initialize_megatron, train_step
    training.training_log, training.logical_and_across_model_parallel_group = at("@log", log), at("@committed", agree)
    training.save_checkpoint = at("@save", training.save_checkpoint)
    register_optimizer_step_pre_hook(lambda *_: fault("@advance"))


def iteration() -> int:
    call = current_call()
    return -1 if call is None else call.iteration


def run(words: list[str]) -> int:
    path = os.environ[TREE].split(os.pathsep)
    tree = Path(path[0])
    sys.path[:0] = path
    logging.getLogger("nvrx_core").setLevel(logging.INFO)
    torch.set_num_threads(1)
    fake_build(tree)
    fake_device()
    multiprocessing.set_forkserver_preload(["tests.harness.megatron.cpu_child"])
    import nvrx_megatron.__main__ as program

    record("imports", at=time.monotonic())
    watch_training()
    return program.main([str(tree / os.environ.get(SCRIPT, "pretrain_gpt.py")), *words])


if __name__ == "__mp_main__":  # a process that saves in the background
    fake_device()
if __name__ == "__main__":
    code = run(sys.argv[1:])
    record("exit", code=code)
    sys.exit(code)
