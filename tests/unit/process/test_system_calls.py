"""What this process's threads wait for, as the kernel tells it."""

import os
import select
import socket
import threading

import pytest

from nvrx_core.process.system_calls import epoll_wait_of, registered, thread_names, waits_on


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def thread(pair):
    """Runs what blocks until a byte arrives, in a thread; its number in the kernel."""
    threads = []

    def start(block):
        threads.append(threading.Thread(target=block))
        threads[-1].start()
        return threads[-1].native_id

    yield start
    pair[1].send(b"x")
    for each in threads:
        each.join()


def eventually(ask):
    """What a thread is told to wait for, it waits for soon."""
    for _ in range(5000):
        answer = ask()
        if answer is not None:
            return answer
        select.select([], [], [], 0.001)
    raise AssertionError("it never waits")


def test_an_epoll_wait_is_found_with_its_registered_descriptors(pair, thread):
    with select.epoll() as epoll:
        epoll.register(pair[0], select.EPOLLIN)
        tid = thread(lambda: epoll.poll(10, 3))
        wait = eventually(lambda: epoll_wait_of(tid))
        assert (wait.fd, wait.max_events, wait.timeout) == (epoll.fileno(), 3, 10_000)
        (found,) = registered(wait.fd)
        assert (found.fd, found.inode) == (pair[0].fileno(), os.fstat(pair[0].fileno()).st_ino)
        pair[1].send(b"x")


@pytest.mark.parametrize("how", ["recv", "poll"])
def test_a_wait_to_read_is_reported_with_its_descriptor(pair, thread, how):
    def poll():
        one = select.poll()
        one.register(pair[0], select.POLLIN)
        one.poll(10_000)

    pair[0].setblocking(True)
    block = poll if how == "poll" else lambda: pair[0].recv(1, socket.MSG_PEEK)
    tid = thread(block)
    assert eventually(lambda: waits_on(tid)) == pair[0].fileno()
    assert epoll_wait_of(tid) is None


def test_a_thread_that_runs_or_is_gone_waits_for_nothing():
    assert epoll_wait_of(threading.get_native_id()) is None
    assert waits_on(2**22 + 1) is None
    assert epoll_wait_of(2**22 + 1) is None
    assert registered(-1) == []


def test_threads_are_reported_with_their_names():
    assert threading.get_native_id() in thread_names()
