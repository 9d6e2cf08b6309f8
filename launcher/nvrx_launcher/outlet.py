"""Destinations of output that may fail or stall, each written by a thread: nobody else waits for them.

A thread is the one way that holds for every destination. Non-blocking writes would need a flag on the open file
description, which the workers share: they would get EAGAIN. A description of one's own (`/proc/self/fd/1`) is refused
for sockets and other users' terminals, and has its own position in a file. `poll` says that a pipe is writable, and the
next write blocks all the same if a worker fills the pipe in between; a file on a stalled NFS is always writable.

A failure does not end the job: output that cannot be written is dropped, and the log says so.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import IO, Final

from nvrx_core.process.helper_thread import HelperThread
from nvrx_core.process.waiting import writable
from nvrx_launcher.backlog import Backlog, LostOutput

__all__ = ["Outlet", "Sink", "Writer", "to_descriptor", "to_stream"]

log = logging.getLogger("nvrx_launcher")
CHUNK: Final = 1 << 16
END_TIMEOUT: Final = 0.1
"""Seconds that a thread has to end that has written everything."""

Sink = Callable[[bytes], int]
"""Writes bytes, waits as long as that takes, and returns how many were written.

Raises:
    OSError: when they are refused.
    ValueError: when the stream is closed.
"""


def to_descriptor(fd: int) -> Sink:
    """Return a sink that writes to a descriptor, which a worker may have made non-blocking."""

    def write(data: bytes) -> int:
        while True:
            try:
                return os.write(fd, data)
            except BlockingIOError:
                writable(fd, 60.0)

    return write


def to_stream(stream: IO[bytes]) -> Sink:
    """Return a sink that writes to a stream without a descriptor, such as that of a notebook."""

    def write(data: bytes) -> int:
        stream.write(data)
        stream.flush()
        return len(data)

    return write


class Writer:
    """A thread that writes the backlogs of some outlets; started when there is something to write.

    Attributes:
        changed: guards the backlogs, and is notified when the thread has written.
        room: an eventfd, readable after a backlog that was long has become short.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.room = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._due, self._busy = deque[Outlet](), False
        self._outlets = set[Outlet]()
        self._thread: threading.Thread | None = None
        self._ending = False

    def add(self, outlet: Outlet) -> None:
        """Let `say_lost` say what an outlet loses."""
        with self.changed:
            self._outlets.add(outlet)

    def remove(self, outlet: Outlet) -> None:
        """Handle that an outlet has released its destination."""
        with self.changed:
            self._outlets.discard(outlet)

    def wake(self, outlet: Outlet) -> None:
        """Write an outlet's backlog, soon; where no thread can be started, at once."""
        with self.changed:
            if outlet not in self._due:
                self._due.append(outlet)
            self.changed.notify_all()
            if self._thread is not None:
                return
            self._thread = HelperThread(self._run, name="nvrx-output")
            try:
                self._thread.start()
                return
            except RuntimeError:  # the limit of processes is reached: what follows is an error message
                self._thread = None
        while (due := self._next(wait=False)) is not None:
            due.write_next()

    def drain(self, within: float) -> bool:
        """Wait until everything is written, for `within` seconds at most; return whether it is."""
        with self.changed:
            return self.changed.wait_for(lambda: not self._due and not self._busy, within)

    def close(self, within: float) -> bool:
        """Write what waits, and end the thread, within `within` seconds; return whether it has ended.

        A thread that is blocked ends with the process, and keeps the eventfd to which it may still write.
        """
        deadline = time.monotonic() + within
        with self.changed:
            is_idle = self.changed.wait_for(lambda: not self._due and not self._busy, within)
            self._ending = True
            self.changed.notify_all()
        if self._thread is not None:
            rest = max(0.0, deadline - time.monotonic())
            self._thread.join(max(rest, END_TIMEOUT) if is_idle else rest)
            if self._thread.is_alive():
                return False
        os.close(self.room)
        return True

    def say_lost(self) -> None:
        """Log what the outlets lose whose destinations did not take everything before `close` was over."""
        with self.changed:
            outlets = list(self._outlets)
        for outlet in outlets:
            outlet.say_lost()

    def _next(self, *, wait: bool = True) -> Outlet | None:
        """Return the next outlet that has something to do; None: this writer is closed, or has nothing."""
        with self.changed:
            self._busy = False
            self.changed.notify_all()
            while not self._due:
                if self._ending or not wait:
                    return None
                self.changed.wait()  # for as long as there is nothing to write
            self._busy = True
            return self._due.popleft()

    def _run(self) -> None:
        while (outlet := self._next()) is not None:
            outlet.write_next()


class Outlet:
    """A destination that may fail, may stall, and may recover. May be written to from any thread.

    Args:
        sink: writes to it; None: it takes everything, and nothing is written.
        name: its name in the log.
        writer: writes its backlog.
        backlog: what waits.
        release: called once everything is written after `close`.
        is_opened: the sink is called with b"" before there is something to write: it opens the destination.
    """

    def __init__(
        self, sink: Sink | None, name: str, writer: Writer, backlog: Backlog, *,
        release: Callable[[], object] | None = None, is_opened: bool = False,
    ) -> None:  # fmt: skip
        self._sink, self._name, self._writer, self._backlog = sink, name, writer, backlog
        self._release, self._is_closing, self._is_failing = release, False, False
        self._is_unopened = is_opened
        writer.add(self)
        if is_opened:
            writer.wake(self)

    def write(self, data: bytes, *, is_own: bool = False) -> None:
        """Append bytes to the backlog; what finds no room is lost, and the log says so later."""
        if self._sink is None:
            return
        with self._writer.changed:
            self._backlog.put(data, now=time.monotonic(), is_own=is_own)
        self._writer.wake(self)

    def must_wait(self, *, now: float) -> bool:
        """Return whether no more output of workers should be read for it now."""
        with self._writer.changed:
            return self._backlog.must_wait(now=now)

    @property
    def stalls_at(self) -> float:
        """When a backlog that `must_wait` no longer has to, monotonic seconds."""
        with self._writer.changed:
            return self._backlog.stalls_at

    def close(self) -> None:
        """Release the destination, once its backlog is written."""
        self._is_closing = True
        self._writer.wake(self)

    def write_next(self) -> None:
        """Write the next part of the backlog, in the writer's thread."""
        with self._writer.changed:
            data = self._backlog.peek(CHUNK)
        if data or self._is_unopened:
            self._is_unopened = False
            self._write(data)
        with self._writer.changed:
            rest = self._backlog.size
        if rest:
            self._writer.wake(self)
        elif self._is_closing and self._release is not None:
            release, self._release = self._release, None
            self.say_lost()
            try:
                release()
            except OSError as error:  # a file system over the network reports some failures only here
                log.warning("output of workers is lost: %s: %s", self._name, error)
            self._writer.remove(self)

    def say_lost(self) -> None:
        """Log what was lost, and what still waits, when nothing more will be written."""
        with self._writer.changed:
            loss = self._backlog.take_loss(is_final=True)
        self._say(loss)

    def _write(self, data: bytes) -> None:
        assert self._sink is not None
        count, failure = 0, None
        try:
            count = self._sink(data)
        except (OSError, ValueError) as error:  # ValueError: a stream that was closed
            failure = error
        now, loss = time.monotonic(), None
        with self._writer.changed:
            was_long = not self._backlog.has_room
            if failure is None:
                self._backlog.wrote(count, now=now)
                loss = self._backlog.take_loss()
            else:
                self._backlog.failed(len(data), now=now)
            has_room = self._backlog.has_room
        if was_long and has_room:
            os.eventfd_write(self._writer.room, 1)
        if failure is not None and not self._is_failing:
            log.warning("output of workers is lost: %s: %s", self._name, failure)
        self._is_failing = failure is not None
        self._say(loss)

    def _say(self, loss: LostOutput | None) -> None:
        if loss is not None:
            stood = f", which took none for {loss.stood:.0f} s" if loss.stood else ""
            log.warning("%d bytes of output were lost: %s%s", loss.count, self._name, stood)
