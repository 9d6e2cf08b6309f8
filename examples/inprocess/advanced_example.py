"""A training that keeps a rank in reserve, writes checkpoints that are never torn, and cleans up after itself.

    python examples/inprocess/advanced_example.py --ranks 4 --faults "1:0:25=kill, 0:1:45=exception"

starts a store and four ranks, three of which train. Rank 1 is killed in iteration 0 at step 25, the reserve takes its
place, and rank 0 fails in iteration 1 at step 45. In the end the timeline tells what each restart cost. A process that
has RANK already is one rank:

    torchrun --nproc-per-node 4 examples/inprocess/advanced_example.py --folder DIR --faults 2:0:25=hang_sleep

torchrun ends all its ranks when one ends, so only faults that end no process are survived there.
"""

from __future__ import annotations

import argparse
import logging
import os
import queue
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from nvrx_core import inprocess
from nvrx_core.events import timeline
from nvrx_core.inprocess.rank_assignment import Layer, LayerFlag, Tree
from nvrx_core.inprocess.state import FrozenState
from nvrx_core.testing import Point, Schedule

ROWS, WIDTH = 96, 16
AHEAD = 4


# What trains


def train(options: argparse.Namespace, feed: Feed, call_wrapper: inprocess.CallWrapper) -> list[float]:
    """Called again after each fault: whatever a collective may have spoilt is made anew, or loaded."""
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = torch.nn.Linear(WIDTH, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = load(options.checkpoint, model, optimizer)
    print(f"initial rank {options.initial_rank} is rank {rank} of {world_size} from step {len(losses)} on", flush=True)
    ddp = DistributedDataParallel(model)
    for step, rows in feed.batches(len(losses), options.steps):
        point = Point(options.initial_rank, call_wrapper.iteration, step)
        options.faults.inject(point, call=call_wrapper)  # only where `--faults` says so
        losses.append(take_step(ddp, optimizer, rows[rank::world_size]))
        call_wrapper.ping()
        call_wrapper.progress(step)
        if rank == 0 and (step + 1) % options.checkpoint_every == 0:
            with call_wrapper.atomic():  # a restart waits for the end of this block
                save(options.checkpoint, model, optimizer, losses)
    feed.stop()
    dist.destroy_process_group()
    return losses


def take_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, rows: torch.Tensor) -> float:
    """One step on this rank's rows; returns the loss of the whole batch."""
    loss = (model(rows) - rows.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total = loss.detach()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


# Checkpoints: written under another name, brought to the disk, renamed; whoever dies on the way leaves the old one


def save(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, losses: list[float]) -> None:
    unfinished = path.with_suffix(".unfinished")
    with unfinished.open("wb") as file:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)  # a rename is on the disk when its folder is
    os.close(folder)


def load(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    """Returns the losses of the steps that the checkpoint has behind it."""
    if not path.exists():
        return []
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return saved["losses"]


# Plug-ins


class Feed:
    """Prepares batches ahead, in a thread: what an `Abort` must stop and a `Finalize` must wait for.

    It is made of `SimpleQueue`s, which no interruption can leave locked.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._wanted: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[torch.Tensor | None] = queue.SimpleQueue()

    def batches(self, first: int, last: int) -> Iterator[tuple[int, torch.Tensor]]:
        """The steps from `first` on, each with its batch, the same in every iteration."""
        self._wanted, self._ready = queue.SimpleQueue(), queue.SimpleQueue()
        self._thread = threading.Thread(target=self._prepare, args=(self._wanted, self._ready), daemon=True)
        self._thread.start()
        for step in range(first, min(first + AHEAD, last)):
            self._wanted.put(step)
        for step in range(first, last):
            rows = self._ready.get()
            if rows is None:
                raise RuntimeError("the feed was stopped")
            if step + AHEAD < last:
                self._wanted.put(step + AHEAD)
            yield step, rows

    def stop(self) -> None:
        """Ends the thread, and whoever waits for a batch."""
        self._wanted.put(None)
        self._ready.put(None)

    def join(self, seconds: float) -> None:
        if self._thread is not None:
            self._thread.join(seconds)
            if self._thread.is_alive():
                raise RuntimeError("the feed does not end")

    @staticmethod
    def _prepare(wanted: queue.SimpleQueue[int | None], ready: queue.SimpleQueue[torch.Tensor | None]) -> None:
        for step in iter(wanted.get, None):
            ready.put(torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(step)))


class StopFeed(inprocess.abort.Abort):
    """Runs in a thread while the function may still wait for a batch: it must neither wait nor raise."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed

    def __call__(self, state: FrozenState) -> FrozenState:
        self.feed.stop()
        return state


class JoinFeed(inprocess.finalize.Finalize):
    """Runs in the main thread, out of the function. What it raises makes this rank leave; the others go on."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed

    def __call__(self, state: FrozenState) -> FrozenState:
        self.feed.join(5.0)
        return state


class FreeSpace(inprocess.health_check.HealthCheck):
    """A rank that could not write the next checkpoint is unfit: it leaves, and the reserve takes its place."""

    def __init__(self, folder: Path, at_least: int) -> None:
        self.folder, self.at_least = folder, at_least

    def __call__(self, state: FrozenState) -> FrozenState:
        free = shutil.disk_usage(self.folder).free
        if free < self.at_least:
            raise OSError(f"{self.folder} has {free} bytes left, {self.at_least} are needed")
        return state


def wrapper(options: argparse.Namespace, feed: Feed) -> inprocess.Wrapper:
    """In a `Compose` the last one listed runs first. Hosts that fail as a whole would be a second `Layer`."""
    job = Layer(max_ranks=int(os.environ["WORLD_SIZE"]) - options.reserves, flag=LayerFlag.RESERVE)
    return inprocess.Wrapper(
        rank_assignment=Tree([job]),
        initialize=inprocess.initialize.RetryController(max_iterations=10, min_active_world_size=options.min_ranks),
        abort=inprocess.Compose(StopFeed(feed), inprocess.abort.AbortTorchDistributed()),
        finalize=JoinFeed(feed),
        health_check=inprocess.Compose(
            FreeSpace(options.folder, at_least=1 << 20), inprocess.health_check.FaultCounter(max_rank_faults=3)
        ),
        soft_timeout=timedelta(seconds=options.soft_timeout),
        hard_timeout=timedelta(seconds=2 * options.soft_timeout),
        no_progress_limit=3,
        monitor_process_logfile=str(options.folder.resolve() / "monitor-{rank}.log"),
        events_dir=options.folder / "events",
    )


# Processes


def main() -> int:
    options = parse()
    if "RANK" not in os.environ:
        return launch(options)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")  # the wrapper's line on each restart
    torch.set_num_threads(1)
    options.initial_rank, options.checkpoint = int(os.environ["RANK"]), options.folder / "checkpoint.pt"
    feed = Feed()
    losses = wrapper(options, feed)(train)(options, feed)
    if losses is None:
        print(f"initial rank {options.initial_rank} was not needed", flush=True)
    elif os.environ["RANK"] == "0":
        print(f"{len(losses)} steps, loss {losses[0]:.3f} -> {losses[-1]:.3g}", flush=True)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4, help="how many to start (default %(default)s)")
    parser.add_argument("--reserves", type=int, default=1, help="how many of them wait (default %(default)s)")
    parser.add_argument("--min-ranks", type=int, default=1, help="give up with fewer (default %(default)s)")
    parser.add_argument("--steps", type=int, default=60, help="default %(default)s")
    parser.add_argument("--checkpoint-every", type=int, default=10, metavar="STEPS", help="default %(default)s")
    parser.add_argument("--soft-timeout", type=float, default=10, metavar="SECONDS", help="default %(default)s")
    parser.add_argument("--faults", type=Schedule.parse, default="", help="initial rank:iteration:step=kind, ...")
    parser.add_argument("--folder", type=Path, help="for checkpoint and events; a second run goes on from there")
    options = parser.parse_args()
    if "RANK" in os.environ and options.folder is None:
        parser.error("a rank needs --folder, the same for all")
    return options


def launch(options: argparse.Namespace) -> int:
    """Starts the store, outside the ranks so that any of them may be lost, and the ranks; 0 if the training ended."""
    with ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(exist_ok=True)
        store = subprocess.Popen([sys.executable, "-m", "nvrx_core.store"], stdout=subprocess.PIPE, text=True)
        stack.enter_context(store)
        stack.callback(store.terminate)
        assert store.stdout is not None
        job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(options.ranks)}
        job["NVRX_STORE_ENDPOINT"] = store.stdout.readline().strip()
        command = [sys.executable, *sys.argv, "--folder", str(folder)]
        ranks = []
        for rank in map(str, range(options.ranks)):
            ranks.append(subprocess.Popen(command, env={**os.environ, **job, "RANK": rank, "LOCAL_RANK": rank}))
            stack.callback(ranks[-1].kill)
        codes = [rank.wait() for rank in ranks]
        timeline.main([str(folder / "events")])
    print("exit codes of the ranks:", codes)
    return 0 if 0 in codes else 1  # the wrapper returns on no rank before all that are left have completed


def free_port() -> int:
    """Below the range from which outgoing connections get their ports: one of them could take it meanwhile."""
    while True:
        port = random.randrange(12_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


if __name__ == "__main__":
    sys.exit(main())
