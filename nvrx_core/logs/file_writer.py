"""The thread of a log server that writes: the file system may stall, and connections are served meanwhile."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable

from nvrx_core.logs.chunks import Chunk, file_under
from nvrx_core.logs.log_folder import LogFolders
from nvrx_core.logs.reception import Reception
from nvrx_core.logs.write_queue import WriteQueue, is_passing
from nvrx_core.process.helper_thread import HelperThread

__all__ = ["FileWriter"]

log = logging.getLogger("nvrx_core.logs")


class FileWriter:
    """Appends the chunks of all nodes to their files, each numbered one once.

    Args:
        folders: the files.
        nodes: how many nodes there are.

    Attributes:
        reception: the nodes' sessions; guarded by `changed`.
    """

    def __init__(self, folders: LogFolders, nodes: int = 0) -> None:
        self._folders, self.reception = folders, Reception(nodes)
        self._queue, self._is_closing = WriteQueue[Callable[[str], object]](), False
        self.changed = threading.Condition()
        self._thread = HelperThread(self._run, name="nvrx-log-writer")
        self._thread.start()

    @property
    def has_room(self) -> bool:
        """Whether a chunk may be put."""
        return self._queue.has_room

    def check(self, path: str) -> None:
        """Check that a file is under the folders.

        Raises:
            PathRefusedError: when it is not.
        """
        file_under(self._folders.roots, path)

    def put(self, chunk: Chunk, settled: Callable[[str], object]) -> None:
        """Accept a chunk whose path is checked.

        Args:
            chunk: the chunk.
            settled: called, in any thread, once everything up to it is in the file, with "", or lost, with the reason.
        """
        with self.changed:
            data = self.reception.accept(chunk, now=time.monotonic())
            if self._queue.put(chunk.path, data, settled):  # else the thread is at work for the file, or waits with it
                self.changed.notify_all()
            self._call_back()

    def close(self, within: float) -> int:
        """Write what waits, for `within` seconds; return how many bytes are not written."""
        with self.changed:
            self._is_closing = True
            self.changed.notify_all()
        self._thread.join(within)
        return self._queue.size

    def _run(self) -> None:
        while True:
            with self.changed:
                now = time.monotonic()
                write = self._queue.take(now=now)
                if write is None:
                    if self._is_closing and not self._queue.size:
                        break
                    due = self._queue.deadline
                    self.changed.wait(None if due == math.inf else max(0.0, due - now))
                    continue
            self._write(write.path, write.data)
        try:
            self._folders.close()
        except OSError as error:
            log.warning("logs may be incomplete: %s", error)

    def _write(self, path: str, data: bytes) -> None:
        try:
            count = self._folders.append(path, data)
        except (OSError, ValueError) as error:
            number = error.errno if isinstance(error, OSError) else None
            with self.changed:
                passing = is_passing(number)
                is_news = self._queue.failed(path, f"{path}: {error}", now=time.monotonic(), is_passing=passing)
                self._call_back()
            if is_news:
                then = "it is tried again, and the nodes keep their lines" if passing else "lines for it are lost"
                log.warning("cannot write %s: %s; %s", path, error, then)
            return
        with self.changed:
            was_failing = self._queue.failure(path)
            self._queue.wrote(path, count)
            self._call_back()
        if was_failing:
            log.warning("%s is written again", path)

    def _call_back(self) -> None:
        for settled, failure in self._queue.take_settled():
            settled(failure)
