"""The base class of shapes of user code, and checks of their state after an interruption."""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["THEMES", "Shape", "assert_free", "assert_no_children", "assert_not_open", "eventually", "theme", "work"]

THEMES = (
    "locks", "logs", "imports", "coroutines", "cleanups", "children", "loaders", "data", "interpreter", "swallowers",
    "sections", "groups",
)  # fmt: skip
_PATIENCE = 5.0
_HELPERS = ("resource_tracker", "forkserver")  # what multiprocessing starts once in a process


class Shape:
    """One shape of user code. `run` is interrupted anywhere; `check` raises if that has broken its state.

    Attributes:
        span: the interruption comes within this number of seconds from the start of a loop of `run`.
        every: the shape is interrupted in every n-th round, for shapes that take long.
        rehearsed: whether a pass without an interruption precedes each loop, to check that it still works.
        targets: how many ranks run it together.
        entered: how often code that needs a cleanup was entered.
        cleaned: how often that cleanup ran.
    """

    span = 0.03
    every = 1
    rehearsed = True
    targets = 1

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entered = self.cleaned = 0
        self.prepare()

    def prepare(self) -> None:
        """Set up once, before the function is entered."""

    def run(self, call: Any) -> None:
        """One pass of the user's code."""
        raise NotImplementedError

    def check(self) -> None:
        """Assert that nothing is broken."""
        assert self.entered == self.cleaned, f"{self.entered} times entered, {self.cleaned} times cleaned up"

    def close(self) -> None:
        """Undo `prepare`."""


def theme(name: str) -> tuple[type[Shape], ...]:
    """The shapes of one theme."""
    shapes: tuple[type[Shape], ...] = importlib.import_module(f"{__package__}.{name}").SHAPES
    return shapes


def work(times: int = 20) -> int:
    """Run some bytecode: calls and loops, in which signals are handled."""
    total = 0
    for number in range(times):
        total += sum(range(number))
    return total


def assert_free(lock: Any, name: str = "the lock") -> None:
    """Another thread can take the lock."""
    taken: list[bool] = []

    def take() -> None:
        if lock.acquire(timeout=_PATIENCE):
            lock.release()
            taken.append(True)

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    thread.join()
    assert taken, f"{name} is left locked"


def assert_no_children() -> None:
    """No child process runs any more; those that ended by themselves are collected."""
    assert eventually(lambda: not _children()), f"children are left: {_children()}"


def assert_not_open(folder: Path) -> None:
    """No file of the folder is open."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    assert not [path for path in found if path.startswith(f"{folder}/")]


def eventually(truth: Callable[[], object]) -> bool:
    """Whether it comes to hold."""
    end = time.monotonic() + _PATIENCE
    while not (held := bool(truth())) and time.monotonic() < end:
        time.sleep(0.002)
    return held


def _children() -> list[str]:
    found = []
    for children in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            found += [_command(pid) for pid in children.read_text().split()]
    return [command for command in found if command and not any(helper in command for helper in _HELPERS)]


def _command(pid: str) -> str:
    """The command line of a process; empty for a zombie."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    return ""
