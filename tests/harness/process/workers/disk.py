"""The checkpoints of a training rank, and what goes wrong with the disk under them.

They are the demo's, of a model that counts: each step adds one to its weight, so that a step which is counted twice, or
lost, shows in the weight that is saved and loaded.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from tests.harness.process.workers.record import Record

sys.path.insert(0, str(Path(__file__).parents[4] / "examples"))
from demo_parts import checkpoints

__all__ = ["DAMAGES", "TROUBLES", "Checkpoints", "Counter", "hooked", "load", "mount_small_disk"]

DIRECTORY = "NVRX_TEST_CHECKPOINTS"
SMALL = b"size=64k"
NOISE = 4096  # weights that make a checkpoint large enough to be torn


class Counter:
    """A model whose weights are the number of steps it has taken."""

    def __init__(self) -> None:
        self.network = torch.nn.Linear(NOISE, 1, bias=False)
        torch.nn.init.zeros_(self.network.weight)
        self.optimizer: Any = torch.nn.Linear(1, 1)  # it has a state to save, and needs no torch.optim

    def step(self) -> None:
        with torch.no_grad():
            self.network.weight += 1

    def save(self, folder: Path, step: int) -> None:
        checkpoints.save(folder, step, self.network, self.optimizer)

    def resume(self, folder: Path) -> int:
        """Loads; the steps that the file's name tells and those that the weights have counted are the same."""
        step = checkpoints.resume(folder, self.network, self.optimizer)
        if self.network.weight.tolist() != [[float(step)] * NOISE]:
            raise AssertionError(f"the checkpoint of step {step} has counted {self.network.weight}")
        return step


def load(folder: Path) -> int:
    """The step of the newest whole checkpoint; each step is counted in it once."""
    return Counter().resume(folder)


class Checkpoints:
    """The checkpoints of one rank, with what goes wrong with their disk.

    Args:
        trouble: "full", "fsync", "kill" and "hang" are injected in the last save of iteration 0; "flip", "truncate",
            "tear" and "empty" are done to the newest checkpoint before iteration 1.
        record: where the rank tells of itself.
    """

    def __init__(self, trouble: str, record: Record) -> None:
        self.trouble, self.record = trouble, record
        self.folder = Path(os.environ.get(DIRECTORY, "."))
        self.model: Counter  # each iteration resumes one of its own
        self.saved = 0

    def resume(self, iteration: int) -> int:
        first = os.environ["RANK"] == "0"
        if iteration == 0 and self.trouble == "full" and first:
            mount_small_disk(self.folder)
        if iteration == 1 and first:
            self._harm_newest()
        self._meet(iteration)
        self.model = Counter()
        step = self.model.resume(self.folder)
        self.record("resume", iteration=iteration, step=step)
        return step

    def count_step(self) -> None:
        self.model.step()

    def save(self, step: int, iteration: int) -> None:
        self.saved += 1
        if iteration == 0 and self.saved == 2 and self.trouble in TROUBLES:
            with TROUBLES[self.trouble](self.folder):
                self.model.save(self.folder, step)
        else:
            self.model.save(self.folder, step)
        self.record("saved", iteration=iteration, step=step)

    def _harm_newest(self) -> None:
        newest = max(self.folder.glob("step-*.ckpt"))
        if self.trouble in DAMAGES:
            newest.write_bytes(DAMAGES[self.trouble](newest.read_bytes()))
        (self.folder / "ballast").unlink(missing_ok=True)

    def _meet(self, iteration: int) -> None:
        """All wait until the first has done to the disk what is to be done; there need be no process group."""
        flag = self.folder.with_name(f"disk-{iteration}")
        if os.environ["RANK"] == "0":
            flag.touch()
        while not flag.exists():
            time.sleep(0.005)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "flip": lambda content: content[:5000] + bytes([content[5000] ^ 1]) + content[5001:],
    "truncate": lambda content: content[:-100],
    "tear": lambda content: content[: len(content) // 2] + bytes(len(content) - len(content) // 2),
    "empty": lambda content: b"",
}


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """Nothing more fits on the disk."""
    ballast = os.open(folder / "ballast", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        while True:
            os.write(ballast, bytes(4096))
    except OSError:
        os.close(ballast)
    yield


@contextmanager
def fsync_fails(folder: Path) -> Iterator[None]:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with hooked(fail):
        yield


@contextmanager
def fsync_kills(folder: Path) -> Iterator[None]:
    with hooked(lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)):
        yield


@contextmanager
def fsync_hangs(folder: Path) -> Iterator[None]:
    with hooked(lambda descriptor: time.sleep(1e6)):
        yield


@contextmanager
def hooked(instead: Callable[[int], object]) -> Iterator[None]:
    """`os.fsync` is something else for a while."""
    real = os.fsync
    os.fsync = instead  # type: ignore[assignment]
    try:
        yield
    finally:
        os.fsync = real


TROUBLES = {"full": full, "fsync": fsync_fails, "kill": fsync_kills, "hang": fsync_hangs}


def mount_small_disk(folder: Path, size: bytes = SMALL) -> None:
    """A disk of a few pages, in the mount namespace of the tests."""
    if " /etc/nsswitch.conf " not in Path("/proc/self/mountinfo").read_text():  # as `resolve_by_files_only` mounts it
        raise AssertionError("no mount namespace of the tests' own")
    if ctypes.CDLL(None, use_errno=True).mount(b"small", os.fsencode(folder), b"tmpfs", 0, size) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(folder))
