"""The launcher's side of per-cycle logs: its destinations, and the processes of the log server.

Without a log server a thread appends to the cycle's file. With one, a process of this node keeps the lines and sends
them (`nvrx_core.logs.node`); the launcher that hosts the rendezvous also has the server and its leaves. A process that
exits is started again after a pause. Nothing here waits for a destination once the job runs: a thread opens files and
writes, and what it cannot pass on is counted (`nvrx_launcher.outlet`).
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import math
import os
import ssl
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from nvrx_core.errors import ConfigurationError
from nvrx_core.logs.chunks import cycle_file
from nvrx_core.logs.frames import frame
from nvrx_core.parsing import endpoint_text
from nvrx_core.process.waiting import readable
from nvrx_launcher.backlog import Backlog
from nvrx_launcher.log_options import LogOptions
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.outlet import Outlet, Writer, to_descriptor
from nvrx_launcher.service_program import ENDS_LATER, ServiceProgram

__all__ = ["LogService", "Where"]

log = logging.getLogger("nvrx_launcher")
TO_SENDER: Final = 8 << 20
"""Bytes that may wait for the process that sends them."""


@dataclass(frozen=True)
class Where:
    """The place of this launcher in the job.

    Attributes:
        node: the node's name.
        host: where the server listens: the host of the rendezvous endpoint.
        is_host: the server runs beside this launcher.
        nodes: how many nodes may be in the job.
        job: the job's name.
    """

    node: str
    host: str
    is_host: bool
    nodes: int
    job: str


class _CycleFile:
    """The file of a cycle, which its file system may hold up: for the thread that writes.

    Attributes:
        begins_at: the size that it had at the begin of the cycle, which is not 0 if an earlier run had this prefix; 0
            until that is known.
    """

    def __init__(self, path: str) -> None:
        self._path, self._fd, self.begins_at = path, -1, 0

    def write(self, data: bytes) -> int:
        """Append bytes; the first call opens the file.

        Raises:
            OSError: when it cannot be opened or written.
        """
        if self._fd < 0:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._fd = os.open(self._path, flags, 0o640)
            self.begins_at = os.fstat(self._fd).st_size
        return to_descriptor(self._fd)(data)

    def measure(self, _: bytes) -> int:
        """Look at its size only: the log server writes it."""
        with suppress(OSError):  # there is none yet
            self.begins_at = os.stat(self._path).st_size
        return 0

    def close(self) -> None:
        """Close it."""
        if self._fd >= 0:
            os.close(self._fd)


class LogService:
    """The destinations of per-cycle logs, if the options ask for them.

    Args:
        options: what is written, and how.
        loop: watches the processes.
        where: the place of this launcher.
        environ: the launcher's environment.

    Attributes:
        path: the file of the present cycle, "" before the first one.
        begins_at: its size when the cycle began: what was there before is of an earlier run.

    Raises:
        ConfigurationError: when grpcio is missing, or the folder of a log file or the file with the token cannot be
            used.
    """

    def __init__(self, options: LogOptions, loop: EventLoop, where: Where, environ: Mapping[str, str]) -> None:
        self._options, self._where, self._writer = options, where, Writer()
        self._environ = {"GRPC_VERBOSITY": "NONE", **environ}
        self._measures = Writer()  # lines do not wait for it
        self.path, self._file, self._outlet = "", _CycleFile(""), Outlet(None, "", self._writer, Backlog(0))
        self._handler: _FileHandler | None = None
        self._servers = list[ServiceProgram]()
        self._sender: ServiceProgram | None = None
        self._loop = loop
        loop.watch(self._writer.room, functools.partial(os.eventfd_read, self._writer.room))
        for path in filter(None, (options.prefix, options.launcher_file)):
            try:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                problem = f"its folder cannot be made: {error}"
                raise ConfigurationError("command line", "logs", f"{path}: {problem}", "give another one") from None
        if options.has_server:
            self._start()
        if options.launcher_file:
            self._handler = _FileHandler(self, options.launcher_file)
            root = logging.getLogger()
            self._handler.setFormatter(root.handlers[0].formatter if root.handlers else None)
            root.addHandler(self._handler)

    @property
    def begins_at(self) -> int:
        """Where the output of the present cycle begins in its file; 0 until that is known."""
        return self._file.begins_at

    @property
    def deadline(self) -> float:
        """When `tick` is due, monotonic seconds."""
        return min((each.deadline for each in self._programs()), default=math.inf)

    def tick(self, *, now: float) -> None:
        """Start what has exited."""
        for each in self._programs():
            each.tick(now=now)

    def begin(self, cycle: int) -> None:
        """Write to the file of a cycle from now on."""
        self.path = cycle_file(self._options.prefix, cycle)
        self._file = file = _CycleFile(self.path)
        log.info("output of the workers of cycle %d is in %s", cycle, self.path)
        if self._options.has_server:
            if self._where.is_host:  # the coordinator is here, and asks for it
                Outlet(file.measure, self.path, self._measures, Backlog(0), is_opened=True).close()
            return
        self._outlet.close()
        self._outlet = Outlet(
            file.write, self.path, self._writer, Backlog(self._options.buffer), release=file.close, is_opened=True
        )

    def write(self, lines: bytes) -> None:
        """Append whole lines to the file of the cycle; from the thread of the loop."""
        if lines:
            self.write_to(self.path, lines)

    def write_to(self, path: str, lines: bytes) -> None:
        """Append whole lines to a file; from any thread."""
        self._outlet.write(frame(path, lines) if self._options.has_server else lines)

    def close(self) -> None:
        """Send or write what is left, within the time for it, and end the processes."""
        if self._handler is not None:
            logging.getLogger().removeHandler(self._handler)
        deadline = time.monotonic() + self._options.ends_within
        self._outlet.close()
        if not self._writer.close(self._options.ends_within):
            self._writer.say_lost()
        self._measures.close(0.0)
        self._loop.forget(self._writer.room)
        self._await_sender(deadline)
        for each in self._programs():
            each.finish()
            each.close(deadline + ENDS_LATER)

    def _await_sender(self, deadline: float) -> None:
        """Wait until the lines of this node are sent; a server that has exited is started again meanwhile."""
        if self._sender is None:
            return
        self._sender.finish()
        while (sender := self._sender.ended) >= 0 and (now := time.monotonic()) < deadline:
            running = {each.ended: each for each in self._servers if each.ended >= 0}
            due = min([deadline, *(each.deadline for each in self._servers)])
            found = readable([sender, *running], due - now)
            if sender in found:
                return
            for descriptor in found:
                running[descriptor].exited()
            for each in self._servers:
                each.tick(now=time.monotonic())

    def _programs(self) -> list[ServiceProgram]:
        """Return the processes in the order in which they end: the root hears the end of all nodes by the leaves."""
        return [*([self._sender] if self._sender else []), *self._servers]

    def _start(self) -> None:
        """Start the processes: the servers on their host, and what sends the lines of this node."""
        options, where = self._options, self._where
        if importlib.util.find_spec("grpc") is None:
            advice = "pip install 'nvrx[grpc]' on each node, or leave it out"
            raise ConfigurationError("command line", "--ft-enable-log-server", "grpcio is not installed", advice)
        token = self._token()
        self._check_tls()
        common = ["--job", where.job]
        if options.tls_authority:
            common += ["--tls-authority", options.tls_authority]
        if where.is_host:
            self._start_servers(token, common)
        command = [
            sys.executable, "-m", "nvrx_core.logs.node", "--node", where.node, "--limit", str(options.buffer),
            "--endpoint", endpoint_text(where.host, options.leaf_of(where.node)), *common,
            "--within", f"{options.ends_within:g}",
        ]  # fmt: skip
        self._sender = ServiceProgram(
            self._loop, "log sender", command, token=token, environ=self._environ, started=self._send_to
        )
        self._sender.start()

    def _start_servers(self, token: bytes, common: Sequence[str]) -> None:
        """Start the leaves and the root; the root is the first to end."""
        options, where = self._options, self._where

        def start(name: str, port: int, *more: str) -> ServiceProgram:
            listen = ["--listen", endpoint_text(where.host, port)]
            command = [sys.executable, "-m", "nvrx_core.logs.server", *listen, *common, *more]
            if options.tls_certificate:
                command += ["--tls-certificate", options.tls_certificate, "--tls-key", options.tls_key]
            file = f"{options.server_log_prefix}_{name}.log" if options.server_log_prefix else ""
            program = ServiceProgram(
                self._loop, f"log server ({name})", command, token=token, log_file=file, environ=self._environ
            )
            program.start()
            return program

        root = endpoint_text(where.host, options.root_port)
        forwards = ("--forward", root, "--max-queue-chunks", str(options.leaf_queue), "--within", "0")
        leaves = [start(f"leaf_{leaf}", options.port + leaf, *forwards) for leaf in range(options.leaves)]
        files = filter(None, (options.prefix, options.launcher_file))
        roots = dict.fromkeys(os.path.dirname(os.path.normpath(file)) for file in files)
        folders = (each for folder in roots for each in ("--root", folder))
        within = options.ends_within * (2 if options.leaves else 1)
        more = ("--nodes", str(where.nodes), *folders, "--within", f"{within:g}")
        self._servers = [start("root", options.root_port, *more), *leaves]

    def _send_to(self, stream: IO[bytes]) -> None:
        """Write to the sender's process; what an earlier one did not read is lost, and said."""
        self._outlet.close()
        fd = os.dup(stream.fileno())
        stream.close()  # the outlet's is the only one then: its end is the input's
        self._outlet = Outlet(
            to_descriptor(fd), "the log sender", self._writer, Backlog(TO_SENDER),
            release=functools.partial(os.close, fd),
        )  # fmt: skip

    def _token(self) -> bytes:
        options = self._options
        if not options.token_file:
            return options.derived_token(self._where.job)
        try:
            return Path(options.token_file).read_bytes()
        except OSError as error:
            advice = "write 16 to 1024 bytes into it, the same on each node"
            raise ConfigurationError("command line", "--ft-log-token-file", str(error), advice) from None

    def _check_tls(self) -> None:
        """Load the files for TLS that this node uses: a server that cannot would be started again without end.

        Raises:
            ConfigurationError: when one is missing, is no PEM, or they do not fit together.
        """
        options, context = self._options, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate, key, authority = options.tls_certificate, options.tls_key, options.tls_authority
        if certificate and self._where.is_host:
            with _loading("--ft-log-tls-certificate", f"{certificate} and {key}"):
                context.load_cert_chain(certificate, key, password="")  # without a question for a passphrase
        if authority:
            with _loading("--ft-log-tls-authority", authority):
                context.load_verify_locations(authority)


@contextmanager
def _loading(option: str, files: str) -> Iterator[None]:
    """Return a context that refuses an option whose files cannot be loaded."""
    try:
        yield
    except OSError as error:  # also those of ssl
        problem, advice = f"cannot use {files}: {error}", "give PEM files that this node can read"
        raise ConfigurationError("command line", option, problem, advice) from None


class _FileHandler(logging.Handler):
    """Writes log lines of this launcher to the file for them."""

    def __init__(self, service: LogService, path: str) -> None:
        super().__init__()
        self._service, self._path = service, path

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record; one that cannot be formatted is the console's business."""
        with suppress(Exception):  # boundary: arguments that do not fit a format
            self._service.write_to(self._path, f"{self.format(record)}\n".encode(errors="backslashreplace"))
