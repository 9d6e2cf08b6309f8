"""The store of in-process restart, as a launcher knows it: its listener, and what its program says."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from nvrx_launcher import store_host
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.store_host import HostedStoreLost, StoreHost, StoreUsed
from nvrx_launcher.store_watch import StoreWatch

from nvrx_core.parsing import parse_endpoint

ELSEWHERE = "127.0.0.1:1"


@contextmanager
def listening() -> Iterator[tuple[EventLoop, StoreHost]]:
    with closing(EventLoop()) as loop, closing(StoreHost(loop, "job", address="127.0.0.1")) as control:
        yield loop, control


def connect(endpoint: str) -> socket.socket:
    return socket.create_connection(parse_endpoint(endpoint))


class Program:
    """Stands for a running program: it says nothing, and does not end."""

    pid = 0

    def __init__(self, where: str, *_: object) -> None:
        self.where, self.is_closed, self.watch = where, False, StoreWatch(now=0.0)
        self.said, self.ended = os.eventfd(0), os.eventfd(0)

    def close(self) -> None:
        self.is_closed = True
        os.close(self.said)
        os.close(self.ended)


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[Program]:
    """The programs that were started."""
    started = list[Program]()

    def start(*arguments: Any) -> Program:
        started.append(Program(*arguments))
        return started[-1]

    monkeypatch.setattr(store_host, "_Program", start)
    return started


def refuse(*_: object, **__: object) -> Any:
    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")


def test_a_launcher_that_hosts_the_store_again_listens_where_it_has_listened_before() -> None:
    with listening() as (_, control):
        control.begin_cycle()
        first = control.own_endpoint()
        control.begin_cycle(ELSEWHERE)  # another launcher runs the coordinator
        control.begin_cycle(control.own_endpoint())
        assert control.endpoint == control.own_endpoint() == first


def test_only_the_store_of_the_cycle_is_hosted(programs: list[Program]) -> None:
    """A scanner of ports connects to a listener that no rank of the cycle knows."""
    with listening() as (loop, control), connect(control.own_endpoint()):
        loop.turn(0.0)
        control.begin_cycle(ELSEWHERE)
        loop.turn(0.0)
        assert (programs, list(control.events()), control.is_in_use) == ([], [], False)
        control.begin_cycle(control.own_endpoint())
        loop.turn(0.0)
        assert (len(programs), list(control.events()), control.is_in_use) == (1, [StoreUsed()], True)
        assert programs[0].where.isdigit()


def test_a_stranger_leaves_the_program_alone_that_asks_the_store_of_another_launcher(
    programs: list[Program],
) -> None:
    with listening() as (loop, control):
        control.begin_cycle()
        own = control.own_endpoint()
        control.begin_cycle(ELSEWHERE)
        control.used_by_a_rank(ELSEWHERE)
        with connect(own):
            loop.turn(0.0)
            assert (len(programs), programs[0].is_closed, list(control.events())) == (1, False, [])


def test_a_store_whose_program_cannot_be_started_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cycle ends, and not the launcher: the next one has another store."""
    monkeypatch.setattr(store_host, "start_guarded", refuse)
    with listening() as (loop, control):
        control.begin_cycle()
        lost = control.endpoint
        with connect(lost):
            loop.turn(0.0)
        (event,) = control.events()
        assert isinstance(event, HostedStoreLost)
        assert (lost in event.reason, "Resource temporarily unavailable" in event.reason) == (True, True)
        assert (control.is_in_use, control.own_endpoint() == lost) == (False, False)


def test_a_launcher_goes_on_that_cannot_ask_the_store_of_another_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(store_host, "start_guarded", refuse)
    with listening() as (_, control):
        control.begin_cycle(ELSEWHERE)
        control.used_by_a_rank(ELSEWHERE)
        assert (list(control.events()), control.is_in_use) == ([], False)
    assert f"the program that asks the store at {ELSEWHERE} cannot be started" in caplog.text
