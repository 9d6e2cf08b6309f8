"""Threads that go on from an ended iteration, and the default group of the next one, which is refused to them.

The threads of the function belong to its user: no restart ends them. One that saves in the background, as
`torch.distributed.checkpoint.async_save` starts it, may still be writing when the next iteration has made its default
group, and torch looks that up at the beginning of each collective. The next collective of such a thread would take the
place of one of the main threads: ranks would exchange each other's bytes, or wait for ever. It raises an error instead.
While there is no default group, torch takes the process for the only rank, and would complete a checkpoint that has
this rank's part alone; that is refused likewise.

The functions of torch are replaced only while there is such a thread, because torch.compile knows them by identity.
"""

from __future__ import annotations

import concurrent.futures.thread
import multiprocessing.pool
import queue
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from types import FrameType
from typing import Final

from nvrx_core.inprocess.groups.torch_groups import ask_before_default_group

__all__ = ["EarlierThreads"]

_POOL: Final = concurrent.futures.thread.__file__
_TAKES_JOBS: Final = frozenset({_POOL, multiprocessing.pool.__file__, queue.__file__})
_ONE_JOB: Final = "AsyncCheckpointExecutor"
"""The prefix of the names of torch's threads that save once: one that has not begun yet belongs to its iteration."""
_OURS: Final = "nvrx-"


class EarlierThreads:
    """The threads that ended iterations have left at work; created before the function is called.

    A thread is refused the default group from then on, one of an executor until it has done its job. A thread that
    waits for a job is not: an executor of a module may serve each iteration.
    """

    def __init__(self) -> None:
        self._others = weakref.WeakSet([*threading.enumerate(), threading.current_thread()])
        self._at_work = weakref.WeakKeyDictionary[threading.Thread, object]()
        self._refusal: ExitStack | None = None
        self._lock = threading.Lock()

    def note(self) -> None:
        """Note the threads that are at work while no iteration runs, or one ends."""
        with self._lock:
            frames = sys._current_frames()
            for thread in threading.enumerate():
                if thread in self._others or thread.name.startswith(_OURS):
                    continue
                frame = frames.get(thread.ident or 0)
                if frame is not None and (job := _job(thread, frame)) is not None:
                    self._at_work[thread] = job
            if not any(thread.is_alive() for thread in list(self._at_work)):
                self.close()
            elif self._refusal is None:
                self._refusal = ask_before_default_group(self._refuse)

    def close(self) -> None:
        """Restore torch's functions."""
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            refusal.close()

    def _refuse(self) -> None:
        """Raise an error in a thread that an ended iteration has left at work."""
        if self._is_of_ended(threading.current_thread()):
            raise RuntimeError(
                f"the thread {threading.current_thread().name} goes on from an iteration that a restart has ended, and "
                "the default group is not that iteration's"
            )

    def _is_of_ended(self, thread: threading.Thread) -> bool:
        job = self._at_work.get(thread)
        if isinstance(job, weakref.ref):
            item = job()
            return item is not None and any(each is item for each in _items(sys._getframe()))
        return job is not None


def _job(thread: threading.Thread, innermost: FrameType) -> object | None:
    """Return the job that a thread is at: of an executor a weak reference to it, else the thread; None without one."""
    if (item := next(_items(innermost), None)) is not None:
        return weakref.ref(item)
    if thread.name.startswith(_ONE_JOB):
        return thread.name
    waiting = next((each for each in _stack(innermost) if each.f_code.co_filename != threading.__file__), innermost)
    return None if waiting.f_code.co_filename in _TAKES_JOBS else thread.name


def _items(innermost: FrameType) -> Iterator[object]:
    """Yield the jobs of executors that the frames run."""
    runs = (each for each in _stack(innermost) if each.f_code.co_filename == _POOL and each.f_code.co_name == "run")
    yield from (item for frame in runs if (item := frame.f_locals.get("self")) is not None)  # None once it has failed


def _stack(innermost: FrameType) -> Iterator[FrameType]:
    frame: FrameType | None = innermost
    while frame is not None:
        yield frame
        frame = frame.f_back
