"""How the ranks of a test job save and load, by megatron-core's `dist_checkpointing` or torch's own."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import nvrx_megatron
import torch.distributed.checkpoint as dcp
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue

from tests.harness.megatron.model import Training
from tests.harness.megatron.plan import Plan

__all__ = ["Saves", "hold_results_in_a_fork"]


def hold_results_in_a_fork() -> None:
    """Run the process of the writers' results queue by fork: a spawned one first imports torch, for seconds."""
    filesystem_async._results_queue = multiprocessing.get_context("fork").Manager().Queue()


class Saves:
    """The checkpoints of one rank in one iteration.

    Args:
        plan: says how.
        training: what is saved.
    """

    def __init__(self, plan: Plan, training: Training) -> None:
        self.plan, self.training = plan, training
        folder = Path(os.environ["NVRX_TEST_CHECKPOINTS"])
        self.checkpoints = nvrx_megatron.AtomicCheckpoint(folder, keep=2, checksums=True)
        self.queue = AsyncCallsQueue(persistent=plan.saves == "persistent")
        if plan.forks_results and filesystem_async._results_queue is None:
            hold_results_in_a_fork()

    def resume(self) -> int:
        """Loads the newest checkpoint; returns the step to go on with."""
        found = self.checkpoints.latest()
        if found is None:
            return 0
        step, folder = found
        state = self.state(loading=True)
        if self.plan.saves == "torch":
            dcp.load(state, checkpoint_id=str(folder))
            state = state[os.environ["RANK"]]
        else:
            state = dist_checkpointing.load(state, str(folder))
        self.training.model.module.load_state_dict(state["model"])
        self.training.optimizer.load_state_dict(state["optimizer"])
        return step

    def save(self, step: int) -> None:
        """Saves what has been trained up to this step."""
        state = self.state()
        if self.plan.saves == "torch":
            self.checkpoints.save(step, lambda folder: dcp.save(state, checkpoint_id=str(folder)))
        elif self.plan.saves == "sync":
            self.checkpoints.save(step, lambda folder: dist_checkpointing.save(state, str(folder)))
        else:
            attempt = self.checkpoints.begin(step)
            request = dist_checkpointing.save(state, str(attempt.folder), async_sharded_save=True)
            request.add_finalize_fn(attempt.commit)
            self.queue.schedule_async_request(request)

    def writers(self) -> list[int]:
        """The processes that write in the background."""
        callers = (call.async_caller for call in self.queue.async_calls)
        return [caller.process.pid for caller in callers if caller.process is not None]

    def poll(self, wait: bool = False) -> None:
        """Completes background saves that are done; all ranks call it."""
        if self.plan.saves in ("async", "persistent"):
            self.queue.maybe_finalize_async_calls(blocking=wait)

    def state(self, loading: bool = False) -> dict[str, Any]:
        model, optimizer = self.training.model, self.training.optimizer
        if self.plan.saves == "torch":  # to which the shards of two ranks are the same tensor
            mine = os.environ["RANK"]
            return {mine: {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}}
        sharded = model.module.sharded_state_dict()
        if not hasattr(optimizer, "sharded_state_dict"):
            return {"model": sharded, "optimizer": optimizer.state_dict()}
        return {"model": sharded, "optimizer": optimizer.sharded_state_dict(sharded, is_loading=loading)}
