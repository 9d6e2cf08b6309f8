"""The report on a worker that has ended, as launchers log it and hand it on: its parts, and how it is read. Pure.

It is one line, as in `rank 3 (local rank 1, pid 4720) has failed with exit code 1: KeyError: 'x', at train.py:7`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

__all__ = ["BY_CODE", "BY_SIGNAL", "HUNG", "OUT_OF_MEMORY", "PRINTED", "WorkerReport"]

BY_SIGNAL: Final = "was ended by "
"""Before the name of the signal."""
BY_CODE: Final = "has failed with exit code "
OUT_OF_MEMORY: Final = ", and the kernel's OOM killer was active in its cgroup"
PRINTED: Final = "; it printed last: "
"""Before an exception that a worker has printed: it need not be why the worker has ended."""
HUNG: Final = ", hung: "
"""Before the reason for which its rank monitor has ended it."""
_FORM: Final = re.compile(
    rf"(?P<how>rank (?P<rank>\d{{1,7}}) \([^)]*\) (?:{BY_SIGNAL}[\w+]+(?: \d+)?|{BY_CODE}(?P<code>\d+))"
    rf"(?:{OUT_OF_MEMORY})?)(?:(?:: |(?P<printed>{PRINTED}))(?P<error>.*?))??(?P<hung>{HUNG}.*)?$"
)


@dataclass(frozen=True)
class WorkerReport:
    """A report on a worker that has ended.

    Attributes:
        rank: its rank.
        how: how it has ended, with its name.
        code: its exit code; None: a signal has ended it.
        error: the exception in its error file, or that it has printed last, with its place; "" for none.
        is_printed: the exception is one that it has printed.
        hung: why its rank monitor has ended it, after `HUNG`; "" where that has not.
    """

    rank: int
    how: str
    code: int | None
    error: str
    is_printed: bool
    hung: str

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the report that a line is; None for any other line."""
        if (found := _FORM.match(text)) is None:
            return None
        code = None if found["code"] is None else int(found["code"])
        error, hung = found["error"] or "", found["hung"] or ""
        return cls(int(found["rank"]), found["how"], code, error, found["printed"] is not None, hung)
