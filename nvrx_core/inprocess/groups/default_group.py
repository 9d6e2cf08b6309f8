"""Who may not use the default group: threads that go on from an ended iteration, and what comes after an abort.

The threads of the function belong to its user: no restart ends them. One that saves in the background, as
`torch.distributed.checkpoint.async_save` starts it, may still be writing when the next iteration has made its default
group, and torch looks that up at the beginning of each collective. The next collective of such a thread would take the
place of one of the main threads: ranks would exchange each other's bytes, or wait for ever. It raises an error instead.

Between the groups of two iterations, `torch.distributed.checkpoint` takes the process for the only rank: a save by such
a thread, or by a handler of the interruption, would complete a checkpoint that has the part of this rank alone. That is
refused likewise.

torch's functions are replaced at the first abort, and put back at the end of the call.
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

__all__ = ["DefaultGroupGuard"]

_POOL: Final = concurrent.futures.thread.__file__
_TAKES_JOBS: Final = frozenset({_POOL, multiprocessing.pool.__file__, queue.__file__})
_ONE_JOB: Final = "AsyncCheckpointExecutor"
"""The prefix of the names of torch's threads that save once: one that has not begun yet belongs to its iteration."""
_OURS: Final = "nvrx-"


class DefaultGroupGuard:
    """The refusals of one call; created before its function is entered.

    A thread that an ended iteration has left at work is refused the default group from then on, one of an executor
    until it has done its job. A thread that waits for a job is not: an executor of a module may serve each iteration.

    Attributes:
        is_aborted: whether an abort has ended a default group of several ranks, and the function has not been left yet.
    """

    def __init__(self) -> None:
        self._others = weakref.WeakSet([*threading.enumerate(), threading.current_thread()])
        self._at_work = weakref.WeakKeyDictionary[threading.Thread, object]()
        self.is_aborted = False
        self._refusals: ExitStack | None = None
        self._lock = threading.Lock()

    def abort(self, ranks: int) -> None:
        """Note that the default group, of so many ranks, is about to be aborted; 0 without one."""
        self.is_aborted |= ranks > 1
        self._note_threads()

    def leave(self) -> None:
        """Note, in the main thread, that an iteration has ended, and that the next may create its default group."""
        self._note_threads()
        self.is_aborted = False

    def close(self) -> None:
        """Put torch's functions back."""
        refusals, self._refusals = self._refusals, None
        if refusals is not None:
            refusals.close()

    def _note_threads(self) -> None:
        frames = sys._current_frames()
        # Not this frame: with what the function has, it would live until the collector runs.
        del frames[threading.get_ident()]
        for thread in threading.enumerate():
            frame = frames.get(thread.ident or 0)
            if frame is None or thread in self._others or thread.name.startswith(_OURS):
                continue
            if (job := _job(thread, frame)) is not None:
                self._at_work[thread] = job
        with self._lock:
            if self._refusals is None:
                self._refusals = ask_before_default_group(self._refuse_collective, self._refuse_checkpoint)

    def _refuse_collective(self) -> None:
        thread = threading.current_thread()
        if self._is_left_at_work(thread):
            raise RuntimeError(
                f"the thread {thread.name} goes on from an iteration that a restart has ended, and the default group "
                "is not that iteration's"
            )

    def _refuse_checkpoint(self) -> None:
        self._refuse_collective()
        if self.is_aborted:
            raise RuntimeError(
                "a restart has aborted the process groups of this iteration: the checkpoint would have the part of "
                "this rank alone"
            )

    def _is_left_at_work(self, thread: threading.Thread) -> bool:
        job = self._at_work.get(thread)
        if isinstance(job, weakref.ref):
            item = job()
            return item is not None and any(each is item for each in _items(sys._getframe()))
        return job is not None


def _job(thread: threading.Thread, innermost: FrameType) -> object | None:
    """Return the job that a thread is at: of an executor a weak reference to it, else its name; None without one."""
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
