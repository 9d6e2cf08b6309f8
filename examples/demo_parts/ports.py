"""A free port of this machine."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

__all__ = ["LOOPBACK", "free_port"]

LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """Below the range from which outgoing connections get their ports: one of them could take it meanwhile."""
    while True:
        port = random.randrange(12_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind((LOOPBACK, port))
            return port
