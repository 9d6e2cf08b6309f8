"""A rank that makes process groups in a way of its own: `NVRX_TEST_CASE` names the function below; see `options`."""

import os
import random
import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from nvrx_core import failpoint, inprocess
from nvrx_core.inprocess import CallWrapper
from nvrx_core.inprocess.interrupt import RankShouldRestart
from tests.process.workers.options import Rank

GROUP_TIMEOUT = timedelta(seconds=300)


def reduce_once() -> None:
    ones = torch.ones(4)
    dist.all_reduce(ones)
    assert ones.tolist() == [dist.get_world_size()] * 4, ones


def fixed_address(rank: Rank, init_method: str) -> None:
    """All ranks meet at an address of the user's, the same in each iteration."""

    @inprocess.Wrapper(**rank.settings)
    def train(call_wrapper: CallWrapper) -> int:
        state, iteration = call_wrapper.state, call_wrapper.iteration
        rank.enter(call_wrapper)
        dist.init_process_group(
            "gloo", init_method=init_method, rank=state.active_rank, world_size=state.active_world_size
        )
        reduce_once()
        if rank.is_due("kill", iteration):
            os.kill(os.getpid(), 9)
        rank.strike("function", iteration)
        while iteration < rank.broken:
            reduce_once()
            time.sleep(0.001)
        dist.destroy_process_group()
        return iteration

    rank.run(train)


def by_port(rank: Rank) -> None:
    fixed_address(rank, f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}")


def by_file(rank: Rank) -> None:
    fixed_address(rank, f"file://{os.environ['NVRX_TEST_LOG']}")


def half_made(rank: Rank) -> None:
    """Rank 0 stands between the creation of its group and the moment it becomes the default one, during the abort."""

    @inprocess.Wrapper(**rank.settings)
    def train(call_wrapper: CallWrapper) -> int:
        rank.enter(call_wrapper)
        dist.init_process_group("gloo")
        rank.strike("function", call_wrapper.iteration)
        while call_wrapper.iteration < rank.broken:
            reduce_once()
        dist.destroy_process_group()
        return call_wrapper.iteration

    failpoint.install(lambda name, iteration: stand(rank, iteration) if name == "init-pg-after" else None)
    rank.run(train)


def stand(rank: Rank, iteration: int) -> None:
    """Wait for the abort, and let the interruption pass once."""
    if rank.is_due("stand", iteration):
        try:
            while c10d._world.pg_map:
                time.sleep(0.001)
            time.sleep(1)
        except RankShouldRestart:
            rank.record("stood", iteration=iteration)


def making_groups(rank: Rank) -> None:
    """In each iteration one rank fails at a random instant while the others make groups; all go on to the next."""
    faults = rank.settings.pop("faults")
    dice = random.Random(rank.me + 1000 * rank.settings.pop("seed"))

    @inprocess.Wrapper(**rank.settings)
    def train(call_wrapper: CallWrapper) -> int:
        iteration, world = call_wrapper.iteration, dist_size()
        rank.record("enter", iteration=iteration)
        if iteration < faults and rank.me == iteration % world:
            fail_soon(dice.uniform(0, 0.02))
        dist.init_process_group("gloo", timeout=GROUP_TIMEOUT)
        dist.new_group([0, 1])
        while iteration < faults:
            reduce_once()
        dist.destroy_process_group()
        return iteration

    rank.run(train)


def dist_size() -> int:
    return int(os.environ["WORLD_SIZE"])


def fail_soon(seconds: float) -> None:
    """Raise in the main thread, wherever it is in Python by then."""
    main = threading.main_thread().ident

    def fail(*_: Any) -> None:
        raise ValueError("planted")

    import signal

    signal.signal(signal.SIGUSR2, fail)
    threading.Timer(seconds, lambda: signal.pthread_kill(main, signal.SIGUSR2)).start()


if __name__ == "__main__":
    cases = (by_port, by_file, half_made, making_groups)
    {case.__name__: case for case in cases}[os.environ["NVRX_TEST_CASE"]](Rank())
