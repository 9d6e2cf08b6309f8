"""How the end of a thread that waits for the rendezvous store is reported."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from nvrx_launcher.rendezvous import store_threads
from nvrx_launcher.rendezvous.store_threads import KEYS_GONE, Follower, Link, Requests

from nvrx_core.store.endpoint import StoreConnectionError, StoreRefusedError


def fail(error: BaseException) -> Link:
    def make(_: object) -> object:
        raise error

    return make  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (StoreConnectionError("nobody listens at a:1 any more"), "is lost: nobody listens at a:1 any more"),
        (dist.DistStoreError("wait timeout after 30 s"), f"is lost: {KEYS_GONE}"),
        (OSError(), "is lost: OSError"),
        (StoreRefusedError("etcdserver: request is too large"), "refuses a request: etcdserver: request is too large"),
        (ValueError("not JSON: ''"), "the thread nvrx-node has failed: ValueError: not JSON: ''"),
    ],
)
def test_requests_end_with_one_line(error: BaseException, line: str) -> None:
    lines = SimpleQueue[str]()
    requests = Requests(fail(error), bool, 1.0, name="nvrx-node", failed=lines.put)
    requests.start()
    assert lines.get(timeout=20).endswith(line)
    requests.finish(20)


class Clock:
    """Virtual time, which passes in pauses, and a second in each attempt to connect."""

    def __init__(self, link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.pauses, self.deadlines = 0.0, list[float](), list[float]()
        monkeypatch.setattr(store_threads, "time", SimpleNamespace(monotonic=lambda: self.now))
        link._cut = SimpleNamespace(wait=self.wait, is_set=lambda: False)  # type: ignore[assignment]
        link._again = self.again

    def wait(self, seconds: float) -> bool:
        self.pauses.append(seconds)
        self.now += seconds
        return False

    def again(self, deadline: float, _: object) -> Any:
        self.deadlines.append(deadline)
        self.now += 1.0
        return "a connection"


def broken(error: Exception, times: int = 1_000_000) -> Callable[[object], str]:
    failures = iter([error] * times)

    def request(_: object) -> str:
        for failure in failures:
            raise failure
        return "an answer"

    return request


def test_a_request_whose_connections_break_is_repeated_after_longer_and_longer_pauses_until_one_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link = Link("a connection", print, 60.0)  # type: ignore[arg-type]
    clock = Clock(link, monkeypatch)
    with pytest.raises(ConnectionResetError):
        link(broken(ConnectionResetError()))
    assert clock.pauses[:9] == [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert set(clock.deadlines) == {60.0}
    assert 60.0 <= clock.now < 67.0
    assert link(broken(ConnectionResetError(), 2)) == "an answer"
    assert clock.deadlines[-1] > 120.0


def test_a_request_that_the_store_refuses_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    link = Link("a connection", print, 60.0)  # type: ignore[arg-type]
    clock = Clock(link, monkeypatch)
    with pytest.raises(StoreRefusedError):
        link(broken(StoreRefusedError("too large")))
    assert (clock.pauses, clock.deadlines) == ([], [])


@pytest.mark.parametrize("cuts", [[True], [False, True]])
def test_a_link_that_is_cut_is_not_opened_again(cuts: list[bool]) -> None:
    link = Link("a connection", lambda *_: opened.append("again") or "a connection", 60.0)  # type: ignore[arg-type, func-returns-value, return-value]
    opened, seen = list[str](), iter(cuts)
    link._cut = SimpleNamespace(wait=lambda _: next(seen), is_set=lambda: next(seen))  # type: ignore[assignment]
    with pytest.raises(ConnectionResetError):
        link(broken(ConnectionResetError()))
    assert len(opened) == len(cuts) - 1


def test_a_follower_that_is_stopped_says_nothing() -> None:
    lines = list[str]()
    follower = Follower(fail(OSError()), str, name="nvrx-inbox", found=print, failed=lines.append)
    follower.stop()
    follower.start()
    follower._thread.join(20)
    assert lines == []
