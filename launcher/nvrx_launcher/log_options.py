"""The options of per-cycle logs. Pure."""

from __future__ import annotations

import argparse
import hashlib
import math
from dataclasses import dataclass, replace
from typing import Final

from nvrx_core.logs.node_buffer import LIMIT
from nvrx_core.parsing import MAX_PORT
from nvrx_launcher.declared_options import INTEGER, SECONDS, TEXT, OptionForm, option, values_of, wrong

__all__ = ["LogOptions"]

NODES_OF_A_LEAF: Final = 1536
MIN_QUEUE, MAX_QUEUE, CHUNKS_OF_A_NODE = 16384, 1_000_000, 256
"""Chunks that wait in a leaf, at least, at most, and by node."""
FALSE: Final = ("", "false", "0", "no", "none")


def _file(option: str, value: str | None) -> str:
    if value and (not value.startswith("/") or value.endswith("/")):
        raise wrong(option, f"{value!r} is no absolute path of a file", "write it as in /logs/train.log")
    return value or ""


def _count(option: str, count: int) -> int:
    if count < 0:
        raise wrong(option, f"{count} is negative", "0 lets the number of nodes decide")
    return count


_FILE: Final = OptionForm[str | None, str](str, _file)


@dataclass(frozen=True, kw_only=True)
class LogOptions:
    """Per-cycle logs of a job.

    Attributes:
        prefix: where they are, as in /logs/train.log for /logs/train_cycle0.log; "": there are none.
        has_server: one process writes for all nodes.
        leaves: how many leaves there are; 0: nodes send to the root itself.
        leaf_queue: chunks that may wait in a leaf.
        buffer: bytes that a node keeps.

    All but `buffer` are options, and are described where they are declared; "" is not given.
    """

    prefix: str = option(
        None, _FILE, "Output of all workers goes to one file for each cycle: /logs/train.log makes "
        "/logs/train_cycle0.log, /logs/train_cycle1.log.", name="ft-per-cycle-applog-prefix", is_torchruns=False,
    )  # fmt: skip
    launcher_file: str = option(
        None, _FILE, "File for the log of all launchers, by the log server, which it turns on; they write to the "
        "console as well.", name="ft-nvrx-logfile", is_torchruns=False,
    )  # fmt: skip
    has_server: bool = option(
        None, OptionForm[str | None, bool](str, lambda _, text: (text or "").strip().lower() not in FALSE),
        "true: one process beside the rendezvous writes the per-cycle logs of all nodes; false: each node appends to "
        "them itself. Needs the extra grpc.", name="ft-enable-log-server", is_torchruns=False,
    )  # fmt: skip
    port: int = option(
        50051, INTEGER, "Port of the log server; with leaves, their ports, and the one after them is the root's.",
        name="ft-log-server-port", is_torchruns=False,
    )  # fmt: skip
    leaves: int = option(
        0, OptionForm(int, _count),
        "Processes that collect logs: 1 for the root only, N for N leaves before it, 0 for a leaf for every 1536 "
        "nodes.",
        name="ft-log-aggregator-count", is_torchruns=False,
    )  # fmt: skip
    leaf_queue: int = option(
        -1, INTEGER, "Chunks that may wait in a leaf; -1: 256 for each of its nodes, 16384 at least, 1000000 at most.",
        name="ft-log-leaf-max-queue-chunks", is_torchruns=False,
    )  # fmt: skip
    server_log_prefix: str = option(
        "", TEXT, "Own logs of the log server go to files with this prefix, _root.log and _leaf_N.log; to the "
        "launcher's stderr by default.", name="ft-log-server-log-prefix", is_torchruns=False,
    )  # fmt: skip
    ends_within: float = option(
        60.0, SECONDS, "Seconds for the lines that are left when the launcher ends.",
        name="ft-log-server-graceful-shutdown-timeout", is_torchruns=False,
    )  # fmt: skip
    token_file: str = option(
        "", TEXT, "File with the token that nodes must show to the log server, 16 to 1024 bytes, the same on all "
        "nodes; by default it follows from --rdzv-id.", name="ft-log-token-file", is_torchruns=False,
    )  # fmt: skip
    tls_certificate: str = option(
        "", TEXT, "PEM file with the certificate of the log server.", name="ft-log-tls-certificate",
        is_torchruns=False,
    )  # fmt: skip
    tls_key: str = option("", TEXT, "PEM file with its key.", name="ft-log-tls-key", is_torchruns=False)
    tls_authority: str = option(
        "", TEXT, "PEM file with the authority that has signed it: nodes use TLS.", name="ft-log-tls-authority",
        is_torchruns=False,
    )  # fmt: skip
    buffer: int = LIMIT

    @property
    def root_port(self) -> int:
        """The root's port, after those of the leaves."""
        return self.port + self.leaves

    @classmethod
    def of(cls, given: argparse.Namespace, max_nodes: int, backend: str) -> LogOptions:
        """Return those of a parsed command line.

        Raises:
            ConfigurationError: when a value is wrong, or contradicts another one.
        """
        found = cls(**values_of(cls, given))
        has_server = found.has_server if given.ft_enable_log_server else bool(found.launcher_file)
        if (found.launcher_file or has_server) and not found.prefix:
            option = "--ft-nvrx-logfile" if found.launcher_file else "--ft-enable-log-server"
            raise wrong(option, "given without --ft-per-cycle-applog-prefix", "give both")
        if found.launcher_file and not has_server:
            raise wrong("--ft-nvrx-logfile", "needs the log server, which is off", "leave out --ft-enable-log-server")
        if found.prefix and (given.redirects != "0" or given.tee != "0" or given.logs_specs):
            problem = "given together with --redirects, --tee or --logs-specs"
            raise wrong("--ft-per-cycle-applog-prefix", problem, "give one of them: an output has one destination")
        if has_server and backend != "c10d" and max_nodes > 1:
            problem = f"the rendezvous {backend} is in no launcher, beside which it would run"
            raise wrong("--ft-enable-log-server", problem, "use c10d, or leave it out: each node then writes itself")
        if bool(found.tls_certificate) != bool(found.tls_key):
            raise wrong("--ft-log-tls-certificate", "certificate and key belong together", "give both, or none")
        leaves = found.leaves or math.ceil(max_nodes / NODES_OF_A_LEAF)
        if leaves == 1:
            leaves = 0
        if not 0 < found.port <= MAX_PORT - leaves:
            problem = f"{found.port} is no port with {leaves} more after it"
            raise wrong("--ft-log-server-port", problem, "write one, as in 50051")
        queue = found.leaf_queue
        if queue < 0:
            nodes = math.ceil(max_nodes / max(leaves, 1))
            queue = min(MAX_QUEUE, max(MIN_QUEUE, CHUNKS_OF_A_NODE * nodes))
        return replace(found, has_server=has_server, leaves=leaves, leaf_queue=queue)

    def leaf_of(self, node: str) -> int:
        """Return the port to which a node sends."""
        if not self.leaves:
            return self.root_port
        return self.port + int.from_bytes(hashlib.blake2b(node.encode(), digest_size=8).digest()) % self.leaves

    @staticmethod
    def derived_token(run_id: str) -> bytes:
        """Return a token that tells jobs apart; it keeps nobody out who knows the job's name."""
        return hashlib.blake2b(run_id.encode(errors="surrogateescape"), person=b"nvrx-logs").hexdigest()[:64].encode()
