"""Hosts on one machine: network namespaces with an address each, on a switch with links that can be cut. Needs root."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Network", "network"]

_numbers = itertools.count()
SLOW = "tbf rate 64kbit burst 1600 latency 200ms"


class Network:
    """Some hosts and the switch between them; their addresses are of IPv4 or of IPv6, and they have no others.

    Attributes:
        addresses: of the hosts.
    """

    def __init__(self, count: int, *, ipv6: bool = False) -> None:
        self._name = f"nvrx{os.getpid()}x{next(_numbers)}"
        self.addresses = [f"fd77::{number + 1:x}" if ipv6 else f"10.77.0.{number + 1}" for number in range(count)]
        self._ip(f"netns add {self._name}")
        self._in(self._name, "ip link add bridge type bridge")
        self._in(self._name, "ip link set bridge up")
        for number, address in enumerate(self.addresses):
            self._add(number, address)

    def host(self, number: int) -> str:
        """Return the name of a host's namespace."""
        return f"{self._name}h{number}"

    def command(self, number: int) -> list[str]:
        """Return the command prefix that runs a command on a host."""
        return ["ip", "netns", "exec", self.host(number)]

    def cut(self, number: int) -> None:
        """Cut a host's link: no packet passes, and none is answered."""
        self._in(self._name, f"ip link set port{number} down")

    def heal(self, number: int) -> None:
        """Restore the link."""
        self._in(self._name, f"ip link set port{number} up")

    def cut_one_way(self, number: int, *, outgoing: bool) -> None:
        """Drop all packets from a host, or all packets to it."""
        self._shape(number, "blackhole", outgoing=outgoing)

    def slow(self, number: int) -> None:
        """Limit a host's link to 8 kB/s each way, with up to 0.2 s latency."""
        for outgoing in (True, False):
            self._shape(number, SLOW, outgoing=outgoing)

    def lose_some(self, number: int, times: int) -> int:
        """Lose all that a host on a slow link sends for 0.15 s, and 0.22 s later again; return how many packets.

        The host does it by itself, ahead of other processes: each process that is started here in a gap would make it
        longer on a busy machine.
        """
        shape = "tc qdisc replace dev eth0 root"
        count = "tc -s qdisc show dev eth0"
        gaps = f"for gap in $(seq {times}); do {shape} blackhole; sleep 0.15; {count}; {shape} {SLOW}; sleep 0.22; done"
        command = ["nice", "-n", "-15", "ip", "netns", "exec", self.host(number), "sh", "-e", "-c", gaps]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return sum(map(int, re.findall(r"dropped (\d+)", text)))

    def restore(self, number: int) -> None:
        """Let packets pass as at first, each way."""
        for outgoing in (True, False):
            namespace, device = self._side(number, outgoing=outgoing)
            subprocess.run(
                ["ip", "netns", "exec", namespace, "tc", "qdisc", "delete", "dev", device, "root"],
                check=False, capture_output=True,
            )  # fmt: skip

    def close(self) -> None:
        """Remove the hosts and the switch."""
        for number in range(len(self.addresses)):
            self._ip(f"netns delete {self.host(number)}")
        self._ip(f"netns delete {self._name}")

    def _add(self, number: int, address: str) -> None:
        host = self.host(number)
        self._ip(f"netns add {host}")
        self._in(self._name, f"ip link add port{number} type veth peer name eth0 netns {host}")
        self._in(self._name, f"ip link set port{number} master bridge up")
        self._in(host, f"ip address add {address}/{'64 dev eth0 nodad' if ':' in address else '24 dev eth0'}")
        for device in ("eth0", "lo"):
            self._in(host, f"ip link set {device} up")

    def _shape(self, number: int, queue: str, *, outgoing: bool) -> None:
        """Set the queueing discipline on one side of a host's link."""
        namespace, device = self._side(number, outgoing=outgoing)
        self._in(namespace, f"tc qdisc replace dev {device} root {queue}")

    def _side(self, number: int, *, outgoing: bool) -> tuple[str, str]:
        """Return the namespace and the device that packets from a host, or to it, leave from."""
        return (self.host(number), "eth0") if outgoing else (self._name, f"port{number}")

    def _in(self, name: str, command: str) -> str:
        return self._ip(f"netns exec {name} {command}")

    def _ip(self, arguments: str) -> str:
        return subprocess.run(["ip", *arguments.split()], check=True, capture_output=True, text=True).stdout


@contextmanager
def network(count: int, *, ipv6: bool = False) -> Iterator[Network]:
    """Hosts that are removed at the end."""
    made = Network(count, ipv6=ipv6)
    try:
        yield made
    finally:
        made.close()
