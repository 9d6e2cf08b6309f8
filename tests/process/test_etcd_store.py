"""`EtcdStore` itself, against a real etcd: torch's meanings, lost answers, lost members, waits that end."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from nvrx_core.inprocess.store import StoreConnectionError
from nvrx_core.store.etcd_client import Endpoint, EtcdLost, EtcdRefused
from nvrx_core.store.etcd_store import LEASE, EtcdStore
from tests.harness.process.etcd import Etcd, etcd_in
from tests.harness.process.host import stop

SOON = timedelta(milliseconds=50)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with etcd_in(tmp_path_factory.mktemp("etcd")) as etcd:
        yield etcd


@pytest.fixture
def store(running: Etcd, request: pytest.FixtureRequest) -> Iterator[EtcdStore]:
    store = EtcdStore(running.endpoint, prefix=f"{request.node.name}/", lost_after=timedelta(seconds=3))
    try:
        yield store
    finally:
        store.cut()


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[Any]]:
    """The work under way, and what will come of it: its end and its moment."""
    ends: list[Any] = []

    def run() -> None:
        try:
            ends.append(work())
        except Exception as error:  # boundary: the test looks at it
            ends.append(error)
        ends.append(time.monotonic())

    thread = threading.Thread(target=run)
    thread.start()
    return thread, ends


class Twice:
    """A client all of whose requests are carried out twice, as when the first answers are lost."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.client.call(path, body)
        answer: dict[str, Any] = self.client.call(path, body)
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)


@pytest.mark.parametrize("lost_answers", [False, True], ids=["answered", "answers lost"])
def test_each_operation_means_what_it_means_for_torch(store: EtcdStore, lost_answers: bool) -> None:
    hashed = dist.HashStore()
    if lost_answers:
        store._etcd = Twice(store._etcd)  # type: ignore[assignment]
    for each in (store, hashed):
        each.set("a", "1")
        each.set("empty", "")
        assert [each.add("n", 1), each.add("n", 1), each.add("n", 5), each.add("n", 1), each.add("m", -2)] == [
            1,
            2,
            7,
            8,
            -2,
        ]
        assert (each.get("a"), each.get("n"), each.get("empty")) == (b"1", b"8", b"")
        assert each.multi_get(["a", "m"]) == [b"1", b"-2"]
        assert (each.check(["a", "n"]), each.check(["a", "none"])) == (True, False)
        assert [each.compare_set("c", *change) for change in (("", "x"), ("", "y"), ("x", "z"), ("q", "w"))] == [
            b"x", b"x", b"z", b"z",
        ]  # fmt: skip
        assert each.compare_set("none", "before", "after") == b"before"
        assert each.num_keys() == 5
        assert each.delete_key("a") is not lost_answers or each is hashed
        assert not each.delete_key("none")
        assert not each.check(["a"])
        with pytest.raises(dist.DistStoreError):
            each.wait(["a"], SOON)


def test_a_counter_is_an_ordinary_value_to_the_rest(store: EtcdStore) -> None:
    assert [store.add("n", 1), store.add("n", 1)] == [1, 2]
    assert store.compare_set("n", "3", "9") == b"2"
    assert store.compare_set("n", "2", "9") == b"9"
    assert store.add("n", 1) == 10


def test_torchs_prefix_store_works_over_it(store: EtcdStore) -> None:
    prefixed = dist.PrefixStore("in front", store)
    prefixed.set("a", "1")
    assert (prefixed.add("n", 1), prefixed.compare_set("c", "", "x"), prefixed.get("a")) == (1, b"x", b"1")
    assert (prefixed.multi_get(["a", "n"]), prefixed.check(["a"]), prefixed.num_keys()) == ([b"1", b"1"], True, 3)
    assert prefixed.delete_key("a")
    assert not store.check(["in front/a"])


def test_ranks_that_count_at_once_get_each_number_once(store: EtcdStore) -> None:
    clients = [store.clone() for _ in range(8)]
    counts = [in_thread(lambda client=client: [client.add("n", 1) for _ in range(25)]) for client in clients]
    for thread, _ in counts:
        thread.join()
    assert sorted(number for _, ends in counts for number in ends[0]) == list(range(1, 201))
    for client in clients:
        client.cut()


def test_a_wait_is_pushed_and_outlasts_a_restart(tmp_path: Path) -> None:
    with etcd_in(tmp_path) as etcd:
        store = EtcdStore(etcd.endpoint)
        other = store.clone()
        waiting, ends = in_thread(lambda: other.get("pushed"))
        time.sleep(0.2)
        etcd.kill()
        etcd.start()
        store.set("pushed", b"\0\1")
        waiting.join()
        assert ends[0] == b"\0\1"
        waiting, ends = in_thread(lambda: other.wait(["one", "two"]))
        time.sleep(0.2)
        store.multi_set(["two", "one"], ["", ""])
        written = time.monotonic()
        waiting.join()
        assert ends[1] - written < 5.0
        for each in (store, other):
            each.cut()


def test_a_wait_ends_when_its_connection_is_cut(store: EtcdStore) -> None:
    waiting, ends = in_thread(lambda: store.wait(["never"], timedelta(days=365)))
    time.sleep(0.2)
    cut = time.monotonic()
    store.cut()
    waiting.join()
    assert isinstance(ends[0], EtcdLost)
    assert ends[1] - cut < 5.0


def test_an_etcd_member_that_is_lost_or_unresponsive_is_skipped(running: Etcd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        gone = socket.socket()
        gone.bind(("127.0.0.1", 0))
        endpoints = [f"127.0.0.1:{each.getsockname()[1]}" for each in (gone, silent)]
        store = EtcdStore([*endpoints, f"http://{running.endpoint}"], prefix="passed over/")
        store.set("a", "1")
        assert store.get("a") == b"1"
        store.cut()
        gone.close()


def test_a_stopped_etcd_blocks_a_client_for_a_bounded_time(running: Etcd, store: EtcdStore) -> None:
    assert running.pid is not None
    stop(running.pid)
    started = time.monotonic()
    try:
        with pytest.raises(EtcdLost, match="no answer from etcd"):
            store.set("a", "1")
    finally:
        os.kill(running.pid, signal.SIGCONT)
    assert time.monotonic() - started < 6.0


def test_all_keys_hang_on_one_lease_and_can_be_forgotten(running: Etcd, store: EtcdStore) -> None:
    other = EtcdStore(running.endpoint, prefix=store.prefix)
    store.set("call/a", "1")
    other.add("call/n", 1)
    store.set("other", "1")
    answer = store._etcd.call("/lease/timetolive", {"ID": store._keys.lease, "keys": True})
    assert (int(answer["grantedTTL"]), len(answer["keys"])) == (LEASE, 4)
    store._etcd.call("/lease/revoke", {"ID": store._keys.lease})
    assert store.num_keys() == 0
    store.set("call/a", "1")
    assert [other.add("call/n", 1), other.add("call/n", 1)] == [1, 2]
    store.set("other", "1")
    assert store.forget("call/")
    assert store.num_keys() == 1
    other.cut()


def test_a_prefix_is_forgotten_except_some_keys(store: EtcdStore) -> None:
    client, stay = store.clone(), ["call/-1/event", "call/0/event", "call/10"]
    store.multi_set([*stay, "call/0/decision", "call/1", "call/0/event/x", "other"], [""] * 7)
    client.add("call/0/arrived", 1)
    assert len(store.list_keys()) == store.num_keys() == 8
    assert store.forget_except("call/", [*stay, "elsewhere"])
    assert sorted(store.list_keys()) == sorted([*stay, "other"])
    everything = {"key": "AA==", "range_end": "AA==", "keys_only": True}
    found = [b64decode(each["key"]).decode() for each in store._etcd.call("/kv/range", everything)["kvs"]]
    assert [name for name in found if name.startswith(store.prefix) and "client" in name] == []
    client.cut()


def test_many_keys_are_listed_in_parts(store: EtcdStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nvrx_core.store.leased_keys.LISTED", 2)
    store.multi_set(list("abcde"), [""] * 5)
    assert store.list_keys() == list("abcde")


def test_clients_that_count_leave_nothing_when_their_rounds_are_forgotten(store: EtcdStore) -> None:
    everything = {"key": "AA==", "range_end": "AA==", "count_only": True}

    def keys() -> int:
        return int(store._etcd.call("/kv/range", everything).get("count", 0))

    before, found = keys(), []
    for number in range(12):
        clients = [store.clone() for _ in range(3)]
        assert [client.add("call/claims", 1) for client in clients][-1] == 3 * (number + 1)
        assert [client.add(f"call/{number}/arrived", 1) for client in clients] == [1, 2, 3]
        assert store.num_keys() == 2
        store.forget(f"call/{number}/")
        found.append(keys())
        for client in clients:
            client.cut()
    assert found == [before + 1] * 12
    store.forget("call/")
    assert keys() == before


def test_what_is_no_etcd_is_named(running: Etcd) -> None:
    with pytest.raises(
        StoreConnectionError, match=r"no answer from etcd at 127\.0\.0\.1:1 within .* Connection refused"
    ):
        EtcdStore(port=1, timeout=timedelta(seconds=0.3))
    with pytest.raises(ValueError, match="'http://' is not host, host:port or"):
        EtcdStore("http://")
    with pytest.raises(TypeError, match="unknown argument ca_certificate"):
        EtcdStore(running.endpoint, ca_certificate="x")
    store = EtcdStore(running.endpoint)
    with pytest.raises(EtcdRefused, match="key is not provided"):
        store._etcd.call("/kv/range", {})
    store.cut()


@pytest.mark.parametrize("size", [1_600_000, 3_000_000])
def test_a_value_that_is_too_large_is_refused_at_once(running: Etcd, size: int) -> None:
    store = EtcdStore(running.endpoint)
    begun = time.monotonic()
    with pytest.raises(EtcdRefused, match=r"request is too large|larger than max"):
        store.set("large", "x" * size)
    assert time.monotonic() - begun < 5.0
    store.cut()


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("a", Endpoint("a")),
        ("a:1", Endpoint("a", 1)),
        ("https://a.b:1/", Endpoint("a.b", 1, "https")),
        ("[::1]:1", Endpoint("::1", 1)),
        ("::1", Endpoint("::1")),
        ("http://[::1]:1/", Endpoint("::1", 1)),
    ],
)
def test_an_endpoint_is_read_from_its_text(text: str, endpoint: Endpoint) -> None:
    assert Endpoint.parse(text) == endpoint
    assert Endpoint.parse(str(endpoint)) == endpoint
