"""Imports of what has not been imported yet: packages that cannot be imported twice in half."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections import deque
from itertools import count
from typing import Any

from tests.harness.process.workers.shapes.shape import Shape, work

__all__ = ["SHAPES", "register"]

_FIRST = """
from tests.harness.process.workers.shapes.imports import register
from tests.harness.process.workers.shapes.shape import work
register(__name__)
work(60)
from . import core
from .core import value
work(60)
complete = value + core.value
"""
_CORE = """
from tests.harness.process.workers.shapes.imports import register
from tests.harness.process.workers.shapes.shape import work
register(__name__)
work(60)
value = 1
"""
_registered = set[str]()
_numbers = count()


def register(name: str) -> None:
    """As torch does with an operator: a second time is an error."""
    if name in _registered:
        raise RuntimeError(f"tried to register {name} multiple times")
    _registered.add(name)


class FirstImport(Shape):
    """A package whose body takes a while and registers itself outside."""

    def prepare(self) -> None:
        self.begun = list[str]()
        sys.path.insert(0, str(self.folder))

    def run(self, call: Any) -> None:
        name = f"first_{next(_numbers)}"
        package = self.folder / name
        package.mkdir()
        (package / "__init__.py").write_text(_FIRST)
        (package / "core.py").write_text(_CORE)
        importlib.invalidate_caches()
        self.begun.append(name)
        importlib.import_module(name)

    def check(self) -> None:
        while self.begun:
            name = self.begun.pop()
            assert importlib.import_module(name).complete == 2, f"half of {name} is there"
            del sys.modules[name], sys.modules[f"{name}.core"]
            shutil.rmtree(self.folder / name)

    def close(self) -> None:
        sys.path.remove(str(self.folder))


class LazyImport(Shape):
    """A module of the standard library, imported inside a function as if for the first time."""

    def run(self, call: Any) -> None:
        for name in ("colorsys", "textwrap", "sched"):
            sys.modules.pop(name, None)
        work()
        import colorsys
        import sched
        import textwrap

        assert textwrap.dedent("  a") == "a"
        assert colorsys.rgb_to_hsv(0, 0, 0) == (0, 0, 0)
        assert sched.scheduler().empty()

    def check(self) -> None:
        import textwrap

        assert textwrap.dedent("  a") == "a"


class Reload(Shape):
    """One module after another is imported again, in a handler of an exception or by a function in C."""

    def prepare(self) -> None:
        self.modules = [importlib.import_module(name) for name in ("quopri", "stringprep", "fileinput")]

    def run(self, call: Any) -> None:
        try:
            raise KeyError
        except KeyError:
            for _ in range(20):
                importlib.reload(self.modules[0])
        deque(map(importlib.reload, self.modules * 10), maxlen=0)

    def check(self) -> None:
        assert [importlib.import_module(each.__name__) for each in self.modules] == self.modules


SHAPES = (FirstImport, LazyImport, Reload)
