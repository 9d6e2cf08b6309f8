"""The formats of the log lines of launchers and rank monitors: text for people, or JSON for programs."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

__all__ = ["JSON", "TEXT", "log_formatter"]

TEXT: Final = "text"
JSON: Final = "json"
SCHEMA: Final = 1
SHOWN: Final = 40
"""Characters of a job's name in a line of text."""


def log_formatter(
    form: str,
    program: str,
    job: str,
    *,
    several_nodes: bool,
    position: Callable[[], Mapping[str, int]] = dict[str, int],
) -> logging.Formatter:
    """Return the formatter of a program's log.

    Args:
        form: `text`, or `json` for an object a line.
        program: the name of the program.
        job: the name of the job; "" where it is unknown.
        several_nodes: each line of text names host and job, also in a traceback: the logs of the nodes may be mixed.
        position: returns the fields `node`, `cycle` and `rank` of a JSON line, as far as they are known.
    """
    if form == JSON:
        return _JsonLines(program, job, position)
    shown = job if len(job) <= SHOWN else f"{job[:SHOWN]}..."
    if several_nodes:
        return _LabelledLines(" ".join(filter(None, (program, socket.gethostname(), shown))))
    return logging.Formatter(f"%(asctime)s %(levelname)s [{program}] %(message)s")


class _LabelledLines(logging.Formatter):
    """Time, level and label before each line of a record."""

    def __init__(self, label: str) -> None:
        super().__init__()
        self._label = label

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a record."""
        start = f"{self.formatTime(record)} {record.levelname} [{self._label}] "
        return "\n".join(start + line for line in super().format(record).split("\n"))


class _JsonLines(logging.Formatter):
    """One JSON object a line.

    Its fields are `schema`, `time` (ISO 8601, UTC), `level`, `program`, `host`, `job` and `message`; where they are
    known also `node`, `cycle`, `rank`, and with an exception `traceback`.
    """

    def __init__(self, program: str, job: str, position: Callable[[], Mapping[str, int]]) -> None:
        super().__init__()
        self._program, self._job, self._host, self._position = program, job, socket.gethostname(), position

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "schema": SCHEMA, "time": time.replace("+00:00", "Z"), "level": record.levelname,
            "program": self._program, "host": self._host, "job": self._job, **self._position(),
        }  # fmt: skip
        if (rank := getattr(record, "rank", None)) is not None:
            line["rank"] = rank
        line["message"] = record.getMessage()
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)
