"""What workers print: to the console, to files, or to both.

    <log_dir>/<run id>_<random>/attempt_<cycle>/<local rank>/stdout.log, stderr.log, error.json

A stream that goes to both is a pipe, which the launcher's loop empties line by line.
"""

from __future__ import annotations

import logging
import os
import string
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Final

from nvrx_launcher.options import LaunchOptions, Streams
from nvrx_launcher.workers.worker import Output

__all__ = ["Logs", "Tee"]

log = logging.getLogger("nvrx_launcher")
CHUNK: Final = 1 << 16
MAX_LINE: Final = 1 << 20
"""Bytes of a line after which it is written although it has no end."""
PREFIX: Final = "[${role_name}${rank}]:"


class Tee:
    """A pipe from a worker, to a file and to the console with a prefix for each line.

    Args:
        file: where the worker's bytes go unchanged.
        console: where its lines go; None for nowhere.
        prefix: before each of them.

    Attributes:
        reader: becomes readable when the worker has printed, or has ended.
        writer: the worker's end; to be closed when the worker has it.
    """

    def __init__(self, file: IO[bytes], console: IO[bytes] | None, prefix: bytes) -> None:
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
        if self._console is not None and lines:
            self._console.write(b"".join(self._prefix + line + b"\n" for line in lines))
            self._console.flush()


class Logs:
    """The log files of one node.

    Args:
        options: where they go.
        folder: for error files, where nobody asked for log files.
        environ: the launcher's environment.
    """

    def __init__(self, options: LaunchOptions, folder: Path, environ: Mapping[str, str]) -> None:
        self._options = options
        if options.log_dir is not None or any(_streams(options.redirects)) or any(_streams(options.tee)):
            parent = Path(options.log_dir or tempfile.mkdtemp(prefix="ft_launcher_"))
            parent.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix=f"{options.run_id}_", dir=parent))
            log.info("log files are in %s", folder)
        self.folder = folder
        self._template = string.Template(environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", PREFIX))

    def begin(self, cycle: int) -> None:
        """Make the folders of a cycle."""
        for local_rank in range(self._options.workers):
            self._of(cycle, local_rank).mkdir(parents=True)

    def error_file(self, cycle: int, local_rank: int) -> Path:
        """Where a worker leaves the exception that it has ended with (torch's `record`)."""
        return self._of(cycle, local_rank) / "error.json"

    def open(self, cycle: int, local_rank: int, rank: int, attach: Callable[[Tee], object]) -> Output:
        """Open the streams of a worker; `attach` gets those that the loop must empty."""
        to_file, tee = self._options.redirects[local_rank], self._options.tee[local_rank]
        shown = not self._options.console or local_rank in self._options.console
        values = {"role_name": self._options.role, "rank": rank, "local_rank": local_rank}
        prefix = self._template.safe_substitute(values).encode()

        def stream(name: str, console: IO[bytes]) -> int | IO[bytes] | None:
            if _is(tee, name):
                pipe = Tee(self._file(cycle, local_rank, name), console if shown else None, prefix)
                attach(pipe)
                return pipe.writer
            if _is(to_file, name):
                return self._file(cycle, local_rank, name)
            return None if shown else open(os.devnull, "wb")

        return Output(stream("stdout", sys.stdout.buffer), stream("stderr", sys.stderr.buffer))

    def _of(self, cycle: int, local_rank: int) -> Path:
        return self.folder / f"attempt_{cycle}" / str(local_rank)

    def _file(self, cycle: int, local_rank: int, name: str) -> IO[bytes]:
        return (self._of(cycle, local_rank) / f"{name}.log").open("ab", buffering=0)


def _streams(by_rank: Mapping[int, Streams]) -> Iterator[bool]:
    return (streams.stdout or streams.stderr for streams in by_rank.values())


def _is(streams: Streams, name: str) -> bool:
    return streams.stdout if name == "stdout" else streams.stderr
