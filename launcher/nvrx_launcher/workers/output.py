"""Output of workers: to the console, to files, or to both.

A stream that goes to both is a pipe, which the launcher's loop reads line by line.
"""

from __future__ import annotations

import os
import string
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from nvrx_launcher.options import LaunchOptions
from nvrx_launcher.workers.log_files import CycleFiles, LogFiles, Stream
from nvrx_launcher.workers.outlet import Outlet
from nvrx_launcher.workers.worker import Output

__all__ = ["Filter", "Logs", "Tee"]

CHUNK: Final = 1 << 16
MAX_LINE: Final = 1 << 20
"""Bytes of an unterminated line after which it is written."""
PREFIX: Final = "[${role_name}${local_rank}]:"


class Filter:
    """A file for the lines of all workers that contain one of the filter texts.

    Args:
        path: its path; the file is created at once.
        texts: the filter texts.
    """

    def __init__(self, path: str, texts: Sequence[str]) -> None:
        self._file = Outlet(open(path, "wb", buffering=0), path)  # noqa: SIM115
        self._texts = [text.encode(errors="surrogateescape") for text in texts]

    def show(self, prefix: bytes, lines: Sequence[bytes]) -> None:
        """Write the lines that match."""
        kept = [prefix + line + b"\n" for line in lines if any(text in line for text in self._texts)]
        if kept:
            self._file.write(b"".join(kept))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@dataclass(frozen=True)
class Console:
    """The destination of a stream's lines: the launcher's own stream, and the filter's file, if there is one."""

    stream: Outlet
    filter: Filter | None = None

    def show(self, prefix: bytes, lines: Sequence[bytes]) -> None:
        """Write lines, each with a prefix."""
        self.stream.write(b"".join(prefix + line + b"\n" for line in lines))
        if self.filter is not None:
            self.filter.show(prefix, lines)


class Tee:
    """A pipe from a worker, to a file and to the console with a prefix for each line.

    Args:
        file: receives the worker's bytes unchanged.
        console: receives its lines.
        prefix: precedes each line.

    Attributes:
        reader: becomes readable when the worker has printed, or has ended.
        writer: the worker's end; to be closed after the worker has inherited it.
    """

    def __init__(self, file: Outlet, console: Console, prefix: bytes) -> None:
        self.reader, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.reader, False)
        self._file, self._console, self._prefix, self._rest = file, console, prefix, b""

    def read(self) -> bool:
        """Read what is available; return False if there is nothing more, at the moment or at all."""
        try:
            data = os.read(self.reader, CHUNK)
        except BlockingIOError:
            return False
        self._file.write(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE:
            lines, self._rest = [*lines, self._rest], b""
        self._show(lines)
        return bool(data)

    def close(self) -> None:
        """Read the rest, and close the file."""
        while self.read():
            pass
        self._show([self._rest] if self._rest else [])
        os.close(self.reader)
        self._file.close()

    def _show(self, lines: list[bytes]) -> None:
        if lines:
            self._console.show(self._prefix, lines)


class Logs:
    """The streams of the workers of one node.

    Args:
        options: select what is shown, and how.
        files: creates the log files.
        environ: the launcher's environment.
    """

    def __init__(self, options: LaunchOptions, files: LogFiles, environ: Mapping[str, str]) -> None:
        self._options, self._log_files = options, files
        self._template = string.Template(environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", PREFIX))
        self._cycle = CycleFiles({}, "", "")
        self._consoles = dict[str, Console]()
        self._own = {
            stream: Outlet(getattr(getattr(sys, stream), "buffer", None), f"the launcher's {stream}")
            for stream in ("stdout", "stderr")
        }

    def begin(self, cycle: int, environments: Mapping[int, dict[str, str]]) -> None:
        """Create the files of a cycle; add the names of the error files to the environments of its workers."""
        self.end()
        self._cycle = self._log_files.begin(cycle, environments)
        worker = self._options.worker
        self._consoles = {
            "stdout": Console(self._own["stdout"], _filter(self._cycle.filtered_stdout, worker.duplicate_stdout)),
            "stderr": Console(self._own["stderr"], _filter(self._cycle.filtered_stderr, worker.duplicate_stderr)),
        }
        for local_rank, environment in environments.items():
            environment["TORCHELASTIC_ERROR_FILE"] = self._cycle.workers[local_rank].error

    def end(self) -> None:
        """Close the files that all workers share."""
        for console in self._consoles.values():
            if console.filter is not None:
                console.filter.close()
        self._consoles.clear()

    def error_file(self, local_rank: int) -> Path:
        """Return the error file of a worker, to which torch's `record` writes its exception."""
        return Path(self._cycle.workers[local_rank].error or os.devnull)

    def open(self, local_rank: int, rank: int, attach: Callable[[Tee], object]) -> Output:
        """Open the streams of a worker; `attach` is called with those that the loop must read."""
        values = {"role_name": self._options.role, "rank": rank, "local_rank": local_rank}
        prefix, files = self._template.safe_substitute(values).encode(), self._cycle.workers[local_rank]

        def opened(name: str, stream: Stream) -> int | IO[bytes] | None:
            if not stream.file:
                return None if stream.is_shown else open(os.devnull, "wb")
            file = _append_to(stream.file)
            if not stream.is_shown:
                return file
            pipe = Tee(Outlet(file, stream.file), self._consoles[name], prefix)
            attach(pipe)
            return pipe.writer

        return Output(opened("stdout", files.stdout), opened("stderr", files.stderr))


def _append_to(path: str) -> IO[bytes]:
    return open(path, "ab", buffering=0)


def _filter(path: str, texts: Sequence[str]) -> Filter | None:
    return Filter(path, texts) if texts else None
