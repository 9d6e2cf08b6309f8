"""The node health service (nvhcd), asked over gRPC; only this file of the package imports grpc, when a check runs."""

from __future__ import annotations

import os
import stat
from typing import Final

from nvrx_core.health.result import CheckResult, Status
from nvrx_core.health.service_answer import SERVICE, judge_answer
from nvrx_core.health.settings import socket_path

__all__ = ["METHOD", "check_service"]

METHOD: Final = "/nvhcd.HealthCheckService/RunHealthCheck"
ARGUMENTS: Final = ("--no-slurm",)
"""The check runs outside the prolog and epilog of Slurm."""
MAX_ANSWER: Final = 1 << 20


def check_service(endpoint: str, timeout: float) -> CheckResult:
    """Ask the service to check the node.

    Args:
        endpoint: its Unix socket.
        timeout: seconds until the call is given up; the outcome is unknown then.
    """
    path = socket_path(endpoint) or endpoint
    try:
        found = os.stat(path)
    except OSError as error:
        return _absent(f"{path}: {error.strerror}")
    if not stat.S_ISSOCK(found.st_mode):
        return CheckResult(SERVICE, "", Status.UNKNOWN, f"{path} is no Unix socket")
    try:
        import grpc

        from nvrx_core.health.nvhcd_pb2 import HealthCheckRequest, HealthCheckResponse
    except ImportError as error:
        return _absent(f"{error}; pip install 'nvrx[grpc]'")
    options = [("grpc.max_receive_message_length", MAX_ANSWER), ("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(f"unix://{path}", options) as channel:
        call = channel.unary_unary(
            METHOD, request_serializer=HealthCheckRequest.SerializeToString,
            response_deserializer=HealthCheckResponse.FromString,
        )  # fmt: skip
        try:
            answer = call(HealthCheckRequest(args=ARGUMENTS), timeout=timeout)
        except grpc.RpcError as error:
            return _failed(path, error.code(), str(error.details()), timeout)
    result = judge_answer(
        success=answer.success, exit_code=answer.exit_code, output=answer.output, error=answer.error
    )  # fmt: skip
    if found.st_uid in (0, os.getuid()):
        return result
    owner = f"{path} belongs to user {found.st_uid}, who is neither root nor this one"
    return CheckResult(SERVICE, "", result.status, f"{result.reason} ({owner})")


def _failed(path: str, code: object, details: str, timeout: float) -> CheckResult:
    """Return the result of a call without an answer; the service is absent where nobody listens at its socket."""
    name = getattr(code, "name", str(code))
    if name == "UNAVAILABLE":
        return _absent(f"nobody answers at {path}: {details}")
    if name == "DEADLINE_EXCEEDED":
        return CheckResult(SERVICE, "", Status.UNKNOWN, f"no answer from {path} within {timeout:g} s")
    return CheckResult(SERVICE, "", Status.UNKNOWN, f"{path} answers with {name}: {details}")


def _absent(reason: str) -> CheckResult:
    return CheckResult(SERVICE, "", Status.UNKNOWN, f"skipped, {reason}", is_absent=True)
