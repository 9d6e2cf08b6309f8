"""The log service over gRPC, in one asyncio loop. The only module that imports grpcio, and only in these processes.

A call is a batch, answered when its chunks are in their files: a node needs no more than that, and a server holds no
thread for it. A call without the job's token is refused before anything of it is read. A client that keeps one stream
open for long, as those of nvidia-resiliency-ext do, is served as well: its chunks are accepted as they come.
"""

from __future__ import annotations

import asyncio
import hmac
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from nvrx_core.errors import ConfigurationError
from nvrx_core.logs.chunks import MAX_CHUNK, Chunk, PathRefusedError

if TYPE_CHECKING:
    from nvrx_core.logs.log_service_pb2 import HealthRequest, HealthResponse, LogChunk, StreamResponse

__all__ = ["BusyError", "CallFailedError", "ChunkReceiver", "Client", "Tls", "serve"]

SERVICE: Final = "nvidia_resiliency_ext.fault_tolerance.LogAggregationService"
MESSAGE: Final = MAX_CHUNK + (64 << 10)
MAX_CALLS: Final = 4096
"""Calls that are served at a time; further ones are answered RESOURCE_EXHAUSTED."""
MAX_WAITING: Final = 64
"""Chunks of one call that are accepted and not written."""
READS_WITHIN: Final = 300.0
"""Seconds without a chunk after which a call is ended."""
ANSWERS_WITHIN: Final = 30.0
"""Seconds after which a client's call is broken off."""
CONNECTS_WITHIN: Final = 10_000
"""Milliseconds that either end gives a connection to begin: a busy server takes seconds to answer a new one."""
SERVER_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE), ("grpc.max_metadata_size", 8 << 10), ("grpc.so_reuseport", 0),
    ("grpc.server_handshake_timeout_ms", CONNECTS_WITHIN), ("grpc.max_connection_idle_ms", 600_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000), ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", 20_000), ("grpc.keepalive_timeout_ms", 10_000),
)  # fmt: skip
CLIENT_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0), ("grpc.keepalive_time_ms", 10_000), ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.min_reconnect_backoff_ms", CONNECTS_WITHIN),  # in spite of its name, how long an attempt to connect may take
    ("grpc.use_local_subchannel_pool", 1),
)  # fmt: skip


class BusyError(Exception):
    """The receiver takes no chunk now; the sender keeps it."""


class CallFailedError(Exception):
    """A call was not answered; its chunks may be written or not."""


class ChunkReceiver(Protocol):
    """What the chunks of a server are for."""

    def put(self, chunk: Chunk) -> Awaitable[str]:
        """Accept a chunk; the result is "" once it is in its file, or why it never will be.

        Raises:
            PathRefusedError: for a file that it does not write to.
            BusyError: when it has no room.
            CallFailedError: from the awaitable, when the chunk was not passed on.
        """

    def connected(self) -> int:
        """Return how many clients are connected."""


@dataclass(frozen=True)
class Tls:
    """Paths of PEM files; a server has certificate and key, a client the authority that has signed it."""

    certificate: str = ""
    key: str = ""
    authority: str = ""


async def serve(
    address: str, receiver: ChunkReceiver, *, token: bytes, tls: Tls | None = None
) -> tuple[int, Callable[[float], Awaitable[None]]]:
    """Serve at an address; return the port, and what stops it with seconds for the calls under way.

    Args:
        address: host and port; port 0 for a free one.
        receiver: receives the chunks.
        token: the job's token.
        tls: certificate and key; None: without TLS.

    Raises:
        ConfigurationError: when grpcio is missing.
        OSError: when it cannot listen there, or a file of `tls` cannot be read.
    """
    grpc = _grpc()
    server = grpc.aio.server(maximum_concurrent_rpcs=MAX_CALLS, options=SERVER_OPTIONS)
    server.add_generic_rpc_handlers((_handlers(grpc, receiver, token),))
    try:
        if tls is None:
            port: int = server.add_insecure_port(address)
        else:
            pair = (Path(tls.key).read_bytes(), Path(tls.certificate).read_bytes())
            port = server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
    except RuntimeError as error:  # grpcio's own class for it; it prints no number
        raise OSError(f"cannot listen at {address}: {error}") from None
    await server.start()
    return port, server.stop


class Client:
    """A connection to a log server. Used in one asyncio loop.

    Args:
        endpoint: host and port of the server.
        token: the job's token.
        tls: the authority; None: without TLS.

    Raises:
        ConfigurationError: when grpcio is missing.
        OSError: when the file of `tls` cannot be read.
    """

    def __init__(self, endpoint: str, *, token: bytes, tls: Tls | None = None) -> None:
        self._grpc = grpc = _grpc()
        messages = _messages()
        if tls is None:
            self._channel = grpc.aio.insecure_channel(endpoint, options=CLIENT_OPTIONS)
        else:
            credentials = grpc.ssl_channel_credentials(Path(tls.authority).read_bytes())
            self._channel = grpc.aio.secure_channel(endpoint, credentials, options=CLIENT_OPTIONS)
        self._metadata = (("authorization", f"Bearer {token.hex()}"),)
        self._stream = self._channel.stream_unary(
            f"/{SERVICE}/StreamLogs",
            request_serializer=messages.LogChunk.SerializeToString,
            response_deserializer=messages.StreamResponse.FromString,
        )
        self._chunk = messages.LogChunk

    async def send(self, chunks: Sequence[Chunk], *, within: float = ANSWERS_WITHIN) -> str:
        """Send a batch; return "" once it is written, or why some of it never will be.

        Raises:
            CallFailedError: when the server has not said so within `within` seconds.
        """
        try:
            response = await self._stream(self._requests(chunks), timeout=within, metadata=self._metadata)
        except self._grpc.aio.AioRpcError as error:
            raise CallFailedError(f"{error.code().name}: {error.details()}") from None
        return "" if response.status == "ok" else str(response.status)

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()

    def _requests(self, chunks: Sequence[Chunk]) -> Iterable[LogChunk]:
        for each in chunks:
            yield self._chunk(
                node_id=each.node, data=each.data, file_path=each.path, session=each.session, sequence=each.sequence,
                lost_bytes=each.lost_bytes, lost_lines=each.lost_lines, last=each.is_last,
            )  # fmt: skip


def _grpc() -> Any:
    try:
        import grpc
    except ImportError as error:
        advice = "pip install 'nvrx[grpc]' on each node, or leave out --ft-enable-log-server"
        raise ConfigurationError("log server", "grpcio", f"is needed and cannot be imported: {error}", advice) from None
    return grpc


def _messages() -> Any:
    from nvrx_core.logs import log_service_pb2

    return log_service_pb2


def _handlers(grpc: Any, receiver: ChunkReceiver, token: bytes) -> Any:
    messages, service = _messages(), _Service(grpc, receiver, token)
    return grpc.method_handlers_generic_handler(SERVICE, {
        "StreamLogs": grpc.stream_unary_rpc_method_handler(
            service.stream_logs, request_deserializer=messages.LogChunk.FromString,
            response_serializer=messages.StreamResponse.SerializeToString,
        ),
        "HealthCheck": grpc.unary_unary_rpc_method_handler(
            service.health_check, request_deserializer=messages.HealthRequest.FromString,
            response_serializer=messages.HealthResponse.SerializeToString,
        ),
    })  # fmt: skip


class _Service:
    """Both calls of the service."""

    def __init__(self, grpc: Any, receiver: ChunkReceiver, token: bytes) -> None:
        self._grpc, self._receiver, self._messages = grpc, receiver, _messages()
        self._expected = f"Bearer {token.hex()}".encode()

    async def stream_logs(self, requests: AsyncIterator[LogChunk], context: Any) -> StreamResponse:
        await self._authenticate(context)
        code = self._grpc.StatusCode
        try:
            return await self._receive(requests)
        except PathRefusedError as error:
            return await self._refuse(context, code.PERMISSION_DENIED, str(error))
        except BusyError:
            return await self._refuse(context, code.RESOURCE_EXHAUSTED, "it keeps no more now; send it again")
        except CallFailedError as error:
            return await self._refuse(context, code.UNAVAILABLE, f"not passed on: {error}")
        except TimeoutError:
            return await self._refuse(context, code.DEADLINE_EXCEEDED, f"no chunk for {READS_WITHIN:.0f} s")

    async def health_check(self, _request: HealthRequest, context: Any) -> HealthResponse:
        await self._authenticate(context)
        connected = self._receiver.connected()
        response: HealthResponse = self._messages.HealthResponse(healthy=True, connected_clients=connected)
        return response

    async def _receive(self, requests: AsyncIterator[LogChunk]) -> StreamResponse:
        count, status, waiting = 0, "", deque[Awaitable[str]]()
        async for request in _each_within(requests):
            count += len(request.data)
            waiting.append(self._receiver.put(_chunk(request)))
            if len(waiting) >= MAX_WAITING:
                status = await waiting.popleft() or status
        for settled in waiting:
            status = await settled or status
        response: StreamResponse = self._messages.StreamResponse(status=status or "ok", bytes_received=count)
        return response

    async def _authenticate(self, context: Any) -> None:
        given = next((text for name, text in context.invocation_metadata() or () if name == "authorization"), "")
        if not hmac.compare_digest(given.encode() if isinstance(given, str) else given, self._expected):
            await self._refuse(context, self._grpc.StatusCode.UNAUTHENTICATED, "this is not the token of the job")

    async def _refuse(self, context: Any, code: Any, text: str) -> NoReturn:
        await context.abort(code, text)
        raise AssertionError(text)  # abort has raised


async def _each_within(requests: AsyncIterator[LogChunk]) -> AsyncIterator[LogChunk]:
    while True:
        try:
            async with asyncio.timeout(READS_WITHIN):
                request = await anext(requests)
        except StopAsyncIteration:
            return
        yield request


def _chunk(message: LogChunk) -> Chunk:
    return Chunk(
        message.node_id, message.file_path, message.data, message.session, message.sequence,
        message.lost_bytes, message.lost_lines, message.last,
    )  # fmt: skip
