"""How a launcher gives lines to its node's process: frames in a stream, each with the file and whole lines. Pure."""

from __future__ import annotations

import struct
from typing import Final

__all__ = ["MAX_DATA", "Frames", "frame"]

HEADER: Final = struct.Struct("!HI")
MAX_PATH: Final = 4096
MAX_DATA: Final = 1 << 20
"""Bytes of lines in a frame."""


def frame(path: str, data: bytes) -> bytes:
    """Return lines for a file as a frame; a part of `MAX_DATA` bytes is one of its own."""
    name = path.encode()
    parts = [data] if len(data) <= MAX_DATA else [data[at : at + MAX_DATA] for at in range(0, len(data), MAX_DATA)]
    return b"".join(HEADER.pack(len(name), len(part)) + name + part for part in parts)


class Frames:
    """Splits a stream into frames."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[tuple[str, bytes]]:
        """Take a part of the stream; return the frames that are complete.

        Raises:
            ValueError: when it is no stream of frames.
        """
        found, at, data = list[tuple[str, bytes]](), 0, self._rest + data
        while len(data) - at >= HEADER.size:
            name, size = HEADER.unpack_from(data, at)
            if name > MAX_PATH or size > MAX_DATA:
                raise ValueError(f"a frame of {name} and {size} bytes")
            begin = at + HEADER.size
            if len(data) < begin + name + size:
                break
            found.append((data[begin : begin + name].decode(), data[begin + name : begin + name + size]))
            at = begin + name + size
        self._rest = data[at:]
        return found
