"""Termination of background checkpoint writers with the iteration that started them.

A surviving writer would write the files of training iteration N while the restarted run saves iteration N again.
megatron-core starts writers by `multiprocessing`: one per save or a persistent one, each with child processes, and, in
a synchronous save, child processes of the rank itself. torch's own background save may also use a process.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

from nvrx_core.inprocess.abort import Abort
from nvrx_core.inprocess.call.current import interruptions
from nvrx_core.inprocess.wrap import current_call
from nvrx_core.process.children import kill_tree
from nvrx_core.process.lifeline import survivor
from nvrx_core.rank_assignment.base import FrozenState
from nvrx_megatron import internals
from nvrx_megatron.installed import Piece, replace_once
from nvrx_megatron.state import attempt

__all__ = ["AbortCheckpointWriters", "forget_saves", "observe_saves"]

log = logging.getLogger("nvrx_megatron")

_END_SECONDS: Final = 2.0
_OF_PERSISTENT_QUEUES: Final = ("_persistent_queue", "_persistent_preload_q", "_persistent_comp_q")
_queues: weakref.WeakSet[Any] = weakref.WeakSet()
_synchronous: list[frozenset[int]] = []
"""For each running synchronous write, the children that the process had before it."""


def observe_saves() -> list[Piece]:
    """Record every new queue of background saves and every synchronous write; a second call changes nothing.

    Returns:
        What is installed, or what is not.
    """
    module, files = internals.saves_module(), internals.results_queue_module()
    if hasattr(module, "AsyncCallsQueue"):
        replace_once(module.AsyncCallsQueue, "__init__", _noticing)
    _queues.update(internals.queues_of_modules())
    writer = getattr(files, "FileSystemWriterAsync", None)
    replace_once(writer, "write_preloaded_data_multiproc", _noting_children)  # from 0.17 on, threads of the rank write
    if hasattr(writer, "write_preloaded_data_multithread"):
        replace_once(writer, "write_preloaded_data", _writing_new_files)
    missing = [] if internals.saves_queue_class() is not None else ["AsyncCallsQueue"]
    missing += [] if writer is not None else ["FileSystemWriterAsync"]
    effect = "a restart ends the writers of checkpoints"
    without = "a writer of an interrupted save may write while that step is saved again"
    writes = any(hasattr(writer, f"write_preloaded_data_{by}") for by in ("multiproc", "multithread"))
    synchronous = "" if writes or writer is None else "FileSystemWriterAsync.write_preloaded_data_multiproc"
    return [
        Piece(effect, without, ", ".join(missing)),
        Piece("also of synchronous ones", "a restart does not end what writes a synchronous save", synchronous),
    ]


def _noticing(initialise: Callable[..., None]) -> Callable[..., None]:
    def noticed(queue: Any, *args: Any, **kwargs: Any) -> None:
        initialise(queue, *args, **kwargs)
        _queues.add(queue)

    return noticed


def _noting_children(write: Callable[..., Any]) -> Callable[..., Any]:
    """Note the children of the process before each synchronous write."""
    own = os.getpid()

    def noted(*args: Any, **kwargs: Any) -> Any:
        if os.getpid() != own:  # a background writer
            return write(*args, **kwargs)
        children = multiprocessing.active_children()
        _synchronous.append(frozenset(child.pid for child in children if child.pid is not None))
        try:
            return write(*args, **kwargs)
        finally:
            _synchronous.clear()

    return noted


def _writing_new_files(write: Callable[..., Any]) -> Callable[..., Any]:
    """Give each save of megatron-core 0.17 and later new files where threads of an interrupted one may still write.

    Both would write into the same file: the later save truncates it, and the thread goes on at its own position. The
    thread may be another rank's, whose number this rank has got.
    """

    def noted(*args: Any, **kwargs: Any) -> Any:
        if _follows_an_interruption():
            with suppress(FileNotFoundError):
                os.unlink(kwargs["write_bucket"][0] if "write_bucket" in kwargs else args[2][0])
        return write(*args, **kwargs)

    return noted


def _follows_an_interruption() -> bool:
    """Return whether an iteration may have been interrupted in the job; a background writer does not know."""
    call = current_call()
    return call is None or call.iteration > 0 or interruptions() > 0


class AbortCheckpointWriters(Abort):
    """An abort that kills the processes that write a checkpoint for the interrupted iteration, and waits for them."""

    def __call__(self, state: FrozenState) -> FrozenState:
        """Kill them."""
        processes = [*_background_writers(), *_writers_of_this_process()]
        for process in processes:
            attempt("ending a checkpoint writer", _kill_with_children, process)
        if processes:
            log.warning("ended %d checkpoint writer process(es) of iteration %d", len(processes), state.iteration)
        return state


def forget_saves() -> None:
    """Drop the saves of the interrupted iteration; to be called in the main thread, after their writers have exited."""
    _synchronous.clear()
    for caller in _callers():
        _disown(caller)
    for queue in tuple(_queues):
        queue.async_calls.clear()
        queue.call_idx = -1
        queue.persistent_caller = None
    _forget_persistent_process()
    _refresh_results_queue()


def _callers() -> list[Any]:
    """Return the callers (Megatron's term) of all background saves in progress, and the persistent ones."""
    callers = [call.async_caller for queue in tuple(_queues) for call in tuple(queue.async_calls)]
    callers += [getattr(queue, "persistent_caller", None) for queue in tuple(_queues)]
    callers.append(getattr(internals.saves_queue_class(), "_persistent_caller", None))
    return [caller for caller in callers if caller is not None]


def _background_writers() -> Iterator[Any]:
    """Return the processes of all background saves."""
    processes = [getattr(caller, "process", None) for caller in _callers()]
    processes.append(getattr(internals.persistent_caller_class(), "_persistent_process", None))
    yield from {id(process): process for process in processes if process is not None}.values()


def _disown(caller: Any) -> None:
    """Detach a caller from its process: when deleted, a caller waits for its process to empty its queues."""
    caller.process = None
    for name in ("queue", "preload_q", "comp_q"):
        _discard(vars(caller).get(name))


def _discard(queue: Any) -> None:
    """Close a queue whose reader is gone: at exit this process would wait until all its items have been sent."""
    if queue is not None:
        queue.cancel_join_thread()
        queue._reader.close()  # a thread of the queue that sends to a full pipe ends
        queue.close()


def _writers_of_this_process() -> list[Any]:
    """Return the processes that a synchronous save of the main thread has started."""
    if not _synchronous:
        return []
    before = _synchronous[0]
    return [process for process in multiprocessing.active_children() if process.pid not in before]


def _kill_with_children(process: Any) -> None:
    """Kill a process and all processes below it, which may hold the files, and wait for them."""
    if left := kill_tree(process.pid, _END_SECONDS):
        log.warning("an interrupted checkpoint may still be written: %s", ", ".join(map(survivor, left)))
    process.join(0)


def _forget_persistent_process() -> None:
    """Make the classes with one writer for all queues start a new one: its queues belonged to the killed one."""
    kind = internals.persistent_caller_class()
    for name in _OF_PERSISTENT_QUEUES:
        _discard(getattr(kind, name, None))
    for name in ("_persistent_process", *_OF_PERSISTENT_QUEUES):
        if hasattr(kind, name):
            setattr(kind, name, None)
    if hasattr(internals.saves_queue_class(), "_persistent_caller"):
        internals.saves_queue_class()._persistent_caller = None


def _refresh_results_queue() -> None:
    """Empty the results queue of the writers, on a new connection.

    An interrupted call of the queue leaves its answer to the next call, and every later save would fail. The process
    that holds the queue is kept: a new one would have to import torch first.
    """
    for module in (internals.results_queue_module(), internals.loaded("megatron.training.async_utils")):
        queue = getattr(module, "_results_queue", None)
        if queue is not None and not attempt("emptying the writers' results queue", _empty, queue):
            module._results_queue = None


def _empty(queue: Any) -> None:
    connection = queue._tls.__dict__.pop("connection", None)
    if connection is not None:
        connection.close()
    while not queue.empty():
        queue.get_nowait()
