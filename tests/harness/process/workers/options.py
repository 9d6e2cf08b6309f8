"""A rank that uses one option of the wrapper: `NVRX_TEST_CASE` names the function below that says how.

`NVRX_TEST_SETTINGS` are plain parameters of the wrapper. `NVRX_TEST_HARM` says where something goes wrong: for each
place the pairs of initial rank and iteration, or, in plug-ins and threads, initial rank and number of its visit there.
In the first `NVRX_TEST_BROKEN` iterations of a call the other ranks sleep until they are interrupted. Annotations are
evaluated here: they are what some of the tests are about.
"""

import json
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Optional

import torch
import torch.distributed as dist

from nvrx_core import inprocess
from nvrx_core.inprocess import CallWrapper
from nvrx_core.inprocess.abort import Abort
from nvrx_core.inprocess.completion import Completion
from nvrx_core.inprocess.finalize import Finalize
from nvrx_core.inprocess.health_check import HealthCheck
from nvrx_core.inprocess.initialize import Initialize, RetryController
from nvrx_core.inprocess.nested_restarter import NestedRestarterHandlingStarting
from nvrx_core.inprocess.rank_assignment import MaxActiveWorldSize, ShiftRanks
from nvrx_core.inprocess.state import FrozenState
from nvrx_core.inprocess.store import FileStore, StoreMixin, client_only
from nvrx_core.inprocess.terminate import Terminate
from tests.harness.process.workers.record import Record

PLUGS = ("initialize", "abort", "finalize", "health_check", "completion", "terminate")


class Rank:
    """This rank: what it records, and what goes wrong on it."""

    def __init__(self) -> None:
        self.record, self.me = Record.of_environment(), int(os.environ["RANK"])
        self.settings: dict[str, Any] = {
            "no_progress_limit": None,
            **json.loads(os.environ.get("NVRX_TEST_SETTINGS", "{}")),
        }
        self.harm = json.loads(os.environ.get("NVRX_TEST_HARM", "{}"))
        self.broken = int(os.environ.get("NVRX_TEST_BROKEN", "1"))
        self.visits = Counter[str]()

    def is_due(self, place: str, moment: int) -> bool:
        return [self.me, moment] in self.harm.get(place, [])

    def inject(self, place: str, moment: int) -> None:
        if self.is_due(place, moment):
            raise ValueError(f"injected in {place}")

    def visit(self, place: str) -> None:
        self.visits[place] += 1
        self.inject(place, self.visits[place] - 1)

    def train(self, call_wrapper: CallWrapper) -> int:
        """The function of most cases; returns its iteration."""
        self.enter(call_wrapper)
        iteration, place = call_wrapper.iteration, ("function", "second call")[self.record.call]
        if any(self.is_due(due, iteration) for due in ("kill", "interrupt", place)):
            self.await_others(iteration)
        if self.is_due("kill", iteration):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.is_due("interrupt", iteration):
            raise KeyboardInterrupt("injected")
        self.inject(place, iteration)
        if iteration < self.broken:
            time.sleep(60)
        return iteration

    def enter(self, call: CallWrapper) -> None:
        self.record("enter", iteration=call.iteration, **ranks())

    def await_others(self, iteration: int) -> None:
        """Waits until all are in the iteration, so that a fault meets them there."""
        self.record.await_others(int(os.environ["WORLD_SIZE"]) - 1, "enter", iteration=iteration)

    def run(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Calls a wrapped function and records how it ended."""
        hook = threading.excepthook
        try:
            result = function(*arguments)
        except BaseException as error:  # boundary: whatever the call ends with is what is recorded
            kinds = [kind.__name__ for kind in type(error).mro()]
            text = "" if isinstance(error, Unspeakable) else str(error)
            culprit, notes = getattr(error, "culprit", None), getattr(error, "__notes__", [])
            self.record("left", kinds=kinds, text=text, culprit=culprit, notes=notes)
        else:
            self.record("done", result=result, hook=threading.excepthook is hook, **ranks())


def ranks() -> dict[str, Any]:
    return {"rank": os.environ.get("RANK"), "world_size": os.environ.get("WORLD_SIZE")}


class Plug(Initialize, Abort, Finalize, HealthCheck, Completion, Terminate):
    """Any of the plug-ins: records that it is called."""

    def __init__(self, rank: Rank, name: str) -> None:
        self.rank, self.name = rank, name

    def __call__(self, state: FrozenState) -> FrozenState:
        main = threading.current_thread() is threading.main_thread()
        failed = state.fn_exception is not None
        self.rank.record("plug", name=self.name, iteration=state.iteration, main=main, failed=failed, **ranks())
        self.rank.visit(self.name)
        return state


class Own(StoreMixin, dist.TCPStore):
    """A user's store on a port of its own."""

    def __init__(self, port: int) -> None:
        hosts = os.environ["RANK"] == "0" and not client_only()
        super().__init__("127.0.0.1", port, is_master=hosts, wait_for_workers=False)

    @property
    def critical_ranks(self) -> tuple[int, ...]:
        return (0,)


def plain(rank: Rank) -> None:
    rank.run(inprocess.Wrapper(**rank.settings)(rank.train))


def twice(rank: Rank) -> None:
    for rank.record.call in range(2):
        plain(rank)


def twice_with_a_reserve(rank: Rank) -> None:
    rank.settings["rank_assignment"] = inprocess.Compose(MaxActiveWorldSize(2), ShiftRanks())
    twice(rank)


def plugs(rank: Rank) -> None:
    rank.settings |= {name: Plug(rank, name) for name in PLUGS}
    plain(rank)


def retries(rank: Rank) -> None:
    rank.settings["initialize"] = RetryController(max_iterations=2)
    plain(rank)


def no_abort(rank: Rank) -> None:
    rank.settings["abort"] = None
    plain(rank)


def rank_filter(rank: Rank) -> None:
    rank.settings["initialize"] = Plug(rank, "initialize")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        wrapper = inprocess.Wrapper(rank_filter=MaxActiveWorldSize(2), **rank.settings)
    told = [f"{warning.category.__name__}: {warning.message}" for warning in caught]
    rank.record("warned", warnings=told, here=[warning.filename == __file__ for warning in caught])
    rank.run(wrapper(rank.train))


def file_store(rank: Rank) -> None:
    rank.settings["store_factory"] = FileStore
    plain(rank)


def own_store(rank: Rank) -> None:
    rank.settings["store_factory"] = Own
    plain(rank)


def progressing(rank: Rank) -> None:
    @inprocess.Wrapper(**rank.settings)
    def train(call_wrapper: CallWrapper) -> int:
        call_wrapper.progress(call_wrapper.iteration)
        return rank.train(call_wrapper)

    rank.run(train)


def threads(rank: Rank) -> None:
    @inprocess.Wrapper(**rank.settings)
    def train(call_wrapper: CallWrapper) -> int:
        rank.enter(call_wrapper)
        thread = threading.Thread(target=rank.visit, args=("thread",))
        thread.start()
        thread.join()
        faults = rank.settings.get("thread_exceptions") == "fault" and call_wrapper.iteration < rank.broken
        time.sleep(60 if faults else 0.5)
        return call_wrapper.iteration

    rank.run(train)


def late_threads(rank: Rank) -> None:
    """A thread that rank 1 starts in iteration 0 fails in iteration 1, which lasts until then."""
    late = threading.Event()

    def fail_late() -> None:
        late.wait(30)
        raise ValueError("injected in late thread")

    thread = threading.Thread(target=fail_late, name="a-late-thread")

    @inprocess.Wrapper(**rank.settings)
    def train(call_wrapper: CallWrapper) -> int:
        if rank.me == 1 and call_wrapper.iteration == 0:
            thread.start()
        elif rank.me == 1:
            late.set()
            thread.join()
        return rank.train(call_wrapper)

    rank.run(train)


class Unspeakable:
    """What an exception has that raises when its text is asked for."""

    def __str__(self) -> str:
        raise LookupError("injected in a text")

    __repr__ = __str__


class Wordless(Unspeakable, Exception):
    """A failure without a text."""


class WordlessExit(Unspeakable, KeyboardInterrupt):
    """An exit without one."""


@dataclass(frozen=True)
class Frozen(Exception):
    """A failure that refuses each assignment."""

    step: int


def frozen(rank: Rank) -> None:
    """Rank 1 fails with such an exception."""

    @inprocess.Wrapper(**rank.settings)
    def train(call_wrapper: CallWrapper) -> int:
        if rank.is_due("frozen", call_wrapper.iteration):
            raise Frozen(call_wrapper.iteration)
        return rank.train(call_wrapper)

    rank.run(train)


def wordless(rank: Rank) -> None:
    """Rank 1 fails with such an exception, and leaves with one in iteration 1."""

    @inprocess.Wrapper(**rank.settings)
    def train(call_wrapper: CallWrapper) -> int:
        if rank.is_due("wordless", call_wrapper.iteration):
            raise Wordless
        if rank.is_due("exit", call_wrapper.iteration):
            raise WordlessExit
        return rank.train(call_wrapper)

    rank.run(train)


def sourceless(rank: Rank) -> None:
    """Rank 1 fails in code whose source cannot be read: a pipe that nobody writes to, as a lost file system is."""
    source = f"{os.environ['NVRX_TEST_LOG']}.{rank.me}.py"
    os.mkfifo(source)
    scope: dict[str, Any] = {}
    exec(compile("def fail(): raise ValueError('injected in fail')", source, "exec"), scope)

    @inprocess.Wrapper(**rank.settings)
    def train(call_wrapper: CallWrapper) -> int:
        if rank.is_due("function", call_wrapper.iteration):
            scope["fail"]()
        return rank.train(call_wrapper)

    rank.run(train)


def exits(rank: Rank) -> None:
    """Rank 1 is done early, by `sys.exit(0)`."""
    rank.settings["abort"] = inprocess.Compose(Plug(rank, "abort"), NestedRestarterHandlingStarting(special_rank=1))

    @inprocess.Wrapper(**rank.settings)
    def train(call_wrapper: CallWrapper) -> int:
        if rank.is_due("exit", call_wrapper.iteration):
            sys.exit(0)
        return rank.train(call_wrapper)

    rank.run(train)


def iteration_stores(rank: Rank) -> None:
    @inprocess.Wrapper(**rank.settings)
    def train(call_wrapper: CallWrapper) -> int:
        store = call_wrapper.iteration_store()
        rank.record("store", iteration=call_wrapper.iteration, number=store.add("arrived", 1))
        store.set(f"here/{os.environ['RANK']}", "")
        store.wait([f"here/{other}" for other in range(int(os.environ["WORLD_SIZE"]))])
        return rank.train(call_wrapper)

    rank.run(train)


def stores_by_port(rank: Rank) -> None:
    """As scripts do that know nothing of `env://`: a store of their own for each iteration."""

    @inprocess.Wrapper(**rank.settings)
    def train(call_wrapper: CallWrapper) -> float:
        me, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        port = int(os.environ["MASTER_PORT"]) + 2 + call_wrapper.iteration
        store = dist.TCPStore(os.environ["MASTER_ADDR"], port, world_size, me == 0, timeout=timedelta(seconds=10))
        dist.init_process_group("gloo", store=store, rank=me, world_size=world_size)
        ones = torch.ones(1)
        dist.all_reduce(ones)
        rank.train(call_wrapper)
        dist.destroy_process_group()
        return float(ones.item())

    rank.run(train)


def injections(rank: Rank) -> None:
    def once_more(seen: list[Any], call: Any) -> list[Any]:
        seen.append([id(seen), type(call).__name__, call.iteration])
        if call.iteration == 0:
            raise ValueError("injected")
        return seen

    def by_class(seen: list[Any], call: CallWrapper) -> list[Any]:
        return once_more(seen, call)

    def by_optional(seen: list[Any], call: Optional[CallWrapper] = None) -> list[Any]:  # noqa: UP045
        return once_more(seen, call)

    def by_pep604(seen: list[Any], call: CallWrapper | None = None) -> list[Any]:
        return once_more(seen, call)

    def by_string(seen: list[Any], *, call: "inprocess.CallWrapper | None" = None) -> list[Any]:
        return once_more(seen, call)

    def by_name(seen, call_wrapper=None):  # type: ignore[no-untyped-def]
        return once_more(seen, call_wrapper)

    def by_long_name(seen, inprocess_call_wrapper):  # type: ignore[no-untyped-def]
        return once_more(seen, inprocess_call_wrapper)

    forms: tuple[Callable[..., Any], ...] = (by_class, by_optional, by_pep604, by_string, by_name, by_long_name)
    for form in forms:
        mine: list[Any] = []
        result = inprocess.Wrapper()(form)(mine)
        rank.record("injected", form=form.__name__, seen=result, same=result is mine, mine=id(mine))


def logs(rank: Rank) -> None:
    """An application that logs to its terminal and to a file; rank 0 swallows the interruption once."""
    ours = logging.getLogger("nvrx_core")
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    logging.getLogger().addHandler(logging.FileHandler(os.environ["NVRX_TEST_LOG"]))
    ours.setLevel(logging.DEBUG)

    @inprocess.Wrapper(**rank.settings)
    def train(call_wrapper: CallWrapper) -> int:
        if rank.me == 0 and call_wrapper.iteration == 0:
            logging.getLogger("application").info("a line of its own")
            with suppress(BaseException):
                rank.enter(call_wrapper)
                time.sleep(60)
        return rank.train(call_wrapper)

    rank.run(train)
    rank.record("logger", handlers=len(ours.handlers), propagate=ours.propagate)


if __name__ == "__main__":
    cases = (
        plain, twice, twice_with_a_reserve, plugs, retries, no_abort, rank_filter, file_store, own_store, progressing,
        threads, late_threads, frozen, wordless, sourceless, exits, iteration_stores, stores_by_port, injections, logs,
    )  # fmt: skip
    {case.__name__: case for case in cases}[os.environ["NVRX_TEST_CASE"]](Rank())
