"""Rank 0 hosts the store and leaves its process group, in the way that `NVRX_TEST_CASE` names; the others train on.

The store may be silent for a third of that while only. In the case "rare heartbeat" nobody leaves, and leases move
more rarely than that.
"""

import os
import sys
import time
from datetime import timedelta
from itertools import count

import torch.distributed as dist

from nvrx_core import inprocess
from nvrx_core.errors import RankDiscarded
from nvrx_core.inprocess import CallWrapper, progress_watchdog
from nvrx_core.inprocess.health_check import HealthCheck
from nvrx_core.inprocess.monitor import process as monitor_process
from nvrx_core.inprocess.rank_assignment import RankAssignment, RankAssignmentCtx, ShiftRanks
from nvrx_core.inprocess.state import FrozenState
from tests.harness.process.workers.record import Record

CASE, ME = os.environ["NVRX_TEST_CASE"], int(os.environ["RANK"])
SECONDS = float(os.environ["NVRX_TEST_SECONDS"])


class FailsOnTheHost(HealthCheck):
    """Fails before the function, where rank 0 is."""

    def __call__(self, state: FrozenState) -> FrozenState:
        if CASE == "health check" and state.initial_rank == 0:
            raise RuntimeError("injected in the health check")
        return state


class DiscardsTheHost(RankAssignment):
    """Discards rank 0 after the first fault."""

    def __init__(self) -> None:
        self.iterations = count()

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        if CASE == "discarded" and next(self.iterations) == 1:
            if ctx.state.initial_rank == 0:
                raise RankDiscarded("injected in the rank assignment", rank=0)
            ctx.terminated_ranks.add(0)
        return ShiftRanks()(ctx)


def main() -> None:
    record = Record.of_environment()
    progress_watchdog.SILENT_STORE = SECONDS / 3
    monitor_process.PROBE_EVERY = SECONDS / 12
    seconds = {"heartbeat_interval": 30, "heartbeat_timeout": 40, "monitor_process_interval": 20}
    rare = {name: timedelta(seconds=value) for name, value in seconds.items()} if CASE == "rare heartbeat" else {}

    @inprocess.Wrapper(health_check=FailsOnTheHost(), rank_assignment=DiscardsTheHost(), **rare)
    def train(call: CallWrapper) -> int:
        record("enter", iteration=call.iteration)
        if call.iteration == 0 and not rare:
            dist.init_process_group("gloo")
            if CASE == "exit 3" and ME == 0:
                sys.exit(3)
            if CASE == "discarded" and ME == 1:
                raise ValueError("injected")
            time.sleep(60)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            time.sleep(0.05)
        return call.iteration

    record("done", result=train())


if __name__ == "__main__":
    main()
