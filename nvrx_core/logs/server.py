"""The log server, or a leaf of one: `python -m nvrx_core.logs.server --listen HOST:PORT --root FOLDER ...`.

It prints a line with its endpoint, and ends with its standard input: it serves the nodes that have not ended for
`--within` seconds, and writes what it has accepted. It ignores the signals that a scheduler sends to all processes of a
job.

A leaf keeps nothing: it passes the chunks of many nodes on in few calls, and answers a node when the root has answered.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nvrx_core.errors import ConfigurationError
from nvrx_core.logs.chunks import Chunk
from nvrx_core.logs.file_writer import FileWriter
from nvrx_core.logs.grpc_service import BusyError, CallFailedError, Client, Tls, serve
from nvrx_core.logs.log_folder import LogFolders
from nvrx_core.logs.reception import Reception
from nvrx_core.process.file_limit import allow_more_files
from nvrx_core.process.service import add_service_options, input_ends, read_token, start_service

__all__ = ["Forwarder", "Root", "main"]

log = logging.getLogger("nvrx_core.logs")
BATCH: Final = 4 << 20
QUEUE_CHUNKS: Final = 16384
"""Chunks that wait in a leaf."""
QUEUE_BYTES: Final = 64 << 20
LINGERS: Final = 0.05
"""Seconds in which a leaf collects the chunks of several nodes."""
FINISHES_WITHIN: Final = 10.0
"""Seconds for the disk, after the nodes."""


class Root:
    """Writes the chunks to files.

    Args:
        writer: writes them.

    Attributes:
        reception: the nodes' sessions.
        heard: set when a chunk has come.
    """

    def __init__(self, writer: FileWriter) -> None:
        self._writer, self.reception, self.heard = writer, writer.reception, asyncio.Event()

    def put(self, chunk: Chunk) -> Awaitable[str]:
        """Accept a chunk; the result is "" once it is in its file, or why it never will be."""
        if chunk.path or chunk.data:  # else it says that a node without lines has ended
            self._writer.check(chunk.path)
        if not self._writer.has_room:
            raise BusyError
        loop = asyncio.get_running_loop()
        settled = loop.create_future()

        def settle(status: str) -> None:
            if not settled.done():  # its call was cancelled
                settled.set_result(status)

        self._writer.put(chunk, lambda status: loop.call_soon_threadsafe(settle, status))
        self.heard.set()
        return settled

    def connected(self) -> int:
        """Return how many nodes have sent something lately."""
        with self._writer.changed:
            return self.reception.connected(now=time.monotonic())

    async def close(self) -> int:
        """Write what is accepted; return how many bytes are not."""
        return await asyncio.to_thread(self._writer.close, FINISHES_WITHIN)


@dataclass(frozen=True)
class _Passed:
    chunk: Chunk
    settled: asyncio.Future[str]


class Forwarder:
    """Passes chunks on to the root.

    Args:
        root: the connection to it.
        max_chunks: chunks that may wait.

    Attributes:
        reception: the nodes' sessions.
        heard: set when a chunk has come.
    """

    def __init__(self, root: Client, max_chunks: int = QUEUE_CHUNKS) -> None:
        self._root, self._max_chunks, self.reception = root, max_chunks, Reception()
        self._waiting, self._size, self.heard = deque[_Passed](), 0, asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def put(self, chunk: Chunk) -> Awaitable[str]:
        """Accept a chunk; the result is the root's."""
        if len(self._waiting) >= self._max_chunks or self._size >= QUEUE_BYTES:
            raise BusyError
        self.reception.accept(chunk, now=time.monotonic())  # who has ended; the root knows what is written
        self._waiting.append(passed := _Passed(chunk, asyncio.get_running_loop().create_future()))
        self._size += len(chunk.data)
        self.heard.set()
        if self._task is None:
            self._task = asyncio.create_task(self._pass_on())
        return passed.settled

    def connected(self) -> int:
        """Return how many nodes have sent something lately."""
        return self.reception.connected(now=time.monotonic())

    async def close(self) -> int:
        """Pass on what is accepted; return how many bytes are not."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=FINISHES_WITHIN)
        await self._root.close()
        return self._size

    async def _pass_on(self) -> None:
        try:
            await asyncio.sleep(LINGERS)
            while self._waiting:
                batch, size = list[_Passed](), 0
                while self._waiting and size < BATCH:
                    batch.append(self._waiting.popleft())
                    size += len(batch[-1].chunk.data)
                try:
                    status = await self._root.send([each.chunk for each in batch])
                    outcome: str | CallFailedError = status
                except CallFailedError as error:
                    outcome = error
                self._size -= size
                for each in batch:
                    _settle(each.settled, outcome)
        finally:
            self._task = None


def _settle(settled: asyncio.Future[str], outcome: str | CallFailedError) -> None:
    if settled.done():  # its call was cancelled
        return
    if isinstance(outcome, str):
        settled.set_result(outcome)
    else:
        settled.set_exception(outcome)
        settled.exception()  # a call that was ended by another chunk does not ask for it


async def _serve(given: argparse.Namespace) -> int:
    token = read_token(Path(given.token_file), "log server")
    receiver: Root | Forwarder
    if given.forward:
        tls = Tls(authority=given.tls_authority) if given.tls_authority else None
        receiver = Forwarder(Client(given.forward, token=token, tls=tls), given.max_queue_chunks)
    else:
        receiver = Root(FileWriter(LogFolders(given.root), given.nodes))
    host = given.listen.rpartition(":")[0]
    tls = Tls(given.tls_certificate, given.tls_key) if given.tls_certificate else None
    port, stop = await serve(given.listen, receiver, token=token, tls=tls)
    endpoint = f"{host}:{port}"
    print(endpoint, flush=True)
    log.info("%s at %s", "a leaf of the log server" if given.forward else "the log server", endpoint)
    await input_ends()
    receiver.reception.end(now=time.monotonic(), within=given.within)
    while not receiver.reception.is_over(now=time.monotonic()):
        receiver.heard.clear()
        with suppress(TimeoutError):
            rest = max(0.0, receiver.reception.deadline - time.monotonic())
            await asyncio.wait_for(receiver.heard.wait(), rest)
    await stop(1.0)
    left = await receiver.close()
    reception = receiver.reception
    if left or reception.lost_bytes:
        lost = f"{reception.lost_lines} lines ({reception.lost_bytes} bytes) were dropped by nodes"
        log.warning("%d bytes are not written; %s", left, lost)
    return 1 if left else 0


def main(arguments: Sequence[str]) -> int:
    """Be a log server; returns 0, 1 when something could not be written, 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m nvrx_core.logs.server", description=__doc__)
    parser.add_argument("--listen", required=True, help="address and port; port 0 for a free one")
    parser.add_argument("--root", action="append", default=[], help="a folder whose files it appends to; repeatable")
    parser.add_argument("--nodes", type=int, default=0, help="nodes that it waits for at its end")
    parser.add_argument("--forward", default="", help="be a leaf of the server at this endpoint")
    parser.add_argument("--max-queue-chunks", type=int, default=QUEUE_CHUNKS, help="chunks that wait in a leaf")
    parser.add_argument("--tls-certificate", default="", help="PEM file with the certificate of this server")
    parser.add_argument("--tls-key", default="", help="PEM file with its key")
    parser.add_argument("--tls-authority", default="", help="PEM file with the authority of the server's certificate")
    add_service_options(parser)
    given = parser.parse_args(arguments)
    if bool(given.root) == bool(given.forward):
        parser.error("give --root or --forward")
    start_service("log server", given.job)
    allow_more_files()
    try:
        return asyncio.run(_serve(given))
    except (ConfigurationError, OSError, ValueError) as error:
        log.error("the log server ends: %s", error)
        return 2


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)
