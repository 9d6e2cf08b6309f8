"""What a thread waits for, and which children are dead, as the kernel tells."""

import os
import socket
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from nvrx_core.process.thread_wait import ThreadWait, dead_children, wait_of
from tests.harness.process.host import eventually, stop


def state_of(tid):
    return Path(f"/proc/self/task/{tid}/stat").read_text().rpartition(")")[2].split()[0]


def in_thread(wait, end):
    """Return what a thread waits for that is in `wait`; `end` ends that."""
    thread = threading.Thread(target=wait)
    thread.start()
    try:
        assert eventually(lambda: state_of(thread.native_id) == "S", 5.0)
        assert eventually(lambda: wait_of(os.getpid(), thread.native_id).text, 5.0)
        return wait_of(os.getpid(), thread.native_id)
    finally:
        end()
        thread.join()


def test_a_lock_a_pipe_and_a_socket_are_told():
    lock = threading.Lock()
    lock.acquire()
    assert in_thread(lock.acquire, lock.release) == ThreadWait(False, False, "a lock")
    reader, writer = os.pipe()
    assert in_thread(lambda: os.read(reader, 1), lambda: os.close(writer)).text == "data from a pipe"
    os.close(reader)
    ours, theirs = socket.socketpair()
    with ours, closing(theirs):
        assert in_thread(lambda: ours.recv(1), theirs.close).text == "data from a socket"


def test_a_thread_that_runs_or_waits_for_the_interpreter_s_lock_runs():
    over = threading.Event()

    def loop():
        while not over.is_set():
            sum(range(100))

    thread = threading.Thread(target=loop)
    thread.start()
    held = [wait_of(os.getpid(), thread.native_id) for _ in range(20)]
    over.set()
    thread.join()
    assert set(held) == {ThreadWait(True, False, "")}


@pytest.fixture
def child():
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]) as process:
        yield process
        process.kill()


def test_a_stopped_process_and_a_dead_child_are_told(child):
    assert eventually(lambda: wait_of(child.pid, child.pid).text == "the end of a sleep", 10.0)
    stop(child.pid)
    assert eventually(lambda: wait_of(child.pid, child.pid).stopped, 5.0)
    assert child.pid not in dict(dead_children(os.getpid()))
    child.kill()
    assert eventually(lambda: child.pid in dict(dead_children(os.getpid())), 5.0)
    assert "python" in dict(dead_children(os.getpid()))[child.pid]
