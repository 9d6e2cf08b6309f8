"""Who is refused the default group, and for how long."""

import gc
import multiprocessing.pool as pools
import queue
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor, thread as futures
from multiprocessing.pool import ThreadPool

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed import distributed_c10d as c10d

from nvrx_core.inprocess.groups import torch_groups
from nvrx_core.inprocess.groups.default_group import DefaultGroupGuard

WITHIN = 20.0


@pytest.fixture
def guard():
    found = DefaultGroupGuard()
    yield found
    found.close()


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    torch_groups.forget_groups()
    torch_groups.undo_exception_hooks()
    gc.collect()


class Work:
    """A job that begins a collective of the default group when the test lets it."""

    def __init__(self):
        self.begun, self.go_on, self.done = threading.Event(), threading.Event(), threading.Event()
        self.error, self.rank = None, None

    def __call__(self):
        self.begun.set()
        assert self.go_on.wait(WITHIN)
        try:
            self.rank = dist.get_rank()
            dist.all_reduce(torch.ones(1))
        except RuntimeError as error:
            self.error = str(error)
        self.done.set()

    def end(self):
        """Let it go on, and return whether it was refused."""
        self.go_on.set()
        assert self.done.wait(WITHIN)
        assert self.rank == 0, "a question is answered"
        return self.error is not None


def in_thread(work, name=None):
    thread = threading.Thread(target=work, name=name)
    thread.start()
    return thread


def test_a_thread_at_work_is_refused_and_the_main_thread_is_not(guard, group):
    work = Work()
    thread = in_thread(work)
    guard.leave()
    dist.all_reduce(torch.ones(1))
    assert work.end()
    assert f"the thread {thread.name} goes on" in work.error
    thread.join()


def test_torch_s_functions_are_replaced_at_the_first_abort_and_put_back_at_the_end(guard, group):
    before = c10d._get_default_group, dist.is_initialized
    DefaultGroupGuard()
    assert (c10d._get_default_group, dist.is_initialized) == before
    guard.abort(1)
    replaced = c10d._get_default_group, dist.is_initialized
    assert not set(replaced) & set(before)
    guard.leave()
    assert (c10d._get_default_group, dist.is_initialized) == replaced, "torch.compile knows them by identity"
    guard.close()
    assert (c10d._get_default_group, dist.is_initialized) == before


def test_a_checkpoint_is_refused_after_the_abort_of_a_group_of_several_ranks(guard, tmp_path):
    guard.abort(2)
    guard.abort(0)
    assert not dist.is_initialized(), "a question of other code"
    with pytest.raises(RuntimeError, match="the part of this rank alone"):
        save(tmp_path / "refused")
    assert not (tmp_path / "refused" / ".metadata").exists()
    guard.leave()
    save(tmp_path / "next")


@pytest.mark.parametrize("ranks", [0, 1])
def test_a_checkpoint_of_a_single_rank_is_not_refused(guard, tmp_path, ranks):
    guard.abort(ranks)
    save(tmp_path)


def save(folder):
    with warnings.catch_warnings(action="ignore"):  # that it is of a single rank
        dcp.save({"numbers": torch.ones(1)}, checkpoint_id=str(folder))


def test_a_thread_of_before_the_call_or_of_the_wrapper_is_not_refused(group):
    early, ours = Work(), Work()
    first = in_thread(early)
    guard = DefaultGroupGuard()
    second = in_thread(ours, "nvrx-something")
    guard.leave()
    assert not early.end()
    assert not ours.end()
    for thread in (first, second):
        thread.join()


def test_an_executor_is_refused_for_the_job_that_it_is_at(guard, group):
    with ThreadPoolExecutor(1) as executor:
        old, new = Work(), Work()
        executor.submit(old)
        assert old.begun.wait(WITHIN)
        guard.leave()
        assert old.end()
        executor.submit(new)
        assert not new.end()


def idle_executor():
    executor = ThreadPoolExecutor(1)
    executor.submit(int).result()
    (thread,) = executor._threads
    return thread, executor.submit, executor.shutdown


def idle_thread_pool():
    pool = ThreadPool(1)
    pool.apply(int)
    (thread,) = pool._pool
    return thread, pool.apply_async, lambda: (pool.terminate(), pool.join())


def idle_reader_of_a_queue():
    jobs = queue.Queue()

    def serve():
        while (job := jobs.get()) is not None:
            job()

    thread = in_thread(serve)
    return thread, jobs.put, lambda: (jobs.put(None), thread.join())


def await_idle(thread):
    """Wait until a thread is in a wait of the library's, where it stays."""
    end = time.monotonic() + WITHIN
    while innermost(thread) not in (queue.__file__, futures.__file__, pools.__file__):
        assert time.monotonic() < end


def innermost(thread):
    frame = sys._current_frames()[thread.ident]
    while frame.f_code.co_filename == threading.__file__:
        frame = frame.f_back
    return frame.f_code.co_filename


@pytest.mark.parametrize("idle", [idle_executor, idle_thread_pool, idle_reader_of_a_queue])
def test_a_thread_that_waits_for_a_job_serves_the_next_iteration(guard, group, idle):
    thread, submit, end = idle()
    await_idle(thread)
    guard.leave()
    work = Work()
    submit(work)
    assert not work.end()
    end()


def test_a_background_save_that_has_not_begun_yet_is_of_its_iteration(guard, group):
    with ThreadPoolExecutor(1, thread_name_prefix="AsyncCheckpointExecutor") as executor:
        executor.submit(int).result()
        guard.leave()
        work = Work()
        executor.submit(work)
        assert work.end()
