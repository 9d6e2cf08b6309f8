"""Ports of this machine."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["free_port"]

OURS: Final = range(20_000, 30_000)
"""Ports below those of Kubernetes' services, which begin at 30,000."""
OF_CONNECTIONS: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
TRIES: Final = 100


def free_port(of_connections: Path = OF_CONNECTIONS) -> int:
    """Return a port that is free at the moment, and that the kernel does not assign to outgoing connections.

    Rank 0 listens there seconds later, when it has imported torch. A port from the kernel's own range may belong to an
    outgoing connection by then, and to listen there fails.

    Args:
        of_connections: the kernel's file with the range of ports that it assigns to connections.
    """
    ours = range(OURS.start, min(OURS.stop, int(of_connections.read_text().split()[0])))
    for port in random.SystemRandom().sample(ours, min(TRIES, len(ours))):
        with suppress(OSError), _listening(port):
            return port
    with _listening(0) as probe:
        return int(probe.getsockname()[1])


def _listening(port: int) -> socket.socket:
    """Listen on all interfaces, of IPv4 and IPv6 where the machine has it: torch's store needs the port in both."""
    if socket.has_dualstack_ipv6():
        with suppress(OSError):
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))
