"""Malformed messages to a rank monitor's socket: each closes its own connection only."""

from __future__ import annotations

import json
import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nvrx_core.fault_tolerance.wire import MAX_MESSAGE, connect

__all__ = ["ask_launcher", "ask_monitor", "hostile", "inundate", "messages", "send_descriptors"]

QUESTION = json.dumps({"type": "progress"}).encode()


def messages(rng: random.Random) -> Iterator[bytes]:
    """Malformed, truncated, oversized and foreign messages, endlessly."""
    half = [QUESTION[:length] for length in range(1, len(QUESTION))]
    foreign = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x80\x05\x95\x00\x00\x00\x00\x00\x00\x00\x00N.",
        b"\x00\x00\x00\x10" + bytes(16),
        b"[" * 30_000,
        b"1" * 10_000,
        b'{"type": ' * 5_000,
        b'{"type": {"type": "init"}}',
        b'{"type": ["look"]}',
        b'{"type": "shutdown", "version": 1e999}',
        b'{"version": 1}',
        b"null",
        b"NaN",
        b'"init"',
        "{\"type\": \"\ud800\"}".encode(errors="surrogatepass"),
    ]  # fmt: skip
    makers = (
        lambda: rng.randbytes(rng.randrange(1, 300)),
        lambda: rng.choice(half),
        lambda: rng.choice(foreign),
        lambda: _mutated(rng),
        lambda: bytes(MAX_MESSAGE + rng.randrange(1, 5_000)),
        lambda: b"",
    )
    while True:
        yield rng.choices(makers, weights=(30, 20, 20, 20, 2, 8))[0]()


def _mutated(rng: random.Random) -> bytes:
    changed = bytearray(QUESTION)
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return b"!" + bytes(changed)


@contextmanager
def hostile(path: Path) -> Iterator[socket.socket]:
    """A bare socket that is connected to a listener."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
        channel.connect(os.fspath(path))  # waits while the queue is full
        channel.settimeout(10.0)
        yield channel


def inundate(path: Path, number: int, seed: int, every: int, *, ask: Callable[[Path], float] | None = None) -> float:
    """Send malformed messages, each on its own connection; return the longest response time to a valid request,
    seconds.

    Args:
        path: where the monitor listens.
        number: of messages.
        seed: of what is sent.
        every: the number of messages between two valid requests.
        ask: sends a valid request; None: `ask_monitor`.
    """
    source, longest = messages(random.Random(seed)), 0.0
    for turn in range(number):
        message = next(source)
        with hostile(path) as channel, suppress(BrokenPipeError, ConnectionResetError):
            channel.send(message)
            channel.shutdown(socket.SHUT_WR)
            assert channel.recv(1) == b"", f"an answer to {message[:100]!r}"
        if turn % every == 0:
            longest = max(longest, (ask or ask_monitor)(path))
    return longest


def ask_monitor(path: Path) -> float:
    """Send a monitor a valid request; return its response time, seconds."""
    return _ask(path, {"rank", "steps", "heartbeats"})


def ask_launcher(path: Path) -> float:
    """Send a launcher a valid request; return its response time, seconds."""
    return _ask(path, {"type", "ranks"})


def _ask(path: Path, fields: set[str]) -> float:
    begun = time.monotonic()
    with connect(path, within=10.0) as connection:
        connection.send({"type": "progress"})
        assert connection.receive()[0].keys() == fields
    return time.monotonic() - begun


def send_descriptors(path: Path, message: bytes, number: int) -> None:
    """Send a message with file descriptors, which a monitor must ignore."""
    with hostile(path) as channel, open(os.devnull, "rb") as file:
        socket.send_fds(channel, [message], [file.fileno()] * number)
        with suppress(ConnectionResetError):
            channel.recv(1)
