"""A rank's connection to a torch TCPStore, in plain Python, so that one process can hold thousands of them.

torch's client blocks its thread until an answer is there. This one sends the same requests, one message each, and its
answers are taken when they are there. To `RoundOperations` it is the store: what that writes is kept in `outbox`, what
it reads is the `answer` that has come before.
"""

from __future__ import annotations

import socket
import struct
from datetime import timedelta

__all__ = ["Wire"]

VALIDATE = struct.pack("=BI", 0, 0x3C85F7CE)
SET, COMPARE_SET, ADD, WAIT, APPEND = (bytes([number]) for number in (1, 2, 4, 6, 9))
SIZE, NUMBER = struct.Struct("=Q"), struct.Struct("=q")
BIGGEST = 1 << 20


def _text(value: str) -> bytes:
    data = value.encode()
    return SIZE.pack(len(data)) + data


def _key(key: str) -> bytes:
    return _text(f"/{key}")


class Wire:
    """A client of the store at `host:port`.

    Args:
        host: of the store.
        port: of the store.
        source: the local address to connect from; each has ports of its own.
    """

    def __init__(self, host: str, port: int, source: str) -> None:
        self._socket = socket.create_connection((host, port), source_address=(source, 0))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.send(VALIDATE)
        self.send, self._recv = self._socket.send, self._socket.recv
        self.outbox: list[bytes] = []
        self.answer = b""

    # Requests, and their answers once they are there

    def ask(self, key: str) -> None:
        """The request of a wait."""
        self.send(WAIT + SIZE.pack(1) + _key(key))

    def take_push(self) -> None:
        """The answer to it."""
        if self._recv(1) != b"\0":
            raise RuntimeError("the store has cancelled a wait")

    def read(self, key: str) -> None:
        """The request of `RoundOperations`'s read."""
        self.exchange(key, "", "")

    def exchange(self, key: str, expected: str, desired: str) -> None:
        """The request that puts one value in the place of another one."""
        self.send(COMPARE_SET + _key(key) + _text(expected) + _text(desired))

    def move_lease(self, key: str, beat: int) -> None:
        """The request of a lease that moves on, from this beat to the next; the value is a lease's in length."""
        before, after = (f"{n}/0/1234567/2/3/4/567890" if n else "" for n in (beat, beat + 1))
        self.exchange(key, before, after)

    def take_value(self) -> None:
        """The answer to it."""
        data = self._recv(BIGGEST)
        missing = 8 + SIZE.unpack_from(data)[0] - len(data)
        while missing:
            data += self._recv(missing)
            missing = 8 + SIZE.unpack_from(data)[0] - len(data)
        self.answer = data[8:]

    def take_count(self) -> int:
        """The answer to an `add`."""
        return int(NUMBER.unpack(self._recv(8))[0])

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def flush(self) -> None:
        """Send what was kept."""
        self.send(b"".join(self.outbox))
        self.outbox.clear()

    # What `RoundOperations` calls

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        """The push was taken before."""

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """The value was taken before."""
        return self.answer

    def set(self, key: str, value: str) -> None:
        """Kept for later."""
        self.outbox.append(SET + _key(key) + _text(value))

    def append(self, key: str, value: str) -> None:
        """Kept for later."""
        self.outbox.append(APPEND + _key(key) + _text(value))

    def has_extended_api(self) -> bool:
        """As torch's client says."""
        return True

    def add(self, key: str, amount: int) -> int:
        """Kept for later; 0 says nothing to the machine, which is told the count when it comes."""
        self.outbox.append(ADD + _key(key) + NUMBER.pack(amount))
        return 0
