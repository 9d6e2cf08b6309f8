"""An interruption at any instant breaks nothing: locks, queues, sections, imports, event loops, and what is kept."""

from __future__ import annotations

import asyncio
import gc
import logging
import queue
import random
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from nvrx_core.inprocess.interruption.atomic import Atomic
from nvrx_core.inprocess.interruption.interrupt import FunctionThread, Interrupter
from nvrx_core.inprocess.interruption.switch_interval import STEADY, FastGilSwitching
from nvrx_core.inprocess.protocol.outcome import RankShouldRestart

TIMES = 30
UNWIND, HOLD = 8.0, 10.0
"""Seconds that a cleanup may take, and that an interruption is held back; what is not held back is done before."""


class Rounds:
    """Interrupts the calling thread again and again, at random instants."""

    def __init__(self) -> None:
        self.thread = FunctionThread(signal.SIGRTMIN + 3)
        self.interrupter = Interrupter(self.thread, unwind=UNWIND, hold=HOLD)
        self.random = random.Random(7)
        self.seconds: list[float] = []
        self.begun = threading.Event()

    def assert_at_once(self, within: float) -> None:
        """Mostly at once, as the machine may stall now and then, and never held back."""
        assert statistics.median(self.seconds) < within
        assert max(self.seconds) < UNWIND / 2

    def run_and_interrupt(
        self, work: Callable[[], object], after: float | None = None, *, begins: bool = False
    ) -> bool:
        """Run the work and interrupt it after a while; whether that ended it.

        The while begins with the work; or, where the work `begins` it, when it sets `begun`.
        """
        self.interrupter.reset()
        after = self.random.uniform(0.0, 0.002) if after is None else after
        requested = [0.0]
        self.begun.clear()

        def drive() -> None:
            self.begun.wait()
            time.sleep(after)
            requested[0] = time.monotonic()
            turns = FastGilSwitching()
            turns.begin()
            self.interrupter.request(lambda: RankShouldRestart("the round ends"))
            self.interrupter.begin()
            self.interrupter.wait_unmasked()
            self.interrupter.drive(None)
            turns.end()

        thread = threading.Thread(target=drive)
        thread.start()
        try:
            self._run(work, begins=begins)
            return False
        except RankShouldRestart:
            self.seconds.append(time.monotonic() - requested[0])
            return True
        finally:
            self.begun.set()
            self.thread.leave()
            thread.join()

    def _run(self, work: Callable[[], object], *, begins: bool) -> None:
        try:
            self.thread.arm()
            if not begins:
                self.begun.set()
            work()
        finally:
            self.thread.armed = False


@pytest.fixture
def rounds() -> Iterator[Rounds]:
    made = Rounds()
    made.thread.install()
    steady = FastGilSwitching(STEADY)
    steady.begin()
    yield made
    steady.end()
    made.thread.uninstall()


def endlessly(work: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        while True:
            work()

    return run


def free(lock: threading.Lock) -> bool:
    """Whether nobody holds it; it is given back."""
    if lock.acquire(timeout=1.0):
        lock.release()
        return True
    return False


def free_elsewhere(lock: Any) -> bool:
    """The same of a lock that its holder could take again."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(free, lock).result()


def test_a_queue_can_be_used_after_it(rounds: Rounds) -> None:
    items = queue.Queue[int]()

    def work() -> None:
        items.put(1)
        items.get()

    for _ in range(TIMES):
        rounds.run_and_interrupt(endlessly(work))
        assert free(items.mutex)
    rounds.assert_at_once(within=1.0)


def test_a_logging_handler_can_be_used_after_it(rounds: Rounds, tmp_path: Path) -> None:
    handler = logging.FileHandler(tmp_path / "log")
    logger = logging.getLogger("tests.landings")
    logger.handlers, logger.propagate = [handler], False
    for _ in range(TIMES):
        rounds.run_and_interrupt(endlessly(lambda: logger.warning("a line")))
        assert free_elsewhere(handler.lock)
    handler.close()


def test_a_lock_is_given_back_whose_try_follows_its_acquire(rounds: Rounds) -> None:
    lock = threading.Lock()

    def work() -> None:
        lock.acquire()
        try:
            sum(range(10))
        finally:
            lock.release()

    for _ in range(TIMES):
        rounds.run_and_interrupt(endlessly(work))
        assert free(lock)
    rounds.assert_at_once(within=1.0)


class Section:
    """A section written by hand, around a lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.entries = self.exits = 0

    def __enter__(self) -> None:
        self.lock.acquire()
        self.entries += 1
        len("a call")

    def __exit__(self, *error: object) -> None:
        len("a call")
        self.exits += 1
        self.lock.release()


def test_a_section_is_entered_and_left_as_a_whole(rounds: Rounds) -> None:
    section = Section()

    def work() -> None:
        with section:
            sum(range(10))

    for _ in range(TIMES):
        rounds.run_and_interrupt(endlessly(work))
        assert section.entries == section.exits
        assert free(section.lock)
    rounds.assert_at_once(within=1.0)


def test_a_cleanup_is_done_as_a_whole(rounds: Rounds) -> None:
    begun, done = [0], [0]

    def work() -> None:
        try:
            begun[0] += 1
        finally:
            len("a call")
            sum(range(20))
            len("another")
            done[0] += 1

    for _ in range(TIMES):
        rounds.run_and_interrupt(endlessly(work))
        assert begun == done
    rounds.assert_at_once(within=1.0)


def test_what_waits_for_a_lock_leaves_at_once(rounds: Rounds) -> None:
    items = queue.Queue[int]()
    event = threading.Event()
    for work in (lambda: items.get(timeout=30), lambda: event.wait(30), lambda: time.sleep(30)):
        for _ in range(10):
            rounds.run_and_interrupt(work, after=0.01)
            assert free(items.mutex)
    rounds.assert_at_once(within=0.25)


def test_an_import_is_completed_and_the_next_iteration_can_use_it(rounds: Rounds, tmp_path: Path) -> None:
    package = tmp_path / "package_of_a_test"
    package.mkdir()
    (package / "__init__.py").write_text("import time\nfrom . import part\ntime.sleep(0.05)\nfrom .part import name\n")
    (package / "part.py").write_text("import time\ntime.sleep(0.05)\nname = 1\n")
    sys.path.insert(0, str(tmp_path))
    try:
        for after in (0.0, 0.02, 0.07):
            done: list[int] = []

            def work(done: list[int] = done) -> None:
                import package_of_a_test  # type: ignore[import-not-found]

                done.append(package_of_a_test.name)
                rounds.begun.set()
                time.sleep(30)

            rounds.run_and_interrupt(work, after)
            assert all(hasattr(sys.modules[name], "name") for name in sys.modules if name.startswith(package.name))
            rounds.run_and_interrupt(work, begins=True, after=0.01)
            assert done[-1:] == [1]
            for name in [name for name in sys.modules if name.startswith(package.name)]:
                del sys.modules[name]
    finally:
        sys.path.remove(str(tmp_path))


def test_an_event_loop_of_short_tasks_is_left_at_once(rounds: Rounds) -> None:
    async def busy() -> None:
        while True:
            end = time.monotonic() + 0.003
            while time.monotonic() < end:
                pass
            await asyncio.sleep(0)

    async def waits() -> None:
        await asyncio.sleep(30)

    async def several() -> None:
        await asyncio.gather(*(busy() for _ in range(3)))

    async def in_a_group() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(busy())
            group.create_task(waits())

    for main in (busy, waits, several, in_a_group):
        for _ in range(5):
            assert rounds.run_and_interrupt(lambda main=main: asyncio.run(main()), after=0.02)  # type: ignore[misc]
    gc.collect()  # the tasks log their tracebacks now; in a report of pytest, CPython 3.11 would fail (gh-106905)
    rounds.assert_at_once(within=0.5)


def test_what_is_kept_is_raised_again_and_its_keeper_is_named(rounds: Rounds, caplog: pytest.LogCaptureFixture) -> None:
    kept: list[BaseException] = []

    def work() -> None:
        for _ in range(3):
            try:
                rounds.begun.set()
                time.sleep(30)
            except BaseException as error:  # boundary: what keeps an interruption
                kept.append(error)
        time.sleep(30)

    with caplog.at_level(logging.WARNING):
        for _restart in range(2):
            rounds.run_and_interrupt(work, after=0.01, begins=True)
    assert len(kept) == 6
    rounds.assert_at_once(within=0.5)
    line = work.__code__.co_firstlineno + 4
    assert caplog.text.count(f"was caught and stored at {__file__}:{line}") == 1


def test_a_save_in_a_finally_is_done_while_the_interruption_unwinds(rounds: Rounds) -> None:
    done: list[str] = []

    def work() -> None:
        try:
            rounds.begun.set()
            time.sleep(30)
        finally:
            with Atomic(rounds.thread):
                time.sleep(0.1)
                done.append("saved")

    rounds.run_and_interrupt(work, after=0.01, begins=True)
    assert done == ["saved"]
    assert rounds.thread.raised == 1


def test_outside_of_the_main_thread_cleanup_is_left_alone() -> None:
    done: list[str] = []
    raised: list[int] = []
    rounds: list[Rounds] = []

    def work() -> None:
        try:
            rounds[0].begun.set()
            while True:
                sum(range(10))
        finally:
            end = time.monotonic() + 0.5
            while time.monotonic() < end:
                sum(range(10))
            done.append("cleaned up")

    def run() -> None:
        rounds.append(Rounds())
        rounds[0].thread.install()
        rounds[0].run_and_interrupt(work, after=0.02, begins=True)
        raised.append(rounds[0].thread.raised)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert done == ["cleaned up"]
    assert raised == [1]
