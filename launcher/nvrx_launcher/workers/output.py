"""Output of workers: to the console, to files, or to both.

A stream that goes to both is a pipe, which the launcher's loop reads. Nothing here waits for a destination: a pipe is
not read while a backlog is long (`nvrx_launcher.backlog`), and its worker waits meanwhile as if it wrote there itself.
"""

from __future__ import annotations

import fcntl
import math
import os
import re
import string
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Final, Protocol

from nvrx_core.logs.rank_lines import TAIL
from nvrx_launcher.backlog import Backlog
from nvrx_launcher.console import DRAIN_TIMEOUT, Console
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.options import LaunchOptions
from nvrx_launcher.outlet import Outlet, Writer, to_descriptor
from nvrx_launcher.workers.log_files import CycleFiles, LogFiles, Stream
from nvrx_launcher.workers.worker import Output

__all__ = ["CHUNK", "Filter", "Lines", "Logs", "Pipes", "Tee", "Tees", "WorkerOutput"]

CHUNK: Final = 1 << 16
FILE_LIMIT: Final = 1 << 20
"""Bytes that may wait for a log file."""
PREFIX: Final = "[${role_name}${local_rank}]:"
SHOWN_AFTER: Final = 0.2
"""Seconds without more output after which an unterminated line is shown."""
MAX_LINE: Final = 1 << 20
"""Bytes of an unterminated line after which it is shown."""
ENDS: Final = re.compile(rb"\r\n|\n|\r(?!\Z)")
"""The ends of lines; whether a carriage return at the end of the data ends one depends on what follows."""


class Filter:
    """A file for the lines of all workers that contain one of the filter texts.

    Args:
        file: the file.
        texts: the filter texts.
    """

    def __init__(self, file: Outlet, texts: Sequence[str]) -> None:
        self._file = file
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
class LineOutlet:
    """The destination of a stream's lines: the launcher's own stream, and the filter's file, if there is one."""

    stream: Outlet
    filter: Filter | None = None

    def show(self, prefix: bytes, lines: Sequence[bytes]) -> None:
        """Write lines, each with a prefix."""
        if lines:
            self.stream.write(b"".join(prefix + line + b"\n" for line in lines))
            if self.filter is not None:
                self.filter.show(prefix, lines)


class Lines:
    """Splits a stream into lines, also the parts of one that is still being written.

    A carriage return ends a line as torchrun has it, so that a progress bar, which never writes a newline, shows. So
    does a pause in the middle of a line: the rest of it is a line of its own, and each line has its prefix.

    Attributes:
        deadline: when `tick` is due, monotonic seconds.
    """

    def __init__(self) -> None:
        self._rest, self.deadline = b"", math.inf

    def feed(self, data: bytes, *, now: float) -> list[bytes]:
        """Take more output, and return the lines that are complete, without their ends."""
        lines, begin, data = list[bytes](), 0, self._rest + data
        for end in ENDS.finditer(data):
            line, begin = data[begin : end.start()], end.end()
            if line or end[0] != b"\r":  # what begins with a carriage return, as a progress bar does, begins no line
                lines.append(line)
        self._rest = data[begin:]
        if len(self._rest) > MAX_LINE:
            lines += self.flush()
        self.deadline = now + SHOWN_AFTER if self._rest else math.inf
        return lines

    def tick(self, *, now: float) -> list[bytes]:
        """Return the line that has been unterminated for a while."""
        return self.flush() if now >= self.deadline else []

    def flush(self) -> list[bytes]:
        """Return the unterminated line, if there is one."""
        line, self._rest, self.deadline = self._rest.rstrip(b"\r"), b"", math.inf
        return [line] if line else []


class Tee:
    """A pipe from a worker, to a file and to the console with a prefix for each line.

    Args:
        file: receives the worker's bytes unchanged.
        console: receives its lines.
        prefix: precedes each line.

    Attributes:
        reader: becomes readable when the worker has printed, or has ended.
        writer: the worker's end; to be closed after the worker has inherited it.
        is_at_end: nobody has the worker's end any more, and everything is read.
    """

    def __init__(self, file: Outlet, console: LineOutlet, prefix: bytes) -> None:
        self._open_pipe()
        self._file, self._console, self._prefix, self._lines = file, console, prefix, Lines()

    def _open_pipe(self) -> None:
        self.reader, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.reader, False)
        self.is_at_end = False

    @property
    def deadline(self) -> float:
        """When `tick` is due, monotonic seconds."""
        return self._lines.deadline

    def must_wait(self, *, now: float) -> bool:
        """Return whether a destination does not take what has been read."""
        return self._file.must_wait(now=now) or self._console.stream.must_wait(now=now)

    @property
    def waits_until(self) -> float:
        """When it no longer has to wait for the console, monotonic seconds; `inf`: it waits for the file."""
        return math.inf if self._file.must_wait(now=time.monotonic()) else self._console.stream.stalls_at

    def read(self) -> None:
        """Read what is available."""
        self._read()

    def read_rest(self) -> None:
        """Read what is there now, and not what somebody prints meanwhile, however much that is."""
        size = _available(self.reader)
        while size >= 0 and (count := self._read()):  # at 0 the end is read, if this is it
            size -= count

    def tick(self, *, now: float) -> None:
        """Show a line that has been unterminated for a while."""
        self._console.show(self._prefix, self._lines.tick(now=now))

    def close(self) -> None:
        """Read the rest, and close the file; who prints later is ended by SIGPIPE."""
        self.read_rest()
        self._console.show(self._prefix, self._lines.flush())
        os.close(self.reader)
        self._file.close()

    def _read(self) -> int:
        """Read a chunk; return its size, 0 if there is nothing more, at the moment or at all."""
        try:
            data = os.read(self.reader, CHUNK)
        except BlockingIOError:
            return 0
        if data:
            self._file.write(data)
            self._console.show(self._prefix, self._lines.feed(data, now=time.monotonic()))
        else:
            self.is_at_end = True
            self._console.show(self._prefix, self._lines.flush())
        return len(data)


def _available(pipe: int) -> int:
    """Return how many bytes are in a pipe."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


class Tees:
    """The tees of a node's workers.

    Args:
        loop: the event loop that watches them.
        rooms: descriptors that become readable when a destination has room again.
    """

    def __init__(self, loop: EventLoop, rooms: Sequence[int]) -> None:
        self._loop, self._tees, self._waiting = loop, dict[int, list[Tee]](), list[Tee]()
        self._left = list[Tee]()
        self._rooms = rooms
        for room in rooms:
            loop.watch(room, lambda room=room: self._has_room(room))  # type: ignore[misc]

    @property
    def deadline(self) -> float:
        """When `tick` is due, monotonic seconds."""
        lines = (tee.deadline for tee in self._all())
        return min(*(tee.waits_until for tee in self._waiting), *lines, math.inf, math.inf)

    def attach(self, local_rank: int, tee: Tee) -> None:
        """Read a tee of a worker whenever it has something."""
        self._tees.setdefault(local_rank, []).append(tee)
        self._loop.watch(tee.reader, lambda: self._read(tee))

    def tick(self, *, now: float) -> None:
        """Show unterminated lines, and read on where a destination has room, or has stalled."""
        for tee in self._all():
            tee.tick(now=now)
        waiting, self._waiting = self._waiting, []
        for tee in waiting:
            self._watch_or_wait(tee, now)

    @property
    def is_any_left(self) -> bool:
        """Whether the output of what workers have left may come."""
        return bool(self._left)

    def close(self, local_rank: int, *, spares_rest: bool = False) -> None:
        """Read what is left of the output of a worker that has ended.

        Args:
            local_rank: its number.
            spares_rest: what it has started may go on, and its output is read until its end, or `close_left`.
        """
        for tee in self._tees.pop(local_rank, ()):
            if spares_rest:
                tee.read_rest()
            if spares_rest and not tee.is_at_end:
                self._left.append(tee)
            else:
                self._close(tee)

    def close_left(self) -> None:
        """Read what there is of the output of what workers have left, and nothing more."""
        left, self._left = self._left, []
        for tee in left:
            self._close(tee)

    def end(self) -> None:
        """Watch no destination any more, and nothing that workers have left."""
        self.close_left()
        for room in self._rooms:
            self._loop.forget(room)

    def _all(self) -> Iterator[Tee]:
        return chain(*self._tees.values(), self._left)

    def _close(self, tee: Tee) -> None:
        self._loop.forget(tee.reader)
        self._waiting = [each for each in self._waiting if each is not tee]
        tee.close()

    def _read(self, tee: Tee) -> None:
        tee.read()
        now = time.monotonic()
        if tee.is_at_end and tee in self._left:
            self._left.remove(tee)
            self._close(tee)
        elif tee.is_at_end:  # its worker may still run: it has closed the stream, or redirected it
            self._loop.forget(tee.reader)
        elif tee.must_wait(now=now):
            self._loop.forget(tee.reader)
            self._waiting.append(tee)

    def _has_room(self, room: int) -> None:
        os.eventfd_read(room)
        self.tick(now=time.monotonic())

    def _watch_or_wait(self, tee: Tee, now: float) -> None:
        if tee.must_wait(now=now):
            self._waiting.append(tee)
        else:
            self._loop.watch(tee.reader, lambda: self._read(tee))


@dataclass(frozen=True)
class WorkerOutput:
    """Where the output of a worker can be read after its end.

    Attributes:
        tail: its latest output, b"" where the launcher does not have it.
        files: its log files.
    """

    tail: bytes
    files: tuple[str, ...]


class Pipes(Protocol):
    """The pipes of workers whose output has one destination, the log of the cycle (`cycle_pipe`)."""

    def begin(self, cycle: int, environments: Mapping[int, Mapping[str, str]]) -> None:
        """Begin a cycle with the workers that have these environments, by local rank."""

    def open(self, local_rank: int, rank: int, attach: Callable[[Tee], object]) -> Output:
        """Open the streams of a worker; `attach` is called with the pipe that the loop must read."""

    def latest(self, local_rank: int) -> bytes:
        """Return the latest output of a worker."""


class Logs:
    """The streams of the workers of one node.

    Args:
        options: select what is shown, and how.
        files: creates the log files.
        environ: the launcher's environment.
        console: the launcher's streams.
        pipes: where the output goes instead, if there are per-cycle logs.
    """

    def __init__(
        self, options: LaunchOptions, files: LogFiles, environ: Mapping[str, str], console: Console, *,
        pipes: Pipes | None = None,
    ) -> None:  # fmt: skip
        self._options, self._log_files, self._pipes = options, files, pipes
        self._template = string.Template(environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", PREFIX))
        self._cycle = CycleFiles({}, "", "")
        self._consoles, self._console, self._writer = dict[str, LineOutlet](), console, Writer()

    @property
    def rooms(self) -> list[int]:
        """Descriptors that become readable when a destination has room again."""
        return [self._writer.room, *self._console.rooms]

    def begin(self, cycle: int, environments: Mapping[int, dict[str, str]]) -> None:
        """Create the files of a cycle; add the names of the error files to the environments of its workers."""
        self.end()
        files = self._cycle = self._log_files.begin(cycle, environments)
        console, options = self._console, self._options
        self._consoles = {
            "stdout": self._destination(console.stdout, files.filtered_stdout, options.duplicate_stdout_filters),
            "stderr": self._destination(console.stderr, files.filtered_stderr, options.duplicate_stderr_filters),
        }
        for local_rank, environment in environments.items():
            environment["TORCHELASTIC_ERROR_FILE"] = files.workers[local_rank].error
        if self._pipes is not None:
            self._pipes.begin(cycle, environments)

    def end(self) -> None:
        """Close the files that all workers share."""
        for console in self._consoles.values():
            if console.filter is not None:
                console.filter.close()
        self._consoles.clear()

    def close(self) -> None:
        """Write what waits for files, within a bounded time, and log what was not written."""
        self.end()
        if not self._writer.close(DRAIN_TIMEOUT):
            self._writer.say_lost()

    def error_file(self, local_rank: int) -> Path:
        """Return the error file of a worker, to which torch's `record` writes its exception."""
        return Path(self._cycle.workers[local_rank].error or os.devnull)

    def shows_errors(self, local_rank: int) -> bool:
        """Return whether the console has what a worker writes to stderr."""
        return self._pipes is None and self._cycle.workers[local_rank].stderr.is_shown

    def latest(self, local_rank: int) -> bytes:
        """Return the latest output of a worker, b"" where the launcher does not have it, or the console has it."""
        if self._pipes is not None:
            return self._pipes.latest(local_rank)
        stderr = self._cycle.workers[local_rank].stderr
        if stderr.is_shown or not stderr.file:
            return b""
        with suppress(OSError), open(stderr.file, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            return file.read(TAIL)
        return b""

    def output(self, local_rank: int) -> WorkerOutput:
        """Return where the output of a worker of the present cycle can be read; nothing is read."""
        if self._pipes is not None:
            return WorkerOutput(self._pipes.latest(local_rank), ())
        files = self._cycle.workers[local_rank]
        return WorkerOutput(b"", tuple(each.file for each in (files.stderr, files.stdout) if each.file))

    def open(self, local_rank: int, rank: int, attach: Callable[[Tee], object]) -> Output:
        """Open the streams of a worker; `attach` is called with those that the loop must read."""
        if self._pipes is not None:
            return self._pipes.open(local_rank, rank, attach)
        values = {"role_name": self._options.role, "rank": rank, "local_rank": local_rank}
        prefix, files = self._template.safe_substitute(values).encode(), self._cycle.workers[local_rank]

        def opened(name: str, stream: Stream) -> int | IO[bytes] | None:
            if not stream.file:
                return None if stream.is_shown else open(os.devnull, "wb")
            file = open(stream.file, "ab", buffering=0)  # noqa: SIM115
            if not stream.is_shown:
                return file
            pipe = Tee(self._outlet(file, stream.file, is_lossy=False), self._consoles[name], prefix)
            attach(pipe)
            return pipe.writer

        return Output(opened("stdout", files.stdout), opened("stderr", files.stderr))

    def _destination(self, stream: Outlet, path: str, texts: Sequence[str]) -> LineOutlet:
        if not texts:
            return LineOutlet(stream)
        file = open(path, "wb", buffering=0)  # noqa: SIM115
        return LineOutlet(stream, Filter(self._outlet(file, path, is_lossy=True), texts))

    def _outlet(self, file: IO[bytes], path: str, *, is_lossy: bool) -> Outlet:
        backlog = Backlog(FILE_LIMIT, is_lossy=is_lossy)
        return Outlet(to_descriptor(file.fileno()), path, self._writer, backlog, release=file.close)
