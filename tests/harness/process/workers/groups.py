"""A rank that makes process groups in a way of its own: `NVRX_TEST_CASE` names the function below; see `options`."""

import faulthandler
import os
import random
import signal
import socket
import socketserver
import threading
import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from nvrx_core import failpoint, inprocess
from nvrx_core.inprocess import CallWrapper
from nvrx_core.inprocess.groups import blocked_read
from nvrx_core.inprocess.protocol.outcome import RankShouldRestart
from tests.harness.process.workers.options import Rank
from tests.harness.process.workers.record import settle, usage, usage_after

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
        rank.inject("function", iteration)
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


def made_twice(rank: Rank) -> None:
    """The default group is destroyed and made again, from iteration 1 on; torch itself is not up to it in the first."""

    @inprocess.Wrapper(**rank.settings)
    def train(call_wrapper: CallWrapper) -> int:
        rank.enter(call_wrapper)
        for _ in range(3 if call_wrapper.iteration else 1):
            dist.init_process_group("gloo", timeout=GROUP_TIMEOUT)
            dist.new_group()
            reduce_once()
            dist.destroy_process_group()
        rank.inject("function", call_wrapper.iteration)
        return call_wrapper.iteration

    rank.run(train)


def half_made(rank: Rank) -> None:
    """Rank 0 stands between the creation of its group and the moment it becomes the default one, during the abort."""

    @inprocess.Wrapper(**rank.settings)
    def train(call_wrapper: CallWrapper) -> int:
        rank.enter(call_wrapper)
        dist.init_process_group("gloo")
        rank.inject("function", call_wrapper.iteration)
        while call_wrapper.iteration < rank.broken:
            reduce_once()
        dist.destroy_process_group()
        return call_wrapper.iteration

    failpoint.install(lambda name, iteration: stand(rank, iteration) if name == "init-pg-after" else None)
    rank.run(train)


def stand(rank: Rank, iteration: int) -> None:
    """Wait until the abort has cleared torch's tables, and let the interruptions of before pass."""
    while rank.is_due("stand", iteration) and c10d._world.pg_map:
        try:
            time.sleep(0.001)
        except RankShouldRestart:
            rank.record("stood", iteration=iteration)


def making_groups(rank: Rank) -> None:
    """In each iteration one rank fails at a random instant while the others make groups; all go on to the next."""
    faults = rank.settings.pop("faults")
    dice = random.Random(rank.me + 1000 * rank.settings.pop("seed"))
    failing = Failing()

    @inprocess.Wrapper(**rank.settings)
    def train(call_wrapper: CallWrapper) -> int:
        failing.now = iteration = call_wrapper.iteration
        if iteration < faults and rank.me == iteration % int(os.environ["WORLD_SIZE"]):
            failing.plant(dice.uniform(0, 0.02))
        dist.init_process_group("gloo", timeout=GROUP_TIMEOUT)
        dist.new_group([0, 1])
        while iteration < faults:
            reduce_once()
        dist.destroy_process_group()
        return iteration

    failing.function = train.__wrapped__.__code__
    rank.run(train)


class InjectedError(Exception):
    """What nobody catches by its name."""


class Failing:
    """Raises in the function at some instant, and again until the function is left: a library may swallow it."""

    def __init__(self) -> None:
        self.now = self.injected = -1
        self.function: Any = None
        signal.signal(signal.SIGUSR2, self._raise)

    def plant(self, seconds: float) -> None:
        self.injected = self.now
        threading.Thread(target=self._fire, args=(self.now, seconds), daemon=True).start()

    def _fire(self, iteration: int, pause: float) -> None:
        while self.now == iteration:
            time.sleep(pause)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR2)
            pause = 0.1

    def _raise(self, _: int, frame: Any) -> None:
        while frame is not None and frame.f_code is not self.function:
            frame = frame.f_back
        if frame is not None and self.injected == self.now:
            raise InjectedError("at a random instant")


def foreign_connections(rank: Rank) -> None:
    """Other threads open connections all the time, and hold each for a while, also while groups are made."""
    faults, requests = rank.settings.pop("faults"), Requests()

    @inprocess.Wrapper(**rank.settings)
    def train(call_wrapper: CallWrapper) -> int:
        iteration = call_wrapper.iteration
        dist.init_process_group("gloo")
        dist.new_group([0, 1])
        for step in range(5):
            reduce_once()
            if step == 2 and rank.me == 1 and iteration < faults:
                raise ValueError("injected")
        while iteration < faults:
            reduce_once()
        dist.destroy_process_group()
        return iteration

    with requests:
        rank.run(train)
    rank.record("requests", done=requests.done, failed=requests.failed)


class Requests:
    """Clients of a server in the same process; a request takes as long as several iterations."""

    CLIENTS = 8

    def __init__(self) -> None:
        self.done, self.failed = 0, list[str]()
        self._over = threading.Event()
        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo)
        self._server.daemon_threads = True
        self._clients = [threading.Thread(target=self._client) for _ in range(self.CLIENTS)]
        self._serving = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> None:
        for thread in (self._serving, *self._clients):
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._clients:
            thread.join()
        self._server.shutdown()
        self._serving.join()
        self._server.server_close()

    def _client(self) -> None:
        while not self._over.is_set():
            try:
                with socket.create_connection(self._server.server_address, timeout=30) as connection:
                    time.sleep(random.uniform(0, 0.1))
                    connection.sendall(b"request\n")
                    assert connection.makefile("rb").readline() == b"request\n", "cut short"
                self.done += 1
            except (OSError, AssertionError) as error:
                self.failed.append(repr(error))


class Echo(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self.wfile.write(self.rfile.readline())


def atomic_collective(rank: Rank) -> None:
    """Rank 0 waits in an atomic section, in a collective, for a rank that has left by an exception."""

    @inprocess.Wrapper(**rank.settings)
    def train(call_wrapper: CallWrapper) -> int:
        rank.enter(call_wrapper)
        dist.init_process_group("gloo", timeout=GROUP_TIMEOUT)
        reduce_once()
        if call_wrapper.iteration == 0 and rank.me:
            c10d._get_default_store().wait(["atomic"])
        rank.inject("function", call_wrapper.iteration)
        if call_wrapper.iteration == 0:
            wait_for_all(call_wrapper, rank)
        dist.destroy_process_group()
        return call_wrapper.iteration

    rank.run(train)


def receive_from_any(rank: Rank) -> None:
    """All ranks but one wait for a message from whoever; then they exchange one."""

    @inprocess.Wrapper(**rank.settings)
    def train(call_wrapper: CallWrapper) -> int:
        rank.enter(call_wrapper)
        dist.init_process_group("gloo", timeout=GROUP_TIMEOUT)
        reduce_once()
        fail_while_others_wait(rank, call_wrapper.iteration)
        message = torch.zeros(1)
        if rank.me != 1:
            rank.record("waits", iteration=call_wrapper.iteration)
            rank.record("received", source=dist.recv(message), message=message.item())
        else:
            dist.send(message + 7, 0)
            dist.send(message + 7, 2)
        reduce_once()
        dist.destroy_process_group()
        return call_wrapper.iteration

    rank.run(train)


def many_groups(rank: Rank) -> None:
    """Far more groups than are released one after the other; the next fault comes as soon as they are made again."""
    settle()
    before = usage()

    @inprocess.Wrapper(**rank.settings)
    def train(call_wrapper: CallWrapper) -> int:
        rank.enter(call_wrapper)
        dist.init_process_group("gloo", timeout=GROUP_TIMEOUT)
        groups = [dist.new_group([0, 1]) for _ in range(20)]
        groups += [dist.new_group([0]) for _ in range(20)]
        for group in groups[:20]:
            dist.all_reduce(torch.ones(1), group=group)
        rank.inject("function", call_wrapper.iteration)
        while call_wrapper.iteration < rank.broken:
            dist.all_reduce(torch.ones(1), group=groups[7])
        dist.destroy_process_group()
        return call_wrapper.iteration

    rank.run(train)
    rank.record("left over", **{name: count - before[name] for name, count in usage_after(before).items()})


def early_store(rank: Rank) -> None:
    """Ranks wait on a store that was made before the call, for a key that nobody sets; it serves all iterations."""
    blocked_read.PATIENCE = 1000.0  # type: ignore[misc] # for other connections
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=rank.me == 0, wait_for_workers=False)
    holder = SimpleNamespace(stores=[dist.PrefixStore("held", store)])

    @inprocess.Wrapper(**rank.settings)
    def train(call_wrapper: CallWrapper) -> int:
        iteration = call_wrapper.iteration
        rank.enter(call_wrapper)
        if rank.is_due("wait", iteration):
            rank.record("waits", iteration=iteration)
            wait_in(holder) if rank.me else store.wait(["never"])
        fail_while_others_wait(rank, iteration)
        mine = dist.PrefixStore(str(iteration), store)
        dist.init_process_group("gloo", store=mine, rank=rank.me, world_size=int(os.environ["WORLD_SIZE"]))
        reduce_once()
        dist.destroy_process_group()
        return iteration

    rank.run(train)


def wait_in(holder: SimpleNamespace) -> None:
    holder.stores[0].get("never")


def fail_while_others_wait(rank: Rank, iteration: int) -> None:
    """Fail if that is due, but not before the others have said that they begin to wait, and a moment later."""
    if rank.is_due("function", iteration):
        rank.record.await_others(int(os.environ["WORLD_SIZE"]) - 1, "waits", iteration=iteration)
        time.sleep(0.3)
    rank.inject("function", iteration)


def wait_for_all(call: CallWrapper, rank: Rank) -> None:
    if rank.me:
        time.sleep(60)
    with call.atomic():
        c10d._get_default_store().set("atomic", "entered")
        began = time.monotonic()
        try:
            reduce_once()
        finally:
            rank.record("waited", seconds=time.monotonic() - began)


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    cases = (
        by_port,
        by_file,
        made_twice,
        half_made,
        making_groups,
        foreign_connections,
        atomic_collective,
        receive_from_any,
        many_groups,
        early_store,
    )
    {case.__name__: case for case in cases}[os.environ["NVRX_TEST_CASE"]](Rank())
