import math

import pytest

from nvrx_core.logs import reception
from nvrx_core.logs.chunks import Chunk
from nvrx_core.logs.reception import CONNECTED, QUIET, Reception


def chunk(sequence: int, node: str = "n0", **more) -> Chunk:
    return Chunk(node, "/a", b"x\n", "s", sequence, **more)


def test_a_numbered_chunk_is_appended_once():
    received = Reception()
    assert received.accept(chunk(1), now=0.0) == b"x\n"
    assert received.accept(chunk(1), now=1.0) == b""
    assert received.accept(chunk(4), now=1.0) == b"x\n"
    assert received.accept(chunk(3), now=1.0) == b""
    assert received.accept(chunk(1, "n1"), now=1.0) == b"x\n"
    assert received.duplicates == 2


def test_a_chunk_without_a_number_is_appended_each_time():
    received = Reception()
    assert [received.accept(Chunk("n0", "/a", b"x\n"), now=0.0) for _ in range(2)] == [b"x\n", b"x\n"]


@pytest.mark.parametrize(("node", "shown"), [("n0", "n0"), ("a\nb", "'a\\nb'")])
def test_what_a_node_has_dropped_is_said_in_the_file(node, shown):
    received = Reception()
    text = received.accept(chunk(1, node, lost_bytes=30, lost_lines=2), now=0.0).decode()
    assert text.startswith(f"[nvrx] up to 2 lines (30 bytes) of node {shown} are missing here")
    assert text.endswith("\nx\n")
    assert text.count("\n") == 2
    assert (received.lost_lines, received.lost_bytes) == (2, 30)


def test_the_session_that_was_silent_for_longest_is_forgotten_first(monkeypatch):
    monkeypatch.setattr(reception, "MAX_SESSIONS", 2)
    received = Reception()
    for node in ("n0", "n1", "n0", "n2"):
        received.accept(chunk(5 if node == "n0" else 1, node), now=0.0)
    assert received.accept(chunk(5, "n0"), now=0.0) == b""
    assert received.accept(chunk(1, "n1"), now=0.0) == b"x\n"


def test_a_server_ends_when_all_sessions_have_ended():
    received = Reception()
    received.accept(chunk(1), now=0.0)
    assert (received.deadline, received.is_over(now=99.0)) == (math.inf, False)
    received.end(now=100.0, within=60.0)
    assert received.deadline == 100.0 + QUIET
    assert not received.is_over(now=100.0)
    received.accept(chunk(2, is_last=True), now=101.0)
    assert received.is_over(now=101.0)


def test_a_server_waits_for_nodes_that_have_not_sent_anything_yet():
    received = Reception(nodes=2)
    received.accept(chunk(1, is_last=True), now=0.0)
    received.end(now=1.0, within=60.0)
    assert not received.is_over(now=1.0)
    received.accept(chunk(1, "n1"), now=2.0)
    received.accept(chunk(2, "n1", is_last=True), now=2.0)
    assert received.is_over(now=2.0)


def test_a_server_ends_when_nothing_comes_any_more_and_at_its_deadline():
    received = Reception(nodes=1)
    received.end(now=0.0, within=60.0)
    for now in range(60):
        received.accept(chunk(now + 1), now=now)
        assert not received.is_over(now=now)
    assert received.is_over(now=60.0)
    received = Reception()
    received.accept(chunk(1), now=0.0)
    received.end(now=0.0, within=60.0)
    assert received.is_over(now=QUIET)


def test_connected_are_those_that_have_sent_something_lately():
    received = Reception()
    received.accept(chunk(1, "n0"), now=0.0)
    received.accept(chunk(1, "n1"), now=50.0)
    assert [received.connected(now=now) for now in (50.0, CONNECTED, CONNECTED + 50)] == [2, 1, 0]
