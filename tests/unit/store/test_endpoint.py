"""Listening at an address of either family, and at a name that has several; waiting for one who listens."""

import errno
import os
import socket
import threading
from contextlib import suppress
from datetime import timedelta

import pytest

from nvrx_core.store import endpoint
from nvrx_core.store.endpoint import (
    StoreConnectionError,
    StoreHostingError,
    await_listener,
    is_loopback,
    listen,
    listener_at,
    local_address,
    numeric_address,
)

FOREIGN, FOREIGN_6 = "192.0.2.1", "2001:db8::1"
"""Addresses of documents, which no machine has."""


def resolved(monkeypatch, *addresses):
    """Let every name have these addresses, in this order."""

    def getaddrinfo(host, port, *, type):
        families = (socket.AF_INET6 if ":" in each else socket.AF_INET for each in addresses)
        return [(family, type, 0, "", (each, port)) for family, each in zip(families, addresses, strict=True)]

    monkeypatch.setattr(endpoint.socket, "getaddrinfo", getaddrinfo)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_it_listens_at_an_address_of_either_family(address):
    with listener_at(address, 0) as listener:
        assert listener.getsockname()[0] == address
        assert listener.gettimeout() is None
        assert local_address(address, listener.getsockname()[1]) == address
        assert is_loopback(address)


def test_of_a_names_addresses_the_first_of_this_machine_is_taken_and_ipv4_before_ipv6(monkeypatch):
    resolved(monkeypatch, "::1", "127.0.0.1")
    with listener_at("name", 0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
    assert local_address("name", 1) == "127.0.0.1"
    resolved(monkeypatch, "::1", FOREIGN)
    with listener_at("name", 0) as listener:
        assert listener.getsockname()[0] == "::1"


def test_an_address_in_use_is_an_error_although_another_one_is_free(monkeypatch):
    with listener_at("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        resolved(monkeypatch, "::1", "127.0.0.1")
        with pytest.raises(OSError, match=os.strerror(errno.EADDRINUSE)):
            listener_at("name", port)


@pytest.mark.parametrize(("address", "anywhere"), [(FOREIGN, "0.0.0.0"), (FOREIGN_6, "::")])
def test_behind_address_translation_it_listens_on_all_interfaces_of_the_family(address, anywhere):
    with listener_at(address, 0, anywhere=True) as listener:
        assert listener.getsockname()[0] == anywhere
    with pytest.raises(StoreHostingError, match="must be an address of this machine"):
        listen(address, 0)
    assert not is_loopback(address)


def test_a_machine_without_ipv6_says_so(monkeypatch):
    def no_socket(*_):
        raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")

    monkeypatch.setattr(endpoint, "_listening", no_socket)
    with pytest.raises(StoreHostingError, match=r"on \[::1\]:1: Address family not supported"):
        listen("::1", 1, anywhere=True)


def test_a_name_is_resolved_to_an_address_at_which_this_machine_can_listen(monkeypatch):
    assert numeric_address("::1") == "::1"
    resolved(monkeypatch, FOREIGN, "127.0.0.1")
    assert numeric_address("name") == "127.0.0.1"
    resolved(monkeypatch, FOREIGN)
    assert numeric_address("name") == ""


def test_a_process_that_accepts_and_closes_at_once_is_no_listener():
    with socket.create_server(("127.0.0.1", 0)) as ending:
        ended = threading.Event()

        def accept():
            ending.settimeout(0.05)
            while not ended.is_set():
                with suppress(TimeoutError):
                    ending.accept()[0].close()

        ends = threading.Thread(target=accept)
        ends.start()
        port = ending.getsockname()[1]
        try:
            await_listener("127.0.0.1", port, timedelta())
            with pytest.raises(StoreConnectionError, match="closes a connection at once"):
                await_listener("127.0.0.1", port, timedelta(seconds=0.1), stays=timedelta(seconds=20))
        finally:
            ended.set()
            ends.join()


def test_a_process_that_keeps_a_connection_open_is_a_listener():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        await_listener("127.0.0.1", listener.getsockname()[1], timedelta(), stays=timedelta(seconds=0.05))
