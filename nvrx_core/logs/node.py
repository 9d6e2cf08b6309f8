"""The process that keeps a node's log lines and sends them: `python -m nvrx_core.logs.node --endpoint HOST:PORT ...`.

It reads frames (`frames`) from its standard input, as fast as they come, and ends with it: what it keeps then is sent
within `--within` seconds. So it also sends the last lines of a launcher that was killed. It ignores the signals that a
scheduler sends to all processes of a job.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import time
import uuid
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from nvrx_core.errors import ConfigurationError
from nvrx_core.logs.frames import Frames
from nvrx_core.logs.grpc_service import CallFailedError, Client, Tls
from nvrx_core.logs.node_buffer import LIMIT, NodeBuffer
from nvrx_core.process.service import add_service_options, read_token, start_service

__all__ = ["NodeProcess", "main"]

log = logging.getLogger("nvrx_core.logs")
READ: Final = 1 << 20
SAYS_SO_AFTER: Final = 1.0
LINE_EVERY: Final = 30.0
"""Seconds from the begin of an outage to the first line about it, and between two lines."""


class NodeProcess:
    """Sends what it reads, until the end of its input.

    Args:
        buffer: keeps the lines.
        client: sends them.
        within: seconds for what is left at the end.
    """

    def __init__(self, buffer: NodeBuffer, client: Client, within: float) -> None:
        self._buffer, self._client, self._within = buffer, client, within
        self._frames, self._changed = Frames(), asyncio.Event()
        self._says_at, self._said_lost, self._status = 0.0, 0, ""
        self._failed_since = 0.0
        self._sending: asyncio.Future[str] | None = None

    async def run(self, fd: int) -> int:
        """Read a descriptor until its end; return how many bytes the server may not have written."""
        os.set_blocking(fd, False)
        loop = asyncio.get_running_loop()
        loop.add_reader(fd, self._read, fd)
        while not self._buffer.is_over(now=time.monotonic()):
            batch = self._buffer.take(now=time.monotonic())
            if not batch:
                await self._wait()
                continue
            self._sending = asyncio.ensure_future(self._client.send(batch))
            try:
                status = await self._sending
            except (CallFailedError, asyncio.CancelledError) as error:
                self._buffer.failed(now=time.monotonic())
                self._say_failure(str(error) or "the time is up")
            else:
                self._buffer.written(now=time.monotonic())
                self._say_recovery(status)
            self._say_loss()
        left = self._buffer.size
        lost = self._buffer.give_up()
        if lost.bytes:
            log.warning("%d lines (%d bytes) of this node are not in its logs", lost.lines, lost.bytes)
        return left

    async def _wait(self) -> None:
        """Wait until there is something to send, or to end."""
        due = self._buffer.deadline
        timeout = None if due == float("inf") else max(0.0, due - time.monotonic())
        self._changed.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), timeout)

    def _read(self, fd: int) -> None:
        try:
            data = os.read(fd, READ)
        except BlockingIOError:
            return
        now = time.monotonic()
        before = self._buffer.deadline
        if data:
            for path, lines in self._frames.feed(data):
                self._buffer.put(path, lines, now=now)
        else:
            loop = asyncio.get_running_loop()
            loop.remove_reader(fd)
            self._buffer.end(now=now, within=self._within)
            loop.call_later(self._within, self._break_off)
        if self._buffer.deadline < before:
            self._changed.set()

    def _break_off(self) -> None:
        """Break off the call that is under way when the time is up."""
        if self._sending is not None:
            self._sending.cancel()

    def _say_failure(self, why: str) -> None:
        now = time.monotonic()
        if not self._failed_since:
            self._failed_since, self._says_at = now, now + SAYS_SO_AFTER
        if now >= self._says_at:
            self._says_at = now + LINE_EVERY
            kept = self._buffer.size / 2**20
            log.warning("the log server takes nothing (%s): %.1f MiB are kept and sent again", why, kept)

    def _say_recovery(self, status: str) -> None:
        if self._failed_since:
            outage, self._failed_since = time.monotonic() - self._failed_since, 0.0
            if outage >= SAYS_SO_AFTER:
                log.info("the log server takes lines again, after %.1f s", outage)
        if status != self._status and status:
            log.warning("lines are lost at the log server: %s", status)
        self._status = status

    def _say_loss(self) -> None:
        """Say that lines are dropped when it begins, and how many when it is over."""
        lost = self._buffer.lost
        if lost.bytes and (not self._said_lost or (not self._failed_since and lost.bytes != self._said_lost)):
            self._said_lost = lost.bytes
            log.warning("the buffer for logs is full: %d lines (%d bytes) are dropped so far", lost.lines, lost.bytes)


def main(arguments: Sequence[str]) -> int:
    """Be a node's process; returns 0 when the server has everything, 1 when it may not."""
    parser = argparse.ArgumentParser(prog="python -m nvrx_core.logs.node", description=__doc__)
    parser.add_argument("--endpoint", required=True, help="host and port of the log server, or of a leaf")
    parser.add_argument("--node", required=True, help="the node's name")
    parser.add_argument("--limit", type=int, default=LIMIT, help="bytes that are kept (default: %(default)s)")
    parser.add_argument("--tls-authority", default="", help="PEM file with the authority of the server's certificate")
    add_service_options(parser)
    given = parser.parse_args(arguments)
    start_service("log sender", given.job)
    tls = Tls(authority=given.tls_authority) if given.tls_authority else None
    spread = zlib.crc32(given.node.encode()) / (1 << 32)

    async def run() -> int:
        client = Client(given.endpoint, token=read_token(Path(given.token_file), "log server"), tls=tls)
        buffer = NodeBuffer(given.node, uuid.uuid4().hex, limit=given.limit, spread=spread)
        try:
            return await NodeProcess(buffer, client, given.within).run(sys.stdin.fileno())
        finally:
            await client.close()

    try:
        return 1 if asyncio.run(run()) else 0
    except (ConfigurationError, OSError) as error:
        log.error("the log sender ends: %s", error)
        return 2


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)
