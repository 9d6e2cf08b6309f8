"""A rank of a training on a device whose state stays in memory (`LiveState`), with faults in its steps.

`NVRX_TEST_DEVICE` is "cuda" unless it says "cpu": what is written here runs without a device as well.
"""

from __future__ import annotations

import faulthandler
import hashlib
import os
import signal
import statistics
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from nvrx_core import inprocess
from tests.harness.process.workers.record import Record

WIDTH, STEPS, TARGET = 512, 60, 1
WARM_UP = 10
"""Steps before the first commit whose time counts."""
FAILS_EVERY = 2
"""Steps between two faults of the target, in turn before its backward pass, before its vote, and behind the step."""


class Training:
    """The wrapped function of one rank.

    Args:
        kind: "ddp", "fsdp2", or "fused": DDP with a fused optimizer and a scaler.
        restarts: how many faults there are.
    """

    def __init__(self, kind: str, restarts: int) -> None:
        self.kind, self.restarts = kind, restarts
        self.record, self.live = Record.of_environment(), inprocess.LiveState()
        self.target = int(os.environ["RANK"]) == TARGET
        self.is_cpu = os.environ.get("NVRX_TEST_DEVICE") == "cpu"
        self.device = "cpu" if self.is_cpu else "cuda"
        self.commits = list[float]()

    def __call__(self, call: inprocess.CallWrapper) -> int:
        dist.init_process_group("gloo" if self.is_cpu else "nccl")
        torch.manual_seed(7)
        layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.Dropout(0.1), torch.nn.Linear(WIDTH, 1)]
        model = torch.nn.Sequential(*layers).to(self.device)
        if self.kind == "fsdp2":
            for layer in model:
                fully_shard(layer)
            fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=self.kind == "fused")
        scaler = torch.amp.GradScaler(self.device, enabled=self.kind == "fused", growth_interval=5)

        def advance() -> None:
            scaler.step(optimizer)
            scaler.update()

        first = self.live.resume(model, optimizer, advance, shared={"scaler": scaler})
        if first is None:
            first = 0
            self.live.start(first)
        self.record("began", iteration=call.iteration, step=first, allocated=self._allocated())
        ranks = None if self.is_cpu else [torch.cuda.current_device()]
        trained = model if self.kind == "fsdp2" else DistributedDataParallel(model, ranks, init_sync=False)
        for step in range(first, STEPS):
            fails = self.target and call.iteration < self.restarts and step == FAILS_EVERY * (call.iteration + 1)
            batch = torch.randn(32, WIDTH, generator=torch.Generator().manual_seed(step)).to(self.device)
            optimizer.zero_grad()
            loss = scaler.scale(trained(batch).square().mean())
            if fails and call.iteration % 3 == 0:
                self._fail(call)
            loss.backward()
            if fails and call.iteration % 3 == 1:
                self._fail(call)
            self._commit(step)
            if fails and call.iteration % 3 == 2:
                self._fail(call)
        self.record("done", digest=self._digest(model, optimizer), commit_ms=1e3 * statistics.median(self.commits))
        dist.destroy_process_group()
        return first

    def _commit(self, step: int) -> None:
        if not self.is_cpu:
            torch.cuda.synchronize()  # the time of the commit, without that of the step
        began = time.perf_counter()
        self.live.commit(step)
        if not self.is_cpu:
            torch.cuda.synchronize()
        if step >= WARM_UP:
            self.commits.append(time.perf_counter() - began)

    def _fail(self, call: inprocess.CallWrapper) -> None:
        time.sleep(0.1)  # noqa: TID251 - until the other rank is in its backward pass, or in the vote
        self.record("fault", iteration=call.iteration)
        raise RuntimeError("injected")

    def _allocated(self) -> int:
        return 0 if self.is_cpu else torch.cuda.memory_allocated()

    def _digest(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> str:
        found = hashlib.sha256()
        states = [optimizer.state[each] for each in model.parameters()]
        tensors = [*model.parameters(), *(value for state in states for value in state.values())]
        for each in tensors:
            local = each.to_local() if isinstance(each, DTensor) else each
            found.update(local.detach().cpu().numpy().tobytes())
        return found.hexdigest()


def main() -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    rank = int(os.environ["RANK"])
    training = Training(os.environ["NVRX_TEST_TRAINING"], int(os.environ["NVRX_TEST_RESTARTS"]))
    if not training.is_cpu:
        os.environ["NCCL_HOSTID"] = f"host-of-{rank}"
        torch.cuda.set_device(rank % torch.cuda.device_count())
        torch.use_deterministic_algorithms(True)
    inprocess.Wrapper(no_progress_limit=None)(training)()


if __name__ == "__main__":
    main()
