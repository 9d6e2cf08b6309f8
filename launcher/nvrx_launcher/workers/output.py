"""What workers print: to the console, to files, or to both.

A stream that goes to both is a pipe, which the launcher's loop empties line by line.
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
"""Bytes of a line after which it is written although it has no end."""
PREFIX: Final = "[${role_name}${local_rank}]:"


class Filter:
    """A file for the lines that have one of some texts; of all workers.

    Args:
        path: where it is; it is made now.
        texts: what a line must have one of.
    """

    def __init__(self, path: str, texts: Sequence[str]) -> None:
        self._file = Outlet(open(path, "wb", buffering=0), path)  # noqa: SIM115
        self._texts = [text.encode(errors="surrogateescape") for text in texts]

    def show(self, prefix: bytes, lines: Sequence[bytes]) -> None:
        """Write those of some lines."""
        kept = [prefix + line + b"\n" for line in lines if any(text in line for text in self._texts)]
        if kept:
            self._file.write(b"".join(kept))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@dataclass(frozen=True)
class Console:
    """Where the lines of a stream are shown: on the launcher's own stream, and in a filter's file, if there is one."""

    stream: Outlet
    filter: Filter | None = None

    def show(self, prefix: bytes, lines: Sequence[bytes]) -> None:
        """Write lines with a prefix before each."""
        self.stream.write(b"".join(prefix + line + b"\n" for line in lines))
        if self.filter is not None:
            self.filter.show(prefix, lines)


class Tee:
    """A pipe from a worker, to a file and to the console with a prefix for each line.

    Args:
        file: where the worker's bytes go unchanged.
        console: where its lines go.
        prefix: before each of them.

    Attributes:
        reader: becomes readable when the worker has printed, or has ended.
        writer: the worker's end; to be closed when the worker has it.
    """

    def __init__(self, file: Outlet, console: Console, prefix: bytes) -> None:
        self.reader, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.reader, False)
        self._file, self._console, self._prefix, self._rest = file, console, prefix, b""

    def read(self) -> bool:
        """Take what is there; False when there is nothing more, at the moment or for good."""
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
        """Take the rest, and close the file."""
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
        options: what is shown, and how.
        files: where they go.
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
        """Make the files of a cycle; the environments of its workers get the names of their error files."""
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
        """Where a worker of the cycle leaves the exception that it has ended with (torch's `record`)."""
        return Path(self._cycle.workers[local_rank].error or os.devnull)

    def open(self, local_rank: int, rank: int, attach: Callable[[Tee], object]) -> Output:
        """Open the streams of a worker; `attach` gets those that the loop must empty."""
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
