"""What a log server appends: each numbered chunk once; and when it may end. Pure.

The numbers of a session only grow. One that is not above the last was received before: its call broke, and the node
sends it again. A gap is what the node has dropped, which its next chunk says.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from nvrx_core.logs.chunks import Chunk

__all__ = ["Reception"]

MAX_SESSIONS: Final = 1 << 16
"""Sessions that are remembered; the one that was silent for longest is forgotten first."""
QUIET: Final = 5.0
"""Seconds without a chunk after which an ending server waits for no session any more."""
CONNECTED: Final = 60.0
"""Seconds for which a session counts as connected after its last chunk."""


@dataclass
class _Session:
    last: int
    heard_at: float


class Reception:
    """The sessions of all nodes.

    Args:
        nodes: how many nodes there are; an ending server waits for them.

    Attributes:
        duplicates: chunks that were received again.
        lost_bytes, lost_lines: what nodes have dropped.
    """

    def __init__(self, nodes: int = 0) -> None:
        self._sessions, self._nodes, self._ended = OrderedDict[tuple[str, str], _Session](), nodes, 0
        self._heard_at, self._stops_at, self._is_ending = -math.inf, math.inf, False
        self.duplicates = self.lost_bytes = self.lost_lines = 0

    def accept(self, chunk: Chunk, *, now: float) -> bytes:
        """Return what is to be appended to the file; b"" if nothing is."""
        self._heard_at = now
        if not chunk.sequence:
            return chunk.data
        key = (chunk.node, chunk.session)
        session = self._sessions.get(key)
        if session is None:
            session = self._sessions[key] = _Session(0, now)
            if len(self._sessions) > MAX_SESSIONS:
                self._sessions.popitem(last=False)
        self._sessions.move_to_end(key)
        session.heard_at = now
        if chunk.sequence <= session.last:
            self.duplicates += 1
            return b""
        session.last = chunk.sequence
        if chunk.is_last:
            del self._sessions[key]
            self._ended += 1
        if not chunk.lost_bytes:
            return chunk.data
        self.lost_bytes += chunk.lost_bytes
        self.lost_lines += chunk.lost_lines
        return _notice(chunk) + chunk.data

    def connected(self, *, now: float) -> int:
        """Return how many sessions have sent something lately and not ended."""
        return sum(now - session.heard_at < CONNECTED for session in self._sessions.values())

    def end(self, *, now: float, within: float) -> None:
        """Wait for the nodes that have not ended, for `within` seconds at most."""
        self._is_ending, self._stops_at, self._heard_at = True, now + within, now

    @property
    def deadline(self) -> float:
        """When an ending server is over at the latest, monotonic seconds."""
        return min(self._stops_at, self._heard_at + QUIET) if self._is_ending else math.inf

    def is_over(self, *, now: float) -> bool:
        """Whether an ending server waits for nothing any more."""
        has_all = not self._sessions and self._ended >= self._nodes
        return self._is_ending and (has_all or now >= self.deadline)


def _notice(chunk: Chunk) -> bytes:
    """Return the line for what is missing: at most so much, for a call may have broken after it was written."""
    node = chunk.node if chunk.node.isprintable() else ascii(chunk.node)
    what = f"up to {chunk.lost_lines} lines ({chunk.lost_bytes} bytes) of node {node} are missing here"
    return f"[nvrx] {what}: they did not fit in its buffer while the log server took none\n".encode()
