"""Listening on a TCP store's endpoint, and connecting to one, with errors that name host and port.

torch's own timeout does not apply to a server that accepts a connection and never answers. So a connection attempt is
observed, and its socket is shut down when there is no answer in time (`NVRX_STORE_ANSWERS_WITHIN`). A server that does
not listen yet is waited for, up to the store's own timeout.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Final

from nvrx_core.errors import RestartError, first_line
from nvrx_core.parsing import endpoint_text
from nvrx_core.process.descriptors import close_if_left
from nvrx_core.process.helper_thread import HelperThread, HelperThreadError
from nvrx_core.process.sockets import shut_down, socket_inodes, tcp_sockets
from nvrx_core.process.waiting import readable
from nvrx_core.settings.environment import store_answers_within

__all__ = [
    "StoreBrokenError",
    "StoreConnectionError",
    "StoreHostingError",
    "StoreRefusedError",
    "StoreSilentError",
    "answer_deadline",
    "await_listener",
    "handed_over",
    "is_loopback",
    "listen",
    "listener_at",
    "local_address",
    "numeric_address",
]

log = logging.getLogger("nvrx_core.store")
LINE_EVERY: Final = 10.0
MIN_BACKOFF: Final = 0.002
MAX_BACKOFF: Final = 0.25
"""Bounds of the pause between two attempts, in seconds: an eighth of the time waited so far."""
BACKLOG: Final = 4096
_THIS_MACHINE: Final = (
    "; that address is this machine: for a store on another one, name its host in MASTER_ADDR, NVRX_STORE_ENDPOINT or "
    "--rdzv-endpoint"
)


class StoreConnectionError(RestartError):
    """The control store cannot be reached or hosted; the text says where and what to do."""


class StoreHostingError(StoreConnectionError):
    """This process was to host the control store and cannot; one that answers there is another job's."""


class StoreRefusedError(RuntimeError):
    """The store has answered that it does not carry out a request, and repeating it is of no use."""


class StoreSilentError(StoreConnectionError):
    """A server has accepted the connection and does not answer."""


class StoreBrokenError(StoreConnectionError):
    """A connection has failed before the server has answered."""


def await_listener(
    host: str,
    port: int,
    timeout: timedelta,
    *,
    stays: timedelta = timedelta(),
    is_over: Callable[[], bool] = lambda: False,
) -> None:
    """Wait until a process listens on `host:port`.

    Args:
        host: the server's host.
        port: its port.
        timeout: how long to wait.
        stays: for how long a connection must stay open: a process that is ending, and a proxy whose server has ended,
            accept one and close it at once.
        is_over: whether nobody waits for it any more; asked after each try.

    Raises:
        StoreConnectionError: when no process does within `timeout`, or it is over.
    """
    start = time.monotonic()
    deadline, next_line = start + timeout.total_seconds(), start + LINE_EVERY
    where, hint = endpoint_text(host, port), _THIS_MACHINE if host == "localhost" or is_loopback(host) else ""
    while (refused := _refusal(host, port, stays.total_seconds())) is not None:
        now = time.monotonic()
        if now >= deadline or is_over():
            raise StoreConnectionError(
                f"no control store on {where} within {timeout.total_seconds():g} s ({refused}); "
                f"is rank 0, or the process that hosts the store, running and reachable?{hint}"
            )
        if now >= next_line:
            log.warning("waiting for the control store on %s since %.0f s (%s)%s", where, now - start, refused, hint)
            next_line += LINE_EVERY
        pause = min(MAX_BACKOFF, max(MIN_BACKOFF, (now - start) / 8))
        select.select([], [], [], min(pause, deadline - now))


def _refusal(host: str, port: int, stays: float) -> str | None:
    name: Any = host.encode() if host.isascii() else host  # one as text costs the import of the IDNA tables
    try:
        with socket.create_connection((name, port), timeout=5.0) as probe:
            closed = stays > 0 and readable([probe], stays)  # a store says nothing unasked
    except OSError as error:
        return str(error)
    return "it closes a connection at once" if closed else None


@contextmanager
def answer_deadline(host: str, port: int, *, within: float = math.inf) -> Iterator[None]:
    """Return a context in which a connection to `host:port` must be answered in time.

    Connections to the same port that other threads have opened meanwhile break together with it.

    Args:
        host: the server's host.
        port: its port.
        within: seconds, if they are fewer than `NVRX_STORE_ANSWERS_WITHIN`.

    Raises:
        StoreSilentError: when the server has accepted the connection and not answered.
        StoreBrokenError: when the connection has failed otherwise.
        StoreConnectionError: when the thread that observes it has failed.
    """
    failures = list[HelperThreadError]()
    before, done, cut = socket_inodes(), threading.Event(), threading.Event()
    answers_within = min(within, store_answers_within())

    def watch() -> None:
        pause = answers_within
        while not done.wait(pause):
            cut.set()
            for found in tcp_sockets(lambda inode: inode not in before):
                if found.peer_port == port:
                    shut_down(found)
            pause = 0.2

    watcher = HelperThread(watch, name="nvrx-store-answer", failed=failures.append)
    watcher.start()
    try:
        yield
    except RuntimeError as error:
        kind: type[StoreConnectionError] = StoreBrokenError
        what = f"failed: {first_line(error)}"
        if cut.is_set():
            kind, what = StoreSilentError, f"accepted a connection and did not answer within {answers_within:g} s"
        where = endpoint_text(host, port)
        raise kind(f"the control store on {where} {what}; is another service using this port?") from None
    finally:
        done.set()
        watcher.join()
    if failures:
        raise StoreConnectionError(str(failures[0]))


def listen(
    host: str, port: int, *, anywhere: bool = False, name: str = "host", choose: str = "port 0 takes a free one"
) -> socket.socket:
    """Return a listening socket for a store's server, bound to the interface of `host`.

    Args:
        host: an address of this machine, or its name.
        port: the port; 0 takes a free one.
        anywhere: listen on all interfaces if `host` is no address of this machine, as behind address translation.
        name: how the user names the host, for the error.
        choose: how the user chooses another port, for the error.

    Raises:
        StoreHostingError: when the port is in use, or the host is no address of this machine.
    """
    try:
        return listener_at(host, port, anywhere=anywhere)
    except OSError as error:
        reason = f"cannot host the control store on {endpoint_text(host, port)}: {error.strerror}"
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            own = socket.gethostname()
            cure = f"{name} must be an address of this machine ({own}), or 0.0.0.0 for all that it has"
        else:
            cure = f"free the port, or choose another: {choose}"
        raise StoreHostingError(f"{reason}; {cure}") from None


def listener_at(host: str, port: int, *, anywhere: bool = False) -> socket.socket:
    """Return a socket that listens at an address of this machine, of IPv4 or IPv6, or at the address of a name.

    A name may have several addresses. The first that belongs to this machine is taken, those of IPv4 before those of
    IPv6; one that is in use is an error even if another one is free, because a client may try either.

    Args:
        host: the address or the name.
        port: the port; 0 takes a free one.
        anywhere: listen on all interfaces if `host` is no address of this machine.

    Raises:
        OSError: when it cannot listen there.
    """
    foreign = list[tuple[int, OSError]]()
    for family, address in _addresses(host, port, socket.SOCK_STREAM):
        try:
            return _listening(family, address)
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise
            foreign.append((family, error))
    family, first = foreign[0]
    if anywhere and first.errno == errno.EADDRNOTAVAIL:
        return _listening(family, ("::" if family == socket.AF_INET6 else "0.0.0.0", port))
    raise first


def _listening(family: int, address: tuple[Any, ...]) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.settimeout(None)  # torch's server takes it over; `socket.setdefaulttimeout` is not for it
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _addresses(host: str, port: int, kind: socket.SocketKind) -> list[tuple[int, tuple[Any, ...]]]:
    """Return the families and addresses of a host, those of IPv4 first, so that all who ask choose the same family.

    A numeric address is not given to the resolver: a process that is forked while another thread is in it may hang.
    """
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError):
            socket.inet_pton(family, host)
            return [(family, (host, port))]
    name: Any = host.encode() if host.isascii() else host  # one as text costs the import of the IDNA tables
    found = socket.getaddrinfo(name, port, type=kind)
    return sorted(((each[0], each[4]) for each in found), key=lambda each: each[0] != socket.AF_INET)


@contextmanager
def handed_over(listener: socket.socket) -> Iterator[int]:
    """Yield the descriptor of a listening socket, which torch's server takes over; close it if no server is created."""
    inode = os.fstat(listener.fileno()).st_ino
    fd = listener.detach()
    try:
        yield fd
    except BaseException:  # boundary: torch may have closed it, or not
        close_if_left(fd, inode)
        raise


def local_address(host: str, port: int) -> str:
    """Return the address of the interface that reaches `host:port`; the host's name where none does."""
    with suppress(OSError):  # a name that nobody knows: the connection says so
        for family, address in _addresses(host, port, socket.SOCK_DGRAM):
            with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
    return socket.gethostname()


def numeric_address(host: str) -> str:
    """Return the address of this machine that a name stands for, at which it can listen; "" if there is none."""
    with suppress(OSError), listener_at(host, 0) as probe:
        return str(probe.getsockname()[0])
    return ""


def is_loopback(address: str) -> bool:
    """Return whether a numeric address is this machine's own, which no other machine can reach."""
    return address.startswith("127.") or address == "::1"
