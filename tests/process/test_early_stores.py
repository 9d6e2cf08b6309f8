"""A store of before the call: a wait in it is found by what the frames refer to, and its connection is made again."""

import threading
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from nvrx_core.inprocess.groups.blocked_read import BlockedRead, store_in_use
from nvrx_core.process.sockets import describe, put_in_place, shut_down, socket_inodes, tcp_sockets

GLOBAL = SimpleNamespace(store=None)


def server():
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def seen_from(function, store):
    """What is found while a thread is in the function, which waits for the event that it is given."""
    inside, done = threading.Event(), threading.Event()

    def wait():
        inside.set()
        done.wait()

    thread = threading.Thread(target=function, args=(wait,))
    thread.start()
    inside.wait()
    try:
        return store_in_use(thread.ident, store.port)
    finally:
        done.set()
        thread.join()


class Trainer:
    def __init__(self, store):
        self.stores = {"default": [dist.PrefixStore("inner", dist.PrefixStore("outer", store))]}

    def run(self, wait):
        wait()


def in_global(wait):
    assert GLOBAL.store is not None
    wait()


def test_a_store_is_found_in_locals_attributes_and_globals():
    store = server()

    def directly(wait, mine=store):
        wait()

    GLOBAL.store = store
    for function in (directly, Trainer(store).run, in_global):
        assert seen_from(function, store).port == store.port
    GLOBAL.store = None


def test_a_store_elsewhere_is_not_found():
    store = server()
    other = server()

    def function(wait, mine=other):
        wait()

    assert seen_from(function, store) is None
    assert store_in_use(0, store.port) is None, "no such thread"


def test_a_store_in_an_outer_frame_is_found_beside_many_objects():
    store = server()
    held = [[[number, str(number)] for number in range(90)] for _ in range(90)]

    def inner(wait, many):
        wait()
        many.clear()

    def outer(wait, mine=store):
        inner(wait, held)

    assert seen_from(outer, store) is not None


def test_a_search_through_many_objects_ends():
    store = server()

    def function(wait):
        many = [[[number] for number in range(90)] for _ in range(90)]
        wait()
        many.clear()

    assert seen_from(function, store) is None


def connections(store):
    """Those of the clients in this process."""
    return [each for each in tcp_sockets() if each.peer_port == store.port]


def connection_of(store, before):
    (found,) = [each for each in connections(store) if each.inode not in before]
    return found


def cut(store):
    before = socket_inodes()
    client = store.clone()
    found = connection_of(store, before)
    shut_down(found)
    with pytest.raises(dist.DistError):
        client.set("key", "lost")
    return client, found


def restored(client, found):
    blocked = BlockedRead()
    blocked._cut.append((found, client))
    blocked.restore()
    return blocked


def test_a_store_whose_connection_was_cut_serves_again_and_no_descriptor_is_left():
    store = server()
    client, found = cut(store)
    restored(client, found)
    client.set("key", "value")
    assert store.get("key") == client.get("key") == b"value"
    assert len(connections(store)) == 2, "the server's own, and the client's"


def test_a_store_that_has_lost_its_server_is_reported(caplog):
    store = server()
    client, found = cut(store)
    port = store.port
    del store
    restored(client, found)
    (line,) = caplog.messages
    assert line.startswith(f"the store on 127.0.0.1:{port}, made before the call, does not answer")


def test_a_descriptor_that_was_closed_meanwhile_is_left_alone():
    store = server()
    before = socket_inodes()
    client = store.clone()
    found = connection_of(store, before)
    del client
    assert describe(found.fd, found.inode) is None
    assert put_in_place(connections(store)[0], found) is False
