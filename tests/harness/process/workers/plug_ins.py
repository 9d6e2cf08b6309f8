"""A rank with plug-ins of its own, or that reaches for what is behind its `CallWrapper`; see `options` for the rest."""

import functools
import os
import threading
import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from nvrx_core import inprocess
from nvrx_core.inprocess import CallWrapper
from nvrx_core.inprocess.abort import Abort, AbortPhase, AbortTorchDistributed
from nvrx_core.inprocess.groups import torch_groups
from nvrx_core.inprocess.health_check import FaultCounter
from nvrx_core.inprocess.initialize import RetryController
from nvrx_core.inprocess.monitor_thread import RankShouldRestart
from nvrx_core.inprocess.nested_restarter import (
    NestedRestarterAborted,
    NestedRestarterFinalized,
    NestedRestarterHandlingCompleted,
    NestedRestarterHandlingStarting,
)
from nvrx_core.inprocess.state import FrozenState
from tests.harness.process.workers.options import PLUGS, Plug, Rank, plain

HANDLES = ("state", "store", "base_store", "wrapper", "monitor_process", "progress_watchdog", "atomic_lock")
SEEN = ("rank", "world_size", "active_rank", "active_world_size", "initial_rank", "iteration")


class Witness(Plug):
    """A plug-in that records the state it gets; `leave` makes it raise what no restart mends."""

    def __call__(self, state: FrozenState) -> FrozenState:
        fields = {name: getattr(state, name) for name in SEEN}
        error = repr(state.fn_exception)
        self.rank.record("saw", name=self.name, mode=state.mode.name, error=error, state=fields)
        if self.rank.is_due(f"leave in {self.name}", state.iteration):
            raise KeyboardInterrupt(f"injected in {self.name}")
        return super().__call__(state)


def witnesses(rank: Rank) -> None:
    rank.settings |= {name: Witness(rank, name) for name in PLUGS}
    plain(rank)


def reducing(rank: Rank) -> None:
    """All ranks reduce until one fails; a group exists, and collectives are under way, when it does."""

    @inprocess.Wrapper(**rank.settings)
    def train(call_wrapper: CallWrapper) -> int:
        dist.init_process_group("gloo")
        ones, iteration = torch.ones(4), call_wrapper.iteration
        for step in range(10_000):
            dist.all_reduce(ones.fill_(1))
            if step == 5:
                rank.inject("function", iteration)
            if step == 10 and iteration >= rank.broken:
                break
            time.sleep(0.001)
        dist.destroy_process_group()
        return iteration

    rank.run(train)


def abort_first(rank: Rank) -> None:
    """A user's abort runs before torch's, and fails: torch's is never reached."""
    rank.settings["abort"] = inprocess.Compose(AbortTorchDistributed(), Plug(rank, "abort"))
    reducing(rank)


class Part(Abort):
    """A part of an abort that records where it runs."""

    def __init__(self, rank: Rank, phase: AbortPhase) -> None:
        self.rank, self.phase = rank, phase

    def __call__(self, state: FrozenState) -> FrozenState:
        main, groups = threading.current_thread() is threading.main_thread(), torch_groups.has_groups()
        self.rank.record("part", phase=self.phase.name, main=main, groups=groups)
        raise ValueError(f"injected {self.phase.value}")


def abort_in_phases(rank: Rank) -> None:
    """Each part fails, and the composition has them in no order."""
    parts = [Part(rank, phase) for phase in AbortPhase]
    rank.settings |= {"abort": inprocess.Compose(*parts, AbortTorchDistributed()), "finalize": Plug(rank, "finalize")}
    reducing(rank)


def older_torch(rank: Rank) -> None:
    """Without what came with later versions of torch."""
    del c10d._abort_process_group, dist.Store.clone  # type: ignore[attr-defined]
    del dist.ProcessGroup.abort, dist.ProcessGroup._get_sequence_number_for_group
    reducing(rank)


def nccl(rank: Rank) -> None:
    """All groups have an NCCL backend, as far as the wrapper can see."""
    options = SimpleNamespace(_timeout=timedelta(seconds=10))
    backend = SimpleNamespace(options=options, abort=lambda: rank.record("aborted"))
    torch_groups._nccl = lambda group: backend
    torch_groups._names_nccl = lambda group: True
    reducing(rank)


def flight_record(rank: Rank) -> None:
    rank.settings["abort"] = AbortTorchDistributed(os.environ["NVRX_TEST_LOG"])
    reducing(rank)


def flight_record_by_variable(rank: Rank) -> None:
    os.environ["NVRX_FR_TRACE_PATH"] = os.environ["NVRX_TEST_LOG"]
    reducing(rank)


def explicit_restarts(rank: Rank) -> None:
    """A function that asks for a restart by raising what a restart is."""
    rank.settings["initialize"] = RetryController(max_iterations=2)

    @inprocess.Wrapper(**rank.settings)
    def train(call_wrapper: CallWrapper) -> int:
        rank.enter(call_wrapper)
        if rank.is_due("function", call_wrapper.iteration):
            raise RankShouldRestart("asked for")
        return rank.train(call_wrapper)

    rank.run(train)


def fault_counter(rank: Rank) -> None:
    rank.settings["health_check"] = FaultCounter(max_rank_faults=1)
    plain(rank)


def nested(rank: Rank) -> None:
    rank.settings |= {
        "initialize": inprocess.Compose(NestedRestarterHandlingCompleted(), RetryController(max_iterations=3)),
        "abort": inprocess.Compose(AbortTorchDistributed(), NestedRestarterHandlingStarting()),
        "completion": NestedRestarterFinalized(),
        "terminate": NestedRestarterAborted(),
    }
    plain(rank)


def handles(rank: Rank) -> None:
    kept: list[CallWrapper] = []
    wrapper = inprocess.Wrapper(soft_timeout=timedelta(seconds=30), events_dir=os.environ["NVRX_TEST_LOG"])

    @wrapper
    def train(call_wrapper: CallWrapper) -> int:
        kept.append(call_wrapper)
        rank.record("attributes", **attributes(call_wrapper, wrapper))
        rank.record("lock", **lock(call_wrapper))
        rank.record("refused", names={name: refusal(call_wrapper, name) for name in (*HANDLES, "iteration")})
        rank.record("shutdown", said=error_of(call_wrapper.shutdown))
        return rank.train(call_wrapper)

    rank.run(train)
    with kept[-1] as after:
        after.shutdown()
    rank.record("after", iteration=after.iteration, state=after.state.iteration, mine=after.wrapper is wrapper)


def attributes(call: CallWrapper, wrapper: inprocess.Wrapper) -> dict[str, Any]:
    me, world_size = call.state.active_rank, call.state.active_world_size
    call.store.set(f"from {me}", f"{call.iteration}")
    call.base_store.set(f"{call.iteration} {me}", f"{call.iteration}")
    return {
        "iteration": call.iteration,
        "state": [me, world_size, call.state.initial_rank, call.state.mode.name],
        "store": [call.store.get(f"from {other}").decode() for other in range(world_size or 0)],
        "base_store": [call.base_store.get(f"{call.iteration} {other}").decode() for other in range(world_size or 0)],
        "once": call.store is call.store and call.base_store is call.base_store,
        "empty": not call.base_store.check(["from 0"]),
        "wrapper": call.wrapper is wrapper,
        "soft": call.wrapper.soft_timeout.total_seconds(),
        "monitor": [call.monitor_process.is_alive(), call.monitor_process.pid != os.getpid()],
        "watchdog": 0 < call.progress_watchdog.interval <= 1,
    }


def lock(call: CallWrapper) -> dict[str, Any]:
    guard = call.atomic_lock
    with guard:
        nested = guard.acquire(blocking=False)
        open_inside = call.atomic().is_open
        guard.release()
    return {"nested": nested, "inside": open_inside, "outside": call.atomic().is_open, "said": error_of(guard.release)}


def refusal(call: CallWrapper, name: str) -> str:
    return error_of(functools.partial(setattr, call, name, None))


def error_of(act: Any) -> str:
    try:
        act()
    except Exception as error:  # boundary: it is what is recorded
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    cases = (
        witnesses, abort_first, abort_in_phases, older_torch, flight_record, flight_record_by_variable,
        explicit_restarts, fault_counter, nested, handles, nccl,
    )  # fmt: skip
    {case.__name__: case for case in cases}[os.environ["NVRX_TEST_CASE"]](Rank())
