"""Other processes, and pools of threads."""

from __future__ import annotations

import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor, thread
from typing import Any

from tests.harness.process.workers.shapes.shape import Shape, assert_free, assert_no_children, eventually, work

__all__ = ["SHAPES"]


class Subprocess(Shape):
    """`subprocess.run`."""

    def run(self, call: Any) -> None:
        assert subprocess.run(["/bin/echo", "text"], capture_output=True, check=True).stdout == b"text\n"

    def check(self) -> None:
        assert_no_children()


class Pool(Shape):
    """Results of a pool of threads."""

    def run(self, call: Any) -> None:
        with ThreadPoolExecutor(2, "short-lived") as pool:
            results = [pool.submit(work) for _ in range(4)]
            assert {result.result(timeout=5) for result in results} == {work()}

    def check(self) -> None:
        assert_free(thread._global_shutdown_lock, "the lock of all pools")  # type: ignore[attr-defined]
        assert eventually(lambda: not self.threads()), f"threads are left: {self.threads()}"

    @staticmethod
    def threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("short-lived")]


class KeptPool(Shape):
    """A pool that outlives the iterations."""

    def prepare(self) -> None:
        self.pool = ThreadPoolExecutor(2)
        list(self.pool.map(work, range(8)))

    def run(self, call: Any) -> None:
        assert list(self.pool.map(work, range(4))) == [work(number) for number in range(4)]

    def check(self) -> None:
        assert_free(self.pool._shutdown_lock, "the pool's lock")
        assert self.pool.submit(work).result(timeout=10) == work()

    def close(self) -> None:
        self.pool.shutdown()


SHAPES = (Subprocess, Pool, KeptPool)
