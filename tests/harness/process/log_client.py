"""Clients of a log server that a node is not: `python -m tests.harness.process.log_client CASE ENDPOINT`.

The request is JSON on standard input, the answer JSON on standard output. grpcio keeps threads for as long as a process
lives, so that tests use it in one of their own.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import grpc

from nvrx_core.logs import log_service_pb2 as messages
from nvrx_core.logs.chunks import Chunk
from nvrx_core.logs.grpc_service import SERVICE, CallFailedError, Client
from tests.harness.process.log_service import TOKEN

METADATA = (("authorization", f"Bearer {TOKEN.encode().hex()}"),)


async def send(endpoint: str, requests: list[dict[str, Any]]) -> list[str]:
    answers = []
    for each in requests:
        client = Client(endpoint, token=each.get("token", TOKEN).encode())
        try:
            chunk = Chunk("n", each["path"], each.get("data", "evil\n").encode() * each.get("times", 1))
            answers.append(await client.send([chunk]))
        except CallFailedError as error:
            answers.append(str(error))
        finally:
            await client.close()
    return answers


def send_malformed(endpoint: str) -> list[str]:
    answers = []
    with grpc.insecure_channel(endpoint) as channel:
        stream = channel.stream_unary(f"/{SERVICE}/StreamLogs")  # bytes as they are
        for garbage in (b"\xff" * 50, b"\x0a\xff\xff\xff\xff\x0f", b"\x12\x05abc"):
            try:
                stream(iter([garbage]), timeout=5, metadata=METADATA)
                answers.append("OK")
            except grpc.RpcError as error:
                answers.append(error.code().name)
    return answers


def send_in_one_stream(endpoint: str, path: str) -> list[Any]:
    """Send as a client of nvidia-resiliency-ext does: one stream, no numbers; the second chunk after the first."""
    file = Path(path)

    def chunks():
        yield messages.LogChunk(node_id="peer", data=b"first\n", file_path=path)
        while not file.exists() or file.read_bytes() != b"first\n":
            time.sleep(0.02)
        yield messages.LogChunk(node_id="peer", data=b"second\n", file_path=path)

    with grpc.insecure_channel(endpoint) as channel:
        stream = channel.stream_unary(
            f"/{SERVICE}/StreamLogs", request_serializer=messages.LogChunk.SerializeToString,
            response_deserializer=messages.StreamResponse.FromString,
        )  # fmt: skip
        response = stream(chunks(), timeout=20, metadata=METADATA)
        health = channel.unary_unary(
            f"/{SERVICE}/HealthCheck", request_serializer=messages.HealthRequest.SerializeToString,
            response_deserializer=messages.HealthResponse.FromString,
        )(messages.HealthRequest(), timeout=20, metadata=METADATA)  # fmt: skip
    return [response.status, response.bytes_received, health.healthy]


if __name__ == "__main__":
    case, endpoint = sys.argv[1:]
    request = json.load(sys.stdin)
    match case:
        case "send":
            answer: Any = asyncio.run(send(endpoint, request))
        case "malformed":
            answer = send_malformed(endpoint)
        case _:
            answer = send_in_one_stream(endpoint, request)
    print(json.dumps(answer), flush=True)
    os._exit(0)
