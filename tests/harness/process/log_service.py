"""Log servers, leaves and nodes as processes of a test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from nvrx_core.logs.frames import frame
from nvrx_core.process.waiting import readable

STARTS_WITHIN = 30.0
ENDS_WITHIN = 60.0
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "GRPC_VERBOSITY": "NONE"}
TOKEN = "0123456789abcdef0123456789abcdef"


def token_file(folder: Path, token: str = TOKEN) -> Path:
    path = folder / f"token-{token[:4]}"
    path.write_text(token)
    return path


class Server:
    """A log server, or a leaf of one."""

    def __init__(self, folder: Path, *options: str, listen: str = "127.0.0.1:0", within: float = 10.0) -> None:
        self.log = (folder / "server-log.txt").open("ab")
        command = [
            sys.executable, "-m", "nvrx_core.logs.server", "--listen", listen, "--within", str(within),
            "--token-file", str(token_file(folder)), *options,
        ]  # fmt: skip
        self.process = subprocess.Popen(
            command, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log
        )
        assert self.process.stdout is not None
        self.endpoint = ""
        if readable([self.process.stdout], STARTS_WITHIN):
            self.endpoint = self.process.stdout.readline().decode().strip()
        if not self.endpoint:
            self.kill()
            raise AssertionError(f"the server does not start: {self.said()}")

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> int:
        """Let it end by itself; return its exit code."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        code = self.process.wait(ENDS_WITHIN)
        self.process.stdout.close()
        self.log.close()
        return code

    def said(self) -> str:
        return Path(self.log.name).read_text()


class Node:
    """The process of a node, to which a test gives lines."""

    def __init__(self, folder: Path, endpoint: str, name: str = "node0", *options: str, within: float = 20.0) -> None:
        self.log = (folder / f"{name}-log.txt").open("ab")
        command = [
            sys.executable, "-m", "nvrx_core.logs.node", "--endpoint", endpoint, "--node", name,
            "--within", str(within), "--token-file", str(token_file(folder)), *options,
        ]  # fmt: skip
        self.process = subprocess.Popen(command, env=ENVIRONMENT, stdin=subprocess.PIPE, stderr=self.log)

    def put(self, path: Path | str, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(frame(str(path), data))
        self.process.stdin.flush()

    def end(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        code = self.process.wait(ENDS_WITHIN)
        self.log.close()
        return code

    def said(self) -> str:
        return Path(self.log.name).read_text()


def lines(count: int, first: int = 0, rank: int = 0) -> bytes:
    return b"".join(b"%d: line %d of rank %d\n" % (rank, number, rank) for number in range(first, first + count))


def ask(case: str, endpoint: str, request: object = None) -> Any:
    """Return the answer of a client of its own (`log_client`)."""
    command = [sys.executable, "-m", "tests.harness.process.log_client", case, endpoint]
    found = subprocess.run(
        command, input=json.dumps(request), env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=True
    )  # fmt: skip
    return json.loads(found.stdout)


class Service:
    """Starts the processes of a test, and ends those that are left."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._started = folder, list[Server | Node]()

    def server(self, *options: str, listen: str = "127.0.0.1:0", within: float = 10.0) -> Server:
        self._started.append(found := Server(self._folder, *options, listen=listen, within=within))
        return found

    def node(self, endpoint: str, name: str = "node0", *options: str, within: float = 20.0) -> Node:
        self._started.append(found := Node(self._folder, endpoint, name, *options, within=within))
        return found

    def close(self) -> None:
        for each in self._started:
            if each.process.poll() is None:
                each.process.kill()
                each.end()
