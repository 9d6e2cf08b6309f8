"""A rendezvous store that is none of the launchers', and stands still: it accepts connections and answers nothing."""

from __future__ import annotations

import functools
import itertools
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import pytest
from nvrx_launcher.rendezvous.store_threads import Link
from nvrx_launcher.rendezvous.tcp_store import TcpRendezvous
from nvrx_launcher.rendezvous_settings import RendezvousSettings

from nvrx_core.parsing import parse_endpoint
from nvrx_core.store.connection import StoreConnection
from nvrx_core.store.endpoint import StoreConnectionError
from tests.harness.process.host import stop
from tests.harness.process.launch import Start, assert_go_on, rendezvous_options

ANSWERS_WITHIN = "NVRX_STORE_ANSWERS_WITHIN"
REQUESTS: list[Callable[[StoreConnection], object]] = [
    lambda store: store.add("count", 1),
    lambda store: store.check(["count"]),
    lambda store: store.wait(["missing"], timedelta(seconds=0.1)),
    lambda store: store.compare_set("key", "", "value"),
]


class Store:
    """A store in a process of its own."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "nvrx_core.store", "--host", "127.0.0.1"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.endpoint = self._process.stdout.readline().strip()

    def stop(self) -> None:
        stop(self._process.pid)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self._process.kill()
        with self._process:
            pass


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setenv(ANSWERS_WITHIN, "1")
    store = Store()
    yield store
    store.close()


def connect(store: Store, join_timeout: float) -> tuple[TcpRendezvous, Link]:
    settings = RendezvousSettings(read_timeout=1.0, join_timeout=join_timeout, is_host=False)
    rendezvous = TcpRendezvous(parse_endpoint(store.endpoint), settings)
    return rendezvous, rendezvous.connect()


def result_of(call: Callable[[], object]) -> SimpleQueue[Any]:
    """Make a call in another thread; what it returns, or raises, comes once it has."""
    found = SimpleQueue[Any]()

    def make() -> None:
        try:
            found.put(call())
        except Exception as error:  # boundary: the test looks at it
            found.put(error)

    threading.Thread(target=make, daemon=True).start()
    return found


def test_each_request_to_a_store_that_does_not_answer_fails_in_time(store: Store) -> None:
    rendezvous, link = connect(store, 1.0)
    links = [link, *(rendezvous.connect() for _ in REQUESTS[1:])]
    store.stop()
    asked = [result_of(functools.partial(each, request)) for each, request in zip(links, REQUESTS, strict=True)]
    ends = [each.get(timeout=30.0) for each in asked]
    assert all(isinstance(each, StoreConnectionError) for each in ends), ends
    assert {*map(str, ends)} == {f"no way to {store.endpoint} for 1 s: it accepts connections, and answers none"}


def test_threads_that_ask_it_have_an_answer_each_when_it_goes_on(store: Store) -> None:
    """They open connections beside each other, of which none is answered at first."""
    rendezvous, link = connect(store, 20.0)
    links = [link, *(rendezvous.connect() for _ in range(3))]
    store.stop()
    asked = []
    for each in links:
        asked.append(result_of(functools.partial(each, REQUESTS[0])))
        time.sleep(0.4)
    time.sleep(3.0)
    store.go_on()
    ends = [each.get(timeout=30.0) for each in asked]
    assert all(isinstance(each, int) for each in ends), ends


def test_a_link_that_is_cut_meanwhile_ends(store: Store) -> None:
    link = connect(store, 60.0)[1]
    store.stop()
    asked = result_of(functools.partial(link, REQUESTS[0]))
    time.sleep(2.5)  # the request has failed, and another connection is tried
    link.cut()
    assert isinstance(asked.get(timeout=30.0), StoreConnectionError)


def test_a_further_connection_is_opened_as_soon_as_it_answers(store: Store) -> None:
    rendezvous, _ = connect(store, 20.0)
    store.stop()
    threading.Timer(3.0, store.go_on).start()
    link = result_of(rendezvous.connect).get(timeout=30.0)
    assert isinstance(link, Link), link
    assert link(lambda store: store.add("count", 1)) == 1


def test_a_store_that_stands_still_ends_the_job(launcher: Start, store: Store) -> None:
    conf = ("--rdzv-conf", "read_timeout=1,join_timeout=3")
    jobs = [launcher("waits", *rendezvous_options(store.endpoint), "--nnodes", "2", *conf) for _ in range(2)]
    for job in jobs:
        job.read(2, "start")
    store.stop()
    ends = [job.finish() for job in jobs]
    assert [code for code, _ in ends] == [75, 75], ends
    line = f"the rendezvous store is lost: no way to {store.endpoint} for 3 s: it accepts connections, and answers none"
    assert all(f"the job ends with code 75: {line}" in log for _, log in ends), ends


def test_a_store_that_stands_still_for_less_costs_a_cycle(launcher: Start, store: Store) -> None:
    """Each launcher kills its workers, and joins again when it answers."""
    conf = ("--rdzv-conf", "read_timeout=1,join_timeout=60")
    jobs = [launcher("gated", *rendezvous_options(store.endpoint), "--nnodes", "2", *conf) for _ in range(2)]
    for job in jobs:
        job.read(2, "start")
    store.stop()
    for job in jobs:
        job.await_log(f"the rendezvous at {store.endpoint} does not answer (it accepts connections, and answers none)")
    time.sleep(3.0)
    store.go_on()
    for job in jobs:
        job.read(2, "start", cycle=1)
    assert_go_on(jobs, {0, 1})
    for job in jobs:  # not once for each connection
        left = [int(each) for each in re.findall(r"it is tried for another (\d+) s", job.log)]
        assert all(before - after >= 9 for before, after in itertools.pairwise(left)), job.log
    assert all("answers again" in job.log for job in jobs)
