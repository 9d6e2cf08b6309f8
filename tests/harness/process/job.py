"""A distributed job of real processes: launched, watched, and brought to an end within a hard limit.

Ranks come from the template (or from any command, for torchrun); the store is a process of its own, so that rank 0 can
be a target like any other, or lives in rank 0. The ranks' records and the wrapper's events tell what happened; `oracle`
checks it.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
import uuid
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from nvrx_core.testing import failpoints

from . import host
from .template import ROOM
from .workers.plan import INJECTIONS, Plan

__all__ = ["LIVE_TEMPLATE", "Forks", "Job", "Template"]

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(__file__).with_name("template.py")
LIVE_TEMPLATE = Path(__file__).with_name("live_template.py")
PATHS = (ROOT, ROOT / "integrations", ROOT / "launcher")
TRAIN = "tests.harness.process.workers.train"
_INHERITED = (
    "PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "NVRX_TEST_DELAY_RANK", "NVRX_TEST_WHOLE_END"
)  # fmt: skip
Line = dict[str, Any]


class Forks:
    """Asks a process that serves it (`template.serve`) for copies of itself.

    Args:
        connection: to that process; it is this object's.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._answers = connection, connection.makefile("r")
        if not self._answers.readline():
            raise RuntimeError("the template process ended before it was ready")

    def fork(self, module: str, arguments: Sequence[str], environment: Mapping[str, str], output: Path) -> int:
        """Runs a module in a process that has torch imported. Its output goes to `output`.out and .err."""
        return self.fork_to(module, arguments, environment, (f"{output}.out", f"{output}.err"))

    def fork_to(
        self,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        streams: tuple[str, str],
        folder: str = "",
    ) -> int:
        """The same, with files, or pipes in /proc, for its stdout and stderr, and perhaps a folder that it works in."""
        request = {"module": module, "arguments": list(arguments), "environment": dict(environment), "folder": folder}
        request |= {"stdout": streams[0], "stderr": streams[1]}
        self._connection.sendall(f"{json.dumps(request)}\n".encode())
        return int(self._answers.readline())


class Template(Forks):
    """The template process, and the tag that all processes of this test session carry."""

    def __init__(self, program: Path = PROGRAM) -> None:
        self.tag = uuid.uuid4().hex
        ours, theirs = socket.socketpair()
        with theirs:
            os.set_inheritable(theirs.fileno(), True)
            arguments = [sys.executable, str(program), str(theirs.fileno())]
            environment = {**self.environment(), ROOM: "." * (64 << 10)}
            self.pid = os.posix_spawn(sys.executable, arguments, environment)
        super().__init__(ours)

    def environment(self) -> dict[str, str]:
        """The base environment of every process of a job."""
        kept = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        single = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        return {**kept, **single, "PYTHONPATH": os.pathsep.join(map(str, PATHS)), host.TAG: self.tag}

    def leftovers(self) -> dict[int, str]:
        """The surviving processes of any job."""
        host.reap_orphans([self.pid])
        return {pid: command for pid, command in host.tagged(self.tag).items() if pid != self.pid}

    def sweep(self) -> None:
        """Kill the surviving processes."""
        while left := self.leftovers():
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    def close(self) -> None:
        self.sweep()
        self._answers.close()
        self._connection.close()
        os.waitpid(self.pid, 0)


class Job:
    """One job. `start` it, `finish` it, then ask the oracle."""

    def __init__(self, template: Template, directory: Path, plan: Plan, *, world: int = 3, store: bool = True) -> None:
        self.template, self.directory, self.plan, self.world, self.own_store = template, directory, plan, world, store
        self.port = host.free_ports()
        self.pids: dict[int, int] = {}
        self.codes: dict[int, int] = {}
        self.store_pid: int | None = None
        self.endpoint: str | None = None
        self.others = set[int]()  # processes of another job, which may outlive this one
        self.routes: dict[int, str] = {}  # initial rank: the endpoint by which it reaches the store
        for name in ("records", "events", "checkpoints"):
            (directory / name).mkdir(parents=True)
        self.temporary = Path(tempfile.mkdtemp(prefix="nvrx-job-", dir="/tmp"))
        """TMPDIR of the job. Its path is short: multiprocessing puts sockets there, whose paths have 107 characters."""
        self.clear = weakref.finalize(self, shutil.rmtree, self.temporary, ignore_errors=True)
        """Removes it, once."""

    def environment(self, rank: int | None = None, **more: str | None) -> dict[str, str]:
        """A rank's environment; a value of None leaves the variable out."""
        ours: dict[str, str | None] = {
            **self.template.environment(),
            **self.plan.environment(),
            "NVRX_TEST_RECORDS": str(self.directory / "records"),
            INJECTIONS: str(self.directory / "injections"),
            "NVRX_EVENTS_DIR": str(self.directory / "events"),
            "NVRX_STORE_ENDPOINT": self.endpoint if rank is None else self.routes.get(rank, self.endpoint),
            "NVRX_TEST_CHECKPOINTS": str(self.directory / "checkpoints"),
            "TMPDIR": str(self.temporary),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port),
        }
        if rank is not None:
            ours |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(self.world)}
        return {name: value for name, value in (ours | more).items() if value is not None}

    def start(self, module: str = TRAIN, **more: str | None) -> Job:
        if self.own_store and self.store_pid is None:
            self.start_store()
        for rank in range(self.world):
            environment = self.environment(rank, **more)
            self.pids[rank] = self.template.fork(module, [], environment, self.directory / f"rank-{rank}")
        return self

    def start_store(self) -> None:
        output = self.directory / "store"
        arguments = ["--host", "127.0.0.1", "--port", "0"]
        self.store_pid = self.template.fork("nvrx_core.store", arguments, self.environment(), output)
        said = output.with_suffix(".out")
        if not host.eventually(lambda: said.exists() and "\n" in said.read_text(), 20):
            raise AssertionError(f"the store did not print its endpoint: {self.errors('store')}")
        self.endpoint = said.read_text().splitlines()[0]

    def run_command(self, name: str, *arguments: str, key: int = -1, **more: str) -> None:
        """Start another program, such as torchrun, in place of the ranks; `key` names it in `codes`."""
        error = os.open(self.directory / f"{name}.err", os.O_WRONLY | os.O_CREAT, 0o600)
        actions = [(os.POSIX_SPAWN_DUP2, error, 1), (os.POSIX_SPAWN_DUP2, error, 2)]
        environment = self.environment(**more)
        self.pids[key] = os.posix_spawn(sys.executable, [sys.executable, *arguments], environment, file_actions=actions)
        os.close(error)

    # What happened

    def lines(self, what: str, **fields: object) -> list[Line]:
        """The ranks' own records of one kind, in the order of time; each with its rank as `initial_rank`."""
        lines = [
            {"initial_rank": int(path.stem.removeprefix("rank-")), **line}
            for path in (self.directory / "records").iterdir()
            for line in _json_lines(path)
        ]
        return _select(sorted(lines, key=lambda line: line["at"]), {"what": what} if what else {}, fields)

    def events(self, event: str = "", **fields: object) -> list[Line]:
        """The wrapper's events of one kind, in the order of time."""
        lines = [line for path in (self.directory / "events").iterdir() for line in _json_lines(path)]
        return _select(sorted(lines, key=lambda line: line["monotonic"]), {"event": event} if event else {}, fields)

    def injections(self) -> list[str]:
        """The failpoints at which a fault was injected, in the notation of a schedule."""
        return [line["hit"] for line in failpoints.read_record(self.directory / "injections")]

    def errors(self, name: int | str) -> str:
        """What a rank, or another process of the job, wrote to stderr."""
        path = self.directory / f"{f'rank-{name}' if isinstance(name, int) else name}.err"
        return path.read_text(errors="replace") if path.exists() else ""

    def await_line(self, what: str, seconds: float = 30, **fields: object) -> Line:
        """Waits for a record."""
        if not host.eventually(lambda: self.lines(what, **fields), seconds):
            raise AssertionError(f"no {what} {fields} within {seconds} s")
        return self.lines(what, **fields)[0]

    # The end

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        os.kill(self.pids[rank], number)

    def finish(self, limit: float = 40) -> Job:
        """Waits for all ranks; past the limit it prints their stacks to their stderr, kills them and fails."""
        self._await(set(self.pids) - set(self.codes), limit)
        if running := sorted(set(self.pids) - set(self.codes)):
            self._dump_stacks(running)
            self.template.sweep()
            raise AssertionError(f"ranks {running} still run after {limit} s")
        return self.stop_store()

    def finish_ranks(self, limit: float = 5, ranks: Iterable[int] | None = None) -> None:
        """Waits for the ranks alone, or for some of them."""
        self._await(set(self.pids if ranks is None else ranks) - set(self.codes), limit)

    def _await(self, ranks: Iterable[int], limit: float) -> None:
        end = time.monotonic() + limit
        with ExitStack() as stack:
            selector = stack.enter_context(selectors.DefaultSelector())
            for rank in ranks:
                descriptor = os.pidfd_open(self.pids[rank])
                stack.callback(os.close, descriptor)
                selector.register(descriptor, selectors.EVENT_READ, rank)
            while selector.get_map() and (left := end - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    selector.unregister(key.fd)
                    self.codes[key.data] = os.waitstatus_to_exitcode(os.waitpid(self.pids[key.data], 0)[1])

    def _dump_stacks(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            with suppress(ProcessLookupError):
                os.kill(self.pids[rank], signal.SIGUSR1)
        time.sleep(0.5)

    def stop_store(self) -> Job:
        """Kill the store; its regular shutdown has its own test."""
        if self.store_pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.store_pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(self.store_pid, 0)
        return self


def _select(lines: Iterable[Line], *wanted: Mapping[str, object]) -> list[Line]:
    fields = {name: value for mapping in wanted for name, value in mapping.items()}
    return [line for line in lines if all(line.get(name) == value for name, value in fields.items())]


def _json_lines(path: Path) -> list[Line]:
    """The complete lines of a file that may be growing."""
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]
