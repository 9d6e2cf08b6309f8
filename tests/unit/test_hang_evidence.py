"""Which thread of a rank is looked at: the one that trains."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from nvrx_core.hang_evidence import training_thread
from nvrx_core.process import torch_calls

SCRIPT = """
def waits(entered, lock):
    entered.set()
    lock.acquire()
"""


class Waiter:
    """A thread in the place of the main one, which waits for others, and what these wait for."""

    def __init__(self) -> None:
        self.lock, self.ends = threading.Lock(), list[Callable[[], object]]()
        self.lock.acquire()

    def start(self, body: Callable[[threading.Event, threading.Lock], None]) -> threading.Thread:
        """Start a thread that stands in a function."""
        entered = threading.Event()
        thread = threading.Thread(target=body, args=(entered, self.lock))
        thread.start()
        assert entered.wait(10.0)
        return thread

    def found(self, wait: Callable[[], object], function: str) -> int:
        """Return which thread is found to train, once another thread stands in this function, with which it waits."""
        main = threading.Thread(target=wait)
        main.start()
        frame, found = None, 0
        while function not in names_of(frame):
            frame = sys._current_frames()[main.ident or 0]
        del frame
        found, native = training_thread(main.ident or 0)
        names = {each.ident: each.native_id for each in threading.enumerate()}
        self.lock.release()
        self.ends.append(main.join)
        assert native == (os.getpid() if found == main.ident else names.get(found, native))
        return 0 if found == main.ident else found


def names_of(frame: object) -> list[str]:
    names = []
    while frame is not None:
        names.append(frame.f_code.co_name)  # type: ignore[attr-defined]
        frame = frame.f_back  # type: ignore[attr-defined]
    return names


@pytest.fixture
def waiter() -> Iterator[Waiter]:
    made = Waiter()
    yield made
    for end in made.ends:
        end()


def module_at(path: Path) -> ModuleType:
    path.write_text(SCRIPT)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def c10d(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module in the place of torch.distributed's."""
    module = module_at(tmp_path / "c10d.py")
    monkeypatch.setattr(torch_calls, "_c10d", lambda: SimpleNamespace(__file__=module.__file__))
    return module


def test_a_thread_whose_end_is_awaited_trains(waiter: Waiter, tmp_path: Path) -> None:
    trains = waiter.start(module_at(tmp_path / "train.py").waits)
    assert waiter.found(trains.join, "join") == trains.ident
    trains.join()


def test_a_thread_whose_result_is_awaited_trains_where_it_is_in_a_collective(waiter: Waiter, c10d: ModuleType) -> None:
    entered = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(c10d.waits, entered, waiter.lock)
        assert entered.wait(10.0)
        assert waiter.found(result.result, "result") == next(iter(pool._threads)).ident


def test_a_thread_that_an_event_loop_waits_for_trains_where_it_is_in_a_collective(
    waiter: Waiter, c10d: ModuleType
) -> None:
    trains = waiter.start(c10d.waits)

    async def wait() -> None:
        await asyncio.to_thread(trains.join)

    assert waiter.found(lambda: asyncio.run(wait()), "select") == trains.ident
    trains.join()


def test_beside_another_thread_in_a_collective_the_main_one_trains_if_it_is_in_code_of_its_own(
    waiter: Waiter, c10d: ModuleType, tmp_path: Path
) -> None:
    """As a checkpoint is saved in the background."""
    saves, script = waiter.start(c10d.waits), module_at(tmp_path / "train.py")
    entered, lock = threading.Event(), threading.Lock()
    lock.acquire()
    assert waiter.found(lambda: script.waits(entered, lock), "waits") == 0
    lock.release()
    saves.join()
