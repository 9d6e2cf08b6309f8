import errno
import math

from nvrx_core.logs import write_queue
from nvrx_core.logs.write_queue import PAUSE, WRITE, Write, WriteQueue, is_passing


def test_chunks_of_a_file_are_written_together_and_files_take_turns():
    queue = WriteQueue[int]()
    news = [queue.put(*each) for each in [("/a", b"1", 0), ("/b", b"2", 1), ("/a", b"3", 2)]]
    assert (news, queue.take_settled()) == ([True, True, False], [])
    assert queue.deadline == -math.inf
    assert queue.take(now=0.0) == Write("/a", b"13")
    assert queue.take(now=0.0) == Write("/b", b"2")
    queue.wrote("/a", 2)
    assert queue.take_settled() == [(0, ""), (2, "")]
    queue.wrote("/b", 1)
    assert queue.take_settled() == [(1, "")]
    assert (queue.size, queue.deadline, queue.take(now=0.0)) == (0, math.inf, None)
    assert not queue.put("/a", b"", 3)
    assert queue.take_settled() == [(3, "")]


def test_a_write_is_bounded():
    queue = WriteQueue[None]()
    for _ in range(3):
        queue.put("/a", bytes(WRITE // 2), None)
    write = queue.take(now=0.0)
    assert write is not None
    assert len(write.data) == WRITE


def test_a_partial_write_goes_on_where_it_ended():
    queue = WriteQueue[int]()
    queue.put("/a", b"12", 0)
    queue.put("/a", b"34", 1)
    queue.take(now=0.0)
    queue.wrote("/a", 3)
    assert queue.take_settled() == [(0, "")]
    assert queue.take(now=0.0) == Write("/a", b"4")


def test_who_puts_nothing_waits_for_what_is_there():
    queue = WriteQueue[int]()
    queue.put("/a", b"12", 0)
    assert not queue.put("/a", b"", 1)
    assert queue.take_settled() == []
    queue.wrote("/a", 1)
    assert queue.take_settled() == []
    queue.wrote("/a", 1)
    assert queue.take_settled() == [(0, ""), (1, "")]


def test_a_full_disk_is_tried_again_and_said_once():
    queue = WriteQueue[int](limit=3)
    queue.put("/a", b"123", 0)
    assert not queue.has_room
    assert queue.failed("/a", "full", now=0.0, is_passing=True)
    assert (queue.take(now=0.5), queue.deadline, queue.failure("/a")) == (None, PAUSE, "full")
    assert not queue.failed("/a", "full", now=PAUSE, is_passing=True)
    assert queue.take_settled() == []
    queue.wrote("/a", 3)
    assert (queue.failure("/a"), queue.take_settled(), queue.has_room) == ("", [(0, "")], True)
    assert queue.failed("/a", "full", now=9.0, is_passing=True)


def test_a_file_that_cannot_be_opened_loses_what_waits_for_it():
    queue = WriteQueue[int]()
    queue.put("/a", b"123", 0)
    assert queue.failed("/a", "a link", now=0.0, is_passing=False)
    assert (queue.take_settled(), queue.lost, queue.size, queue.failure("/a")) == ([(0, "a link")], 3, 0, "a link")
    assert queue.put("/a", b"4", 1), "it is tried again"


def test_idle_files_are_forgotten(monkeypatch):
    monkeypatch.setattr(write_queue, "MAX_FILES", 1)
    queue = WriteQueue[int]()
    for number, path in enumerate(("/a", "/b")):
        queue.put(path, b"12", number)
    assert queue.take_settled() == []  # both have something to write
    queue.wrote("/a", 2)
    queue.put("/c", b"", 2)
    assert queue.take_settled() == [(0, ""), (2, "")]
    assert queue.failure("/a") == ""
    assert queue.put("/a", b"3", 3)
    assert queue.take_settled() == []
    queue.wrote("/a", 1)
    assert queue.take_settled() == [(3, "")]


def test_what_may_pass():
    assert is_passing(errno.ENOSPC)
    assert not is_passing(errno.ELOOP)
    assert not is_passing(None)
