"""The options of per-cycle logs. Pure."""

from __future__ import annotations

import argparse
import hashlib
import math
from dataclasses import dataclass
from typing import Final

from nvrx_core.errors import ConfigurationError
from nvrx_core.logs.node_buffer import LIMIT
from nvrx_core.parsing import MAX_PORT

__all__ = ["LogOptions"]

NODES_OF_A_LEAF: Final = 1536
MIN_QUEUE, MAX_QUEUE, CHUNKS_OF_A_NODE = 16384, 1_000_000, 256
"""Chunks that wait in a leaf, at least, at most, and by node."""
FALSE: Final = ("", "false", "0", "no", "none")


@dataclass(frozen=True)
class LogOptions:
    """Per-cycle logs of a job.

    Attributes:
        prefix: where they are, as in /logs/train.log for /logs/train_cycle0.log; "": there are none.
        launcher_file: a file for the lines of the launchers; "" for none.
        has_server: one process writes for all nodes.
        port: the first port of the server and its leaves.
        leaves: how many leaves there are; 0: nodes send to the root itself.
        leaf_queue: chunks that may wait in a leaf.
        server_log_prefix: log files of server and leaves; "": they log where the launcher does.
        ends_within: seconds for what is left when the launcher ends.
        token_file: the file with the job's token; "": it follows from the job's name.
        tls_certificate, tls_key, tls_authority: PEM files; "": without TLS.
        buffer: bytes that a node keeps.
    """

    prefix: str = ""
    launcher_file: str = ""
    has_server: bool = False
    port: int = 50051
    leaves: int = 0
    leaf_queue: int = MIN_QUEUE
    server_log_prefix: str = ""
    ends_within: float = 60.0
    token_file: str = ""
    tls_certificate: str = ""
    tls_key: str = ""
    tls_authority: str = ""
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
        prefix, launcher_file = given.ft_per_cycle_applog_prefix or "", given.ft_nvrx_logfile or ""
        wanted = given.ft_enable_log_server
        has_server = wanted.strip().lower() not in FALSE if wanted else bool(launcher_file)
        for option, value in (("--ft-per-cycle-applog-prefix", prefix), ("--ft-nvrx-logfile", launcher_file)):
            if value and (not value.startswith("/") or value.endswith("/")):
                raise _wrong(option, f"{value!r} is no absolute path of a file", "write it as in /logs/train.log")
        if (launcher_file or has_server) and not prefix:
            option = "--ft-nvrx-logfile" if launcher_file else "--ft-enable-log-server"
            raise _wrong(option, "given without --ft-per-cycle-applog-prefix", "give both")
        if launcher_file and not has_server:
            raise _wrong("--ft-nvrx-logfile", "needs the log server, which is off", "leave out --ft-enable-log-server")
        if prefix and (given.redirects != "0" or given.tee != "0" or given.logs_specs):
            problem = "given together with --redirects, --tee or --logs-specs"
            raise _wrong("--ft-per-cycle-applog-prefix", problem, "give one of them: an output has one destination")
        if has_server and backend != "c10d" and max_nodes > 1:
            problem = f"the rendezvous {backend} is in no launcher, beside which it would run"
            raise _wrong("--ft-enable-log-server", problem, "use c10d, or leave it out: each node then writes itself")
        if bool(given.ft_log_tls_certificate) != bool(given.ft_log_tls_key):
            raise _wrong("--ft-log-tls-certificate", "certificate and key belong together", "give both, or none")
        ends_within = given.ft_log_server_graceful_shutdown_timeout
        if not 0 <= ends_within < math.inf:
            option = "--ft-log-server-graceful-shutdown-timeout"
            raise _wrong(option, f"{ends_within:g} is no duration", "write seconds, 0 or more")
        return cls(
            prefix=prefix, launcher_file=launcher_file, has_server=has_server,
            **_size(given, max_nodes), server_log_prefix=given.ft_log_server_log_prefix or "",
            ends_within=ends_within, token_file=given.ft_log_token_file or "",
            tls_certificate=given.ft_log_tls_certificate or "", tls_key=given.ft_log_tls_key or "",
            tls_authority=given.ft_log_tls_authority or "",
        )  # fmt: skip

    def leaf_of(self, node: str) -> int:
        """Return the port to which a node sends."""
        if not self.leaves:
            return self.root_port
        return self.port + int.from_bytes(hashlib.blake2b(node.encode(), digest_size=8).digest()) % self.leaves

    @staticmethod
    def derived_token(run_id: str) -> bytes:
        """Return a token that tells jobs apart; it keeps nobody out who knows the job's name."""
        return hashlib.blake2b(run_id.encode(errors="surrogateescape"), person=b"nvrx-logs").hexdigest()[:64].encode()


def _size(given: argparse.Namespace, max_nodes: int) -> dict[str, int]:
    count, port, queue = given.ft_log_aggregator_count, given.ft_log_server_port, given.ft_log_leaf_max_queue_chunks
    if count < 0:
        raise _wrong("--ft-log-aggregator-count", f"{count} is negative", "0 lets the number of nodes decide")
    count = count or math.ceil(max_nodes / NODES_OF_A_LEAF)
    leaves = count if count > 1 else 0
    if not 0 < port <= MAX_PORT - leaves:
        raise _wrong("--ft-log-server-port", f"{port} is no port with {leaves} more after it", "write one, as in 50051")
    if queue < 0:
        nodes = math.ceil(max_nodes / max(leaves, 1))
        queue = min(MAX_QUEUE, max(MIN_QUEUE, CHUNKS_OF_A_NODE * nodes))
    return {"port": port, "leaves": leaves, "leaf_queue": queue}


def _wrong(option: str, problem: str, advice: str) -> ConfigurationError:
    return ConfigurationError("command line", option, problem, advice)
