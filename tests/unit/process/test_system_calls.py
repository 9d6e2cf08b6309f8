"""What this process's threads wait for, as the kernel tells it."""

import contextlib
import os
import select
import socket
import threading

import pytest

from nvrx_core.process import system_calls
from nvrx_core.process.system_calls import (
    Poll,
    awaited,
    epoll_wait_of,
    is_busy,
    poll_of,
    registered,
    thread_names,
    waits_on,
)


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


def test_a_call_of_poll_has_descriptors_and_a_timeout(pair, thread):
    def block():
        polling = select.poll()
        for each in pair[0], pair[1]:
            polling.register(each, select.POLLIN)
        polling.poll(50_000)

    fds = tuple(each.fileno() for each in pair)
    tid = thread(block)
    assert eventually(lambda: poll_of(tid)) == Poll(fds, 50_000)
    assert awaited() >= set(fds)
    pair[0].send(b"x")


def test_a_thread_in_a_call_of_poll_is_not_busy_and_one_that_computes_is(pair, thread):
    tid = thread(lambda: pair[0].recv(1))
    assert eventually(lambda: not is_busy(tid) or None)
    assert poll_of(tid) is None
    over = threading.Event()
    computing = threading.Thread(target=lambda: [None for _ in iter(over.is_set, True)])
    computing.start()
    assert eventually(lambda: is_busy(computing.native_id) or None)
    over.set()
    computing.join()


@pytest.fixture
def listeners():
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(4)]


def test_listeners_that_a_thread_accepts_at_or_epoll_has_are_awaited(listeners, thread):
    """One whose thread tries again and again is not."""
    accepting, registered_one, tried, other = listeners

    def accept():
        accepting.accept()[0].close()

    with select.epoll() as epoll:
        epoll.register(registered_one, select.EPOLLIN)
        thread(accept)
        tried.setblocking(False)
        awaited_ones = eventually(lambda: found if accepting.fileno() in (found := awaited()) else None)
        assert registered_one.fileno() in awaited_ones
        assert not {tried.fileno(), other.fileno()} & awaited_ones
    socket.create_connection(accepting.getsockname()).close()


def test_listeners_in_select_are_awaited(listeners):
    def serve():
        select.select(listeners[:1], [], [], 60)

    serving = threading.Thread(target=serve)
    serving.start()
    assert eventually(lambda: (listeners[0].fileno() in awaited()) or None)
    assert listeners[1].fileno() not in awaited()
    socket.create_connection(listeners[0].getsockname()).close()
    serving.join()


def test_what_the_kernel_does_not_tell_is_not_guessed(monkeypatch, pair, thread):
    tid = thread(lambda: pair[0].recv(1))
    monkeypatch.setattr(system_calls, "read_text", lambda path: "")
    assert not is_busy(tid)
    monkeypatch.setattr(system_calls, "_memory", lambda address, size: b"")
    assert awaited() is None
