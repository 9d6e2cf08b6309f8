"""What a node keeps until the log server has written it. Pure.

Lines are joined into chunks, and chunks into a batch; one batch is on its way at a time. It is removed when the server
has answered, and sent again under the same numbers when the call breaks. When the buffer is full, the oldest chunk that
is not on its way is dropped, because the last lines say why a rank has failed; the next chunk of its file says how much
is missing.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Final

from nvrx_core.backoff import Backoff
from nvrx_core.logs.chunks import Chunk

__all__ = ["LIMIT", "LostLines", "NodeBuffer"]

LIMIT: Final = 64 << 20
"""Bytes that a node keeps."""
CHUNK: Final = 256 << 10
"""Bytes after which a chunk is not extended."""
BATCH: Final = 4 << 20
"""Bytes of a batch."""
LINGERS: Final = 0.3
"""Seconds that lines wait for others to be sent with."""
PAUSES: Final = Backoff(0.1, 2.0)
"""Between two attempts; an eighth more or less by the node."""


@dataclass
class LostLines:
    """Lines that were dropped."""

    bytes: int = 0
    lines: int = 0

    def add(self, count: int, lines: int) -> None:
        """Add bytes and lines."""
        self.bytes += count
        self.lines += lines


@dataclass
class _Waiting:
    """A chunk that waits: its parts, and its number once it has been sent."""

    path: str
    parts: list[bytes] = field(default_factory=list)
    size: int = 0
    sent: Chunk | None = None


class NodeBuffer:
    """The lines of a node on their way to the log server.

    Args:
        node: the node's name.
        session: identifies this process.
        limit: bytes that are kept.
        spread: from 0 to 1, differs between nodes: they do not all try again at the same time.

    Attributes:
        lost: what was dropped, in all.
        size: bytes that are kept.
        retries: failed attempts in a row.
        is_done: the server has everything, and knows that it is all.
    """

    def __init__(self, node: str, session: str, *, limit: int = LIMIT, spread: float = 0.0) -> None:
        self._node, self._session, self._limit, self._spread = node, session, limit, spread
        self._chunks, self._sequence, self.size = deque[_Waiting](), 0, 0
        self._in_flight, self._due_at, self._is_ending = 0, math.inf, False
        self._path, self._unsaid, self.lost, self.retries = "", dict[str, LostLines](), LostLines(), 0
        self.is_done = False
        self._not_before, self._stops_at = -math.inf, math.inf

    def put(self, path: str, data: bytes, *, now: float) -> None:
        """Keep whole lines for a file; the oldest ones are dropped if there is no room."""
        while self.size + len(data) > self._limit and len(self._chunks) > self._in_flight:
            self._drop(self._in_flight)
        if self.size + len(data) > self._limit:
            self._lose(path, LostLines(len(data), data.count(b"\n")))
            return
        last = self._chunks[-1] if len(self._chunks) > self._in_flight else None
        if last is None or last.sent or last.path != path or last.size + len(data) > CHUNK:
            last = _Waiting(path)
            self._chunks.append(last)
        last.parts.append(data)
        last.size += len(data)
        self.size += len(data)
        self._path = path
        self._due_at = min(self._due_at, now + LINGERS)

    def end(self, *, now: float, within: float) -> None:
        """Nothing more is put: send what is left, without waiting for more, for `within` seconds."""
        self._is_ending, self._stops_at = True, now + within

    def is_over(self, *, now: float) -> bool:
        """Whether nothing more is to be done after `end`: everything is sent, or the time is up."""
        return self.is_done or now >= self._stops_at

    @property
    def deadline(self) -> float:
        """When `take` or `is_over` is due, monotonic seconds."""
        return min(math.inf if self._in_flight else max(self._due(), self._not_before), self._stops_at)

    def take(self, *, now: float) -> tuple[Chunk, ...]:
        """Return the batch that is to be sent now; empty: none."""
        if self._in_flight or now < max(self._due(), self._not_before):
            return ()
        batch, size = list[Chunk](), 0
        for waiting in self._chunks:
            size += waiting.size
            if batch and size > BATCH:
                break
            batch.append(waiting.sent or self._number(waiting))
        if self._is_ending and len(batch) == len(self._chunks) and not (batch and batch[-1].is_last):
            batch += self._finish()
        self._in_flight = len(batch)
        return tuple(batch)

    def written(self, *, now: float) -> None:
        """Record that the server has written the batch."""
        for _ in range(self._in_flight):
            removed = self._chunks.popleft()
            self.size -= removed.size
            if removed.sent is not None and removed.sent.is_last:
                self.is_done = True
        self._in_flight, self.retries, self._not_before = 0, 0, -math.inf
        self._due_at = now + LINGERS if self._chunks else math.inf

    def failed(self, *, now: float) -> None:
        """Record that the call is broken: the batch may be written or not, and is sent again later."""
        self._in_flight = 0
        self.retries += 1
        self._not_before = now + PAUSES.pause(self.retries) * (0.875 + self._spread / 4)

    def give_up(self) -> LostLines:
        """Return what the server may not have, after `is_over`; it is dropped."""
        self._in_flight = 0
        while self._chunks:
            self._drop(0)
        return self.lost

    def _due(self) -> float:
        if not self._chunks:
            return -math.inf if self._is_ending and not self.is_done else math.inf
        return -math.inf if self._is_ending or self.size >= BATCH else self._due_at

    def _number(self, waiting: _Waiting) -> Chunk:
        self._sequence += 1
        lost = self._unsaid.pop(waiting.path, LostLines())
        waiting.sent = Chunk(
            self._node, waiting.path, b"".join(waiting.parts), self._session, self._sequence, lost.bytes, lost.lines
        )
        waiting.parts.clear()
        return waiting.sent

    def _finish(self) -> list[Chunk]:
        """Return empty chunks that say what is missing at the end of files; the last one, that this was all."""
        sent = list[Chunk]()
        for path in [*(each for each in self._unsaid if each != self._path), self._path]:
            self._chunks.append(waiting := _Waiting(path))
            sent.append(self._number(waiting))
        self._chunks[-1].sent = sent[-1] = replace(sent[-1], is_last=True)
        return sent

    def _drop(self, number: int) -> None:
        waiting = self._chunks[number]
        del self._chunks[number]
        self.size -= waiting.size
        data = [waiting.sent.data] if waiting.sent else waiting.parts
        self._lose(waiting.path, LostLines(waiting.size, sum(each.count(b"\n") for each in data)))
        if waiting.sent is not None and waiting.sent.lost_bytes:  # what it would have said
            self._unsaid[waiting.path].add(waiting.sent.lost_bytes, waiting.sent.lost_lines)

    def _lose(self, path: str, loss: LostLines) -> None:
        self._unsaid.setdefault(path, LostLines()).add(loss.bytes, loss.lines)
        self.lost.add(loss.bytes, loss.lines)
