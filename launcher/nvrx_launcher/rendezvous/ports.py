"""Ports of this machine."""

from __future__ import annotations

import socket

__all__ = ["free_port"]


def free_port() -> int:
    """Return a port that nobody uses at the moment."""
    with socket.create_server(("", 0)) as probe:
        return int(probe.getsockname()[1])
