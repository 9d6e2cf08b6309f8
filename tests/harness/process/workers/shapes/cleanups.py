"""Everything that runs when something is left: generators, context managers, destructors."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from tests.harness.process.workers.shapes.shape import Shape, assert_not_open, work

__all__ = ["SHAPES"]


class Finally(Shape):
    """A cleanup in a `finally`, which takes longer than what it cleans up."""

    def run(self, call: Any) -> None:
        self.entered += 1
        try:
            work()
        finally:
            self.cleaned += 1
            work(60)


class SuspendedGenerator(Shape):
    """A generator that stands in its `try` when its consumer is interrupted."""

    def items(self) -> Iterator[int]:
        self.entered += 1
        try:
            yield from range(20)
        finally:
            self.cleaned += 1

    def run(self, call: Any) -> None:
        for item in self.items():
            work()
            if item == 10:
                break


class Destructor(Shape):
    """`__del__`, out of which no exception comes."""

    def run(self, call: Any) -> None:
        for _ in range(5):
            _Resource(self)
            work()


class _Resource:
    counted = False

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        shape.entered += 1
        self.counted = True

    def __del__(self) -> None:
        if self.counted:
            self.shape.cleaned += 1
            work(40)


class ContextManager(Shape):
    """`contextlib.contextmanager`."""

    @contextmanager
    def section(self) -> Iterator[None]:
        self.entered += 1
        try:
            yield
        finally:
            self.cleaned += 1
            work()

    def run(self, call: Any) -> None:
        with self.section():
            work()
            with self.section():
                work()


class Stack(ContextManager):
    """An `ExitStack` of files and sections."""

    def run(self, call: Any) -> None:
        with ExitStack() as stack:
            for number in range(3):
                stack.enter_context(self.section())
                stack.enter_context((self.folder / f"{number}").open("w")).write("text")
            work()

    def check(self) -> None:
        super().check()
        assert_not_open(self.folder)


class Closing(Shape):
    """`contextlib.closing`."""

    def run(self, call: Any) -> None:
        with closing(sqlite3.connect(self.folder / "closing")) as connection:
            connection.execute("create table if not exists lines (line integer)")
            work()

    def check(self) -> None:
        assert_not_open(self.folder)


SHAPES = (Finally, SuspendedGenerator, Destructor, ContextManager, Stack, Closing)
