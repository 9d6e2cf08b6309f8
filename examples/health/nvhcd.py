"""A node health service for ft_launcher, compatible with nvhcd: it runs a check of yours when it is asked over gRPC.

    python examples/health/nvhcd.py -config examples/health/nvhcd.yaml

The configuration is a YAML file:

    socket_path: /var/run/nvhcd.sock            where it listens, a Unix socket
    healthcheck_path: /usr/local/sbin/check     the check; the arguments of a request are its command line
    log_level: info
    timeout: 120                                seconds until the check is killed

The check prints a JSON object such as {"fail_count": 0, "failed_checks": []} and exits with 0 if the node is healthy.
"""

import argparse
import logging
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from concurrent import futures
from contextlib import suppress

import grpc
import yaml

from nvrx_core.health.nvhcd_pb2 import HealthCheckRequest, HealthCheckResponse
from nvrx_core.health.settings import socket_path

KEYS = {"socket_path", "healthcheck_path", "log_level", "timeout"}
LEVELS = ("debug", "info", "warning", "error")
MAX_OUTPUT = 1 << 19

log = logging.getLogger("nvhcd")


def configuration(path: str) -> dict[str, object]:
    """Read and check the configuration; a mistake is a ValueError with one line."""
    with open(path, encoding="utf-8") as file:
        found = yaml.safe_load(file)
    if not isinstance(found, dict) or not {"socket_path", "healthcheck_path"} <= found.keys():
        raise ValueError("socket_path and healthcheck_path are needed")
    if unknown := found.keys() - KEYS:
        raise ValueError(f"there is no key {min(map(str, unknown))}; the keys are {', '.join(sorted(KEYS))}")
    endpoint = found["socket_path"]
    if not isinstance(endpoint, str) or (where := socket_path(endpoint)) is None:
        raise ValueError(f"socket_path: {endpoint!r} is no Unix socket; write an absolute path")
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.stat(where).st_mode):
            raise ValueError(f"socket_path: {where} is another file, not a Unix socket")
    check = found["healthcheck_path"]
    if not isinstance(check, str) or not os.access(check, os.X_OK) or os.path.isdir(check):
        raise ValueError(f"healthcheck_path: {check!r} is no program")
    level = str(found.get("log_level", "info")).lower()
    if level not in LEVELS:
        raise ValueError(f"log_level: {level!r} is none of {', '.join(LEVELS)}")
    timeout = found.get("timeout", 120)
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < 1e9:
        raise ValueError(f"timeout: {timeout!r} is no number of seconds")
    return {"socket_path": where, "healthcheck_path": check, "log_level": level, "timeout": timeout}


class HealthCheck:
    """Runs the check, one at a time."""

    def __init__(self, path: str, timeout: float) -> None:
        self.path, self.timeout, self.one_at_a_time = path, timeout, threading.Lock()

    def __call__(self, request: HealthCheckRequest, context: grpc.ServicerContext) -> HealthCheckResponse:
        with self.one_at_a_time:
            answer = self.run(list(request.args))
        log.info("exit code %d%s", answer.exit_code, f": {answer.error}" if answer.error else "")
        return answer

    def run(self, arguments: list[str]) -> HealthCheckResponse:
        try:
            check = subprocess.Popen(
                [self.path, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            return HealthCheckResponse(success=False, exit_code=127, error=str(error))
        try:
            output, errors = check.communicate(timeout=self.timeout)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(check.pid, signal.SIGKILL)
            return HealthCheckResponse(success=False, exit_code=124, error=f"no end within {self.timeout:g} s")
        return HealthCheckResponse(
            success=check.returncode == 0, exit_code=check.returncode,
            output=output[:MAX_OUTPUT].decode(errors="replace"), error=errors[-MAX_OUTPUT:].decode(errors="replace"),
        )  # fmt: skip


def is_served(path: str) -> bool:
    """Whether somebody listens at a socket; one that a killed daemon has left is removed."""
    if not os.path.exists(path):
        return False
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(5)
        try:
            caller.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return False
        return True


def main() -> int:
    parser = argparse.ArgumentParser("nvhcd", description="Run health checks of this node on request.")
    parser.add_argument("-config", "--config", required=True, metavar="PATH", help="the configuration, a YAML file")
    path = parser.parse_args().config
    try:
        config = configuration(path)
    except (OSError, ValueError, yaml.YAMLError) as error:
        print(f"nvhcd: {path}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    where, timeout = str(config["socket_path"]), float(str(config["timeout"]))
    logging.basicConfig(level=str(config["log_level"]).upper(), format="%(asctime)s %(levelname)s [nvhcd] %(message)s")
    if is_served(where):
        print(f"nvhcd: another daemon listens at {where}", file=sys.stderr)
        return 1
    ended = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: ended.set())
    server = grpc.server(futures.ThreadPoolExecutor(4))
    method = grpc.unary_unary_rpc_method_handler(
        HealthCheck(str(config["healthcheck_path"]), timeout),
        request_deserializer=HealthCheckRequest.FromString,
        response_serializer=HealthCheckResponse.SerializeToString,
    )
    service = grpc.method_handlers_generic_handler("nvhcd.HealthCheckService", {"RunHealthCheck": method})
    server.add_generic_rpc_handlers((service,))
    server.add_insecure_port(f"unix://{where}")
    server.start()
    os.chmod(where, 0o666)  # jobs of any user ask it; it runs nothing but the check
    log.info("listening at %s", where)
    ended.wait()
    server.stop(grace=1).wait()
    with suppress(FileNotFoundError):
        os.unlink(where)
    return 0


if __name__ == "__main__":
    sys.exit(main())
