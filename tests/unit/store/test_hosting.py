"""A control store that this process hosts."""

import os
import resource
from datetime import timedelta

import pytest
import torch.distributed as dist

from nvrx_core.inprocess.store import TCPStore
from nvrx_core.store import serve
from nvrx_core.store.endpoint import StoreConnectionError, listen
from nvrx_core.store.hosting import serve_on


@pytest.fixture(autouse=True)
def same_limit():
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_rank_finds_it_by_its_endpoint_until_it_is_closed(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    with serve() as server:
        monkeypatch.setenv("NVRX_STORE_ENDPOINT", server.endpoint)
        client = TCPStore(timeout=timedelta(seconds=5))
        client.set("key", "value")
        assert client.get("key") == b"value"
        assert client.endpoint == (server.host, server.port)
        assert client.critical_ranks == (), "it is in none of the ranks"
    with pytest.raises(StoreConnectionError, match=server.endpoint):
        TCPStore(timeout=timedelta(milliseconds=50))
    server.close()


def test_its_port_is_free_when_it_is_closed():
    with serve() as first, pytest.raises(StoreConnectionError, match="cannot host"):
        serve(port=first.port)
    with serve(port=first.port) as second:
        assert second.endpoint == first.endpoint


def test_a_port_that_is_taken_leaves_nothing_open():
    with listen("127.0.0.1", 0) as taken:
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(StoreConnectionError):
            serve(port=taken.getsockname()[1])
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_store_that_cannot_be_made_leaves_nothing_open(monkeypatch):
    """As where the process has no descriptors left for the server's event loop; the port is free for the next try."""
    monkeypatch.setattr(dist, "TCPStore", _failing)
    listener = listen("127.0.0.1", 0)
    before, port = len(os.listdir("/proc/self/fd")), listener.getsockname()[1]
    with pytest.raises(dist.DistStoreError):
        serve_on(listener, "127.0.0.1")
    assert len(os.listdir("/proc/self/fd")) == before - 1
    listen("127.0.0.1", port).close()


def test_a_rank_that_cannot_host_it_leaves_nothing_open(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setattr(dist.TCPStore, "__init__", _failing)
    with listen("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(StoreConnectionError, match="Failed to init uv loop"):
        TCPStore("127.0.0.1", port)
    assert len(os.listdir("/proc/self/fd")) == before


def _failing(*arguments, **named):
    raise dist.DistStoreError("Failed to init uv loop")
