"""Code that swallows or converts an interruption."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Any

from tests.harness.process.workers.shapes.shape import Shape, work

__all__ = ["SHAPES"]


class StoredError(Shape):
    """What was raised is kept in a list, and the loop goes on."""

    def prepare(self) -> None:
        self.errors = list[BaseException]()

    def run(self, call: Any) -> None:
        for _ in range(3):
            try:
                work()
                time.sleep(0.0005)
            except BaseException as error:
                if self.errors:
                    raise
                self.errors.append(error)

    def check(self) -> None:
        self.errors.clear()


class StoredInFuture(StoredError):
    """What was raised becomes the result of a future."""

    def run(self, call: Any) -> None:
        result: Future[int] = Future()
        try:
            result.set_result(work())
            time.sleep(0.0005)
        except BaseException as error:
            if self.errors or result.done():
                raise
            self.errors.append(error)
            result.set_exception(error)
        work()


class GoesOn(Shape):
    """The first exception of each iteration is dropped."""

    def prepare(self) -> None:
        self.swallowed = 0

    def run(self, call: Any) -> None:
        for _ in range(3):
            try:
                work()
                time.sleep(0.0005)
            except BaseException:
                if self.swallowed:
                    raise
                self.swallowed += 1
                continue

    def check(self) -> None:
        self.swallowed = 0


class Wrapped(Shape):
    """What was raised is raised again as an error of the library."""

    def run(self, call: Any) -> None:
        try:
            work()
        except BaseException as error:
            raise RuntimeError("the library failed") from error


SHAPES = (StoredError, StoredInFuture, GoesOn, Wrapped)
