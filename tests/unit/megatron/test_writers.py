"""Writers of checkpoints: killed, and dropped without waiting for them, in the shapes of 0.16 and of 0.17."""

from __future__ import annotations

import multiprocessing
import sys
import threading
import types

import pytest
from nvrx_megatron import internals, writers
from nvrx_megatron.installed import replace_once

MODULE = "megatron.core.dist_checkpointing.strategies.async_utils"


class Process:
    """A writer that was told to end, and does not."""

    pid = 2**22 + 1  # above the highest pid

    def join(self, timeout=None):
        assert timeout is not None, "would wait for ever"


class PersistentAsyncCaller:
    """The shape of 0.16: each caller has a process and queues of its own."""

    def __init__(self):
        self.process = Process()
        self.queue, self.comp_q = multiprocessing.JoinableQueue(), multiprocessing.Queue()
        self.queue.put(b"x" * 1_000_000)  # more than the pipe holds: a thread of the queue waits for a reader

    def __del__(self):
        assert self.process is None, "would wait for the process to empty its queue"


class SharedCaller:
    """The shape of 0.17: the class has them."""

    def __init__(self):
        self.process = Process()


class AsyncCallsQueue:
    def __init__(self, caller):
        self.async_calls, self.call_idx, self.persistent_caller = [], 3, caller


@pytest.fixture
def saves(monkeypatch):
    def saves(caller, **attributes):
        kind = type("AsyncCallsQueue", (AsyncCallsQueue,), attributes)
        module = types.SimpleNamespace(AsyncCallsQueue=kind, PersistentAsyncCaller=caller)
        monkeypatch.setitem(sys.modules, MODULE, module)
        return kind

    monkeypatch.setattr(writers, "_queues", set())
    monkeypatch.setattr(internals, "results_queue_module", lambda: None)
    return saves


def test_the_queues_of_modules_are_forgotten_whatever_their_names(saves, monkeypatch):
    queue = saves(SharedCaller)(None)
    for name in ("strategies.base", "strategies.torch"):
        module = types.ModuleType(f"megatron.core.dist_checkpointing.{name}")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        module.calls_of_saves = queue
    writers.observe_saves()
    assert writers._queues == {queue}
    writers.forget_saves()
    assert queue.call_idx == -1


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_killed_writer_with_a_full_queue_keeps_nobody_waiting(saves, capfd):
    queue = saves(PersistentAsyncCaller)(PersistentAsyncCaller())
    writers._queues.add(queue)
    pipe = queue.persistent_caller.queue
    assert list(writers._background_writers()) == [queue.persistent_caller.process]
    writers.forget_saves()
    assert (queue.persistent_caller, queue.call_idx) == (None, -1)
    pipe._thread.join(10)
    assert not pipe._thread.is_alive()


def test_a_writer_that_a_class_keeps_is_forgotten_by_the_class(saves, monkeypatch):
    caller, queues = SharedCaller(), [multiprocessing.JoinableQueue() for _ in range(2)]
    names = {"_persistent_process": caller.process, "_persistent_queue": queues[0], "_persistent_comp_q": queues[1]}
    for name, value in names.items():
        monkeypatch.setattr(SharedCaller, name, value, raising=False)
    kind = saves(SharedCaller, _persistent_caller=caller)
    assert list(writers._background_writers()) == [caller.process]
    writers.forget_saves()
    assert caller.process is None
    assert kind._persistent_caller is None
    assert {getattr(SharedCaller, name) for name in names} == {None}
    assert list(writers._background_writers()) == []


def test_a_writer_that_is_gone_already_is_no_failure(saves, caplog):
    saves(PersistentAsyncCaller)
    queue = AsyncCallsQueue(None)
    queue.async_calls.append(types.SimpleNamespace(async_caller=SharedCaller()))
    writers._queues.add(queue)
    writers.AbortCheckpointWriters()(types.SimpleNamespace(iteration=4))
    assert caplog.messages == ["ended 1 checkpoint writer process(es) of iteration 4"]


class ResultsQueue:
    """A proxy of a queue whose last call was interrupted: its connection holds an answer that nobody has read."""

    def __init__(self, items, connection):
        self._tls, self.items = types.SimpleNamespace(connection=connection), items

    def empty(self):
        assert not hasattr(self._tls, "connection"), "would get the answer to the call before"
        return not self.items

    def get_nowait(self):
        return self.items.pop()


@pytest.fixture
def results(saves, monkeypatch):
    saves(PersistentAsyncCaller)
    module = types.SimpleNamespace()
    monkeypatch.setattr(internals, "results_queue_module", lambda: module)
    return module


def test_the_results_of_interrupted_writers_are_dropped_on_a_new_connection(results):
    ours, theirs = multiprocessing.Pipe()
    results._results_queue = queue = ResultsQueue(["of an interrupted save"], ours)
    writers.forget_saves()
    assert (results._results_queue, queue.items, ours.closed) == (queue, [], True)
    theirs.close()


def test_a_results_queue_whose_process_is_gone_is_made_anew(results, caplog):
    results._results_queue = ResultsQueue(None, None)
    results._results_queue.empty = lambda: False
    writers.forget_saves()
    assert results._results_queue is None
    assert caplog.messages == ["emptying the writers' results queue failed; the restart goes on"]


class WriterOfThreads:
    """The shape of 0.17: threads of the rank write."""

    def write_preloaded_data_multithread(self):
        """Marks the shape."""

    @staticmethod
    def write_preloaded_data(transforms, local_proc_idx, write_bucket, go_on):
        with open(write_bucket[0], "wb") as file:
            file.write(b"1")
            file.flush()
            go_on()
            file.write(b"2")


class Running:
    """Stands for a `CallWrapper`."""

    def __init__(self, iteration):
        self.iteration = iteration


@pytest.fixture
def running(monkeypatch):
    """The call, after no interruption in this process."""
    call = Running(0)
    monkeypatch.setattr(writers, "current_call", lambda: call)
    monkeypatch.setattr(writers, "interruptions", lambda: 0)
    return call


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("place", ["this process", "another process", "a spare", "the next call"])
def test_a_thread_of_an_interrupted_save_writes_into_no_later_save(tmp_path, monkeypatch, running, named, place):
    """Whose thread it is: another rank's, whose number this one has got, has not passed by here."""
    write = WriterOfThreads.write_preloaded_data
    kind = type("Writer", (WriterOfThreads,), {"write_preloaded_data": staticmethod(write)})
    for _ in range(2):
        replace_once(kind, "write_preloaded_data", writers._writing_new_files)
    path, begun, end = tmp_path / "__0_0.distcp", threading.Event(), threading.Event()

    def held():
        begun.set()
        end.wait(10)

    def save(write, go_on):
        bucket = (path, "key", ([], []))
        if named:
            write([], local_proc_idx=0, write_bucket=bucket, go_on=go_on)
        else:
            write([], 0, bucket, go_on)

    left = threading.Thread(target=save, args=[kind.write_preloaded_data if place == "this process" else write, held])
    left.start()
    assert begun.wait(10)
    running.iteration = 0 if place == "the next call" else 1
    monkeypatch.setattr(writers, "interruptions", lambda: int(place != "a spare"))
    save(kind.write_preloaded_data, lambda: None)
    again = path.read_bytes()
    end.set()
    left.join()
    assert path.read_bytes() == again == b"12"


def test_no_file_is_removed_where_nothing_was_interrupted(tmp_path, running):
    kind = type(
        "Writer", (WriterOfThreads,), {"write_preloaded_data": staticmethod(WriterOfThreads.write_preloaded_data)}
    )
    replace_once(kind, "write_preloaded_data", writers._writing_new_files)
    (path := tmp_path / "__0_0.distcp").write_text("")
    before = path.stat().st_ino
    kind.write_preloaded_data([], 0, (path, "key", ([], [])), lambda: None)
    assert path.stat().st_ino == before
