import errno
import math

from nvrx_core.logs import write_queue
from nvrx_core.logs.write_queue import PAUSE, WRITE, Write, WriteQueue, is_passing


def test_chunks_of_a_file_are_written_together_and_files_take_turns():
    queue = WriteQueue()
    tickets = [queue.put(path, data) for path, data in [("/a", b"1"), ("/b", b"2"), ("/a", b"3")]]
    assert queue.deadline == -math.inf
    assert queue.take(now=0.0) == Write("/a", b"13")
    assert queue.take(now=0.0) == Write("/b", b"2")
    queue.wrote("/a", 2)
    assert [queue.is_settled(each) for each in tickets] == [True, False, True]
    queue.wrote("/b", 1)
    assert (queue.size, queue.deadline, queue.take(now=0.0)) == (0, math.inf, None)
    assert queue.is_settled(queue.put("/a", b""))


def test_a_write_is_bounded():
    queue = WriteQueue()
    for _ in range(3):
        queue.put("/a", bytes(WRITE // 2))
    write = queue.take(now=0.0)
    assert write is not None
    assert len(write.data) == WRITE


def test_a_partial_write_goes_on_where_it_ended():
    queue = WriteQueue()
    first, second = queue.put("/a", b"12"), queue.put("/a", b"34")
    queue.take(now=0.0)
    queue.wrote("/a", 3)
    assert (queue.is_settled(first), queue.is_settled(second)) == (True, False)
    assert queue.take(now=0.0) == Write("/a", b"4")


def test_a_full_disk_is_tried_again_and_said_once():
    queue = WriteQueue(limit=3)
    ticket = queue.put("/a", b"123")
    assert not queue.has_room
    assert queue.failed("/a", "full", now=0.0, is_passing=True)
    assert (queue.take(now=0.5), queue.deadline, queue.failure("/a")) == (None, PAUSE, "full")
    assert not queue.failed("/a", "full", now=PAUSE, is_passing=True)
    queue.wrote("/a", 3)
    assert (queue.failure("/a"), queue.is_settled(ticket), queue.has_room) == ("", True, True)
    assert queue.failed("/a", "full", now=9.0, is_passing=True)


def test_a_file_that_cannot_be_opened_loses_what_waits_for_it():
    queue = WriteQueue()
    ticket = queue.put("/a", b"123")
    assert queue.failed("/a", "a link", now=0.0, is_passing=False)
    assert (queue.is_settled(ticket), queue.lost, queue.size, queue.failure("/a")) == (True, 3, 0, "a link")


def test_idle_files_are_forgotten(monkeypatch):
    monkeypatch.setattr(write_queue, "MAX_FILES", 1)
    queue = WriteQueue()
    tickets = [queue.put(path, b"12") for path in ("/a", "/b")]
    assert not any(map(queue.is_settled, tickets))  # both have something to write
    queue.wrote("/a", 2)
    queue.put("/c", b"")
    assert [queue.is_settled(each) for each in tickets] == [True, False]
    assert queue.failure("/a") == ""
    again = queue.put("/a", b"3")
    assert not queue.is_settled(again)
    queue.wrote("/a", 1)
    assert queue.is_settled(again)


def test_what_may_pass():
    assert is_passing(errno.ENOSPC)
    assert not is_passing(errno.ELOOP)
    assert not is_passing(None)
