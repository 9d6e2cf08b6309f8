"""Data: a database, numpy, regular expressions, files that are renamed into place."""

from __future__ import annotations

import os
import re
import sqlite3
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.harness.process.workers.shapes.shape import Shape, assert_not_open, work

__all__ = ["SHAPES"]


class Transaction(Shape):
    """Two rows that belong together."""

    def prepare(self) -> None:
        self.database = sqlite3.connect(self.folder / "rows", check_same_thread=False)
        self.database.execute("create table rows (number integer)")

    def run(self, call: Any) -> None:
        with self.database:
            self.database.execute("insert into rows values (1)")
            work()
            self.database.execute("insert into rows values (2)")

    def check(self) -> None:
        assert not self.database.in_transaction, "a transaction is left open"
        ((ones, twos),) = self.database.execute("select sum(number = 1), sum(number = 2) from rows")
        assert ones == twos, "half a transaction"

    def close(self) -> None:
        self.database.close()


class Numbers(Shape):
    """numpy, in calls that let other threads run, and that do not."""

    def run(self, call: Any) -> None:
        import numpy

        ones = numpy.ones((150, 150))
        assert (ones @ ones == 150).all()
        assert numpy.sort(numpy.arange(20000)[::-1])[0] == 0


class RegularExpression(Shape):
    """An expression that holds the interpreter's lock for tens of milliseconds."""

    span = 0.1

    def run(self, call: Any) -> None:
        assert re.fullmatch("(a+)+b", "a" * 19) is None


class RenamedFile(Shape):
    """A file that is there as a whole or not at all."""

    def run(self, call: Any) -> None:
        descriptor, name = tempfile.mkstemp(dir=self.folder)
        try:
            with open(descriptor, "w") as file:
                file.write("text " * 2000)
                file.flush()
                os.fsync(descriptor)
            Path(name).replace(self.folder / "file")
        except BaseException:
            with suppress(FileNotFoundError):
                Path(name).unlink()
            raise

    def check(self) -> None:
        with suppress(FileNotFoundError):
            assert (self.folder / "file").read_text() == "text " * 2000
        for path in self.folder.glob("tmp*"):  # of an interruption between mkstemp and the `try`
            path.unlink()
        assert_not_open(self.folder / "file")


SHAPES = (Transaction, Numbers, RegularExpression, RenamedFile)
