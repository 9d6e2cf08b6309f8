"""Starts launchers, and reads the output of their workers."""

from __future__ import annotations

import inspect
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.harness.process import host
from tests.harness.process.job import Forks, Template
from tests.harness.process.monitored import RUNTIME, environment_of

__all__ = [
    "FORKED_WORKER",
    "FORKING_DEMO",
    "FORKING_LAUNCHER",
    "FORKING_TORCHRUN",
    "RUN_SCRIPT",
    "TORCH_WORKERS",
    "WORKERS",
    "ForkedProcess",
    "Launch",
    "Nodes",
    "Start",
    "events_of",
    "left_in",
    "path_with_handler",
    "rendezvous_options",
]

WORKERS = Path(__file__).parent / "workers"
FORKING_LAUNCHER = "tests.harness.process.forking_launcher"
"""The launcher with workers that are forked, as a module for a template with what they import."""
FORKED_WORKER = "tests.harness.process.forked_worker"
"""A worker of a forking launcher or torchrun."""
FORKING_DEMO = "tests.harness.process.forking_demo"
"""A demo, with its arguments, whose processes are forked, as a module for a template with what they import."""
FORKING_TORCHRUN = "tests.harness.process.forking_torchrun"
"""torchrun with workers that are forked, as a module for a template with what they import."""
RUN_SCRIPT = "tests.harness.process.workers.script"
"""A script, with its arguments, as a module for a template."""
TORCH_WORKERS = frozenset((
    "hangs_of_monitors.py", "launcher_left_call.py", "launcher_meets.py", "launcher_named.py", "launcher_training.py",
    "launcher_wrapped.py", "peers_inprocess.py", "stragglers.py",
))  # fmt: skip
"""The workers that import torch: they are forked with their launcher from a template, if there is one."""


class ForkedProcess(subprocess.Popen[str]):
    """`python -m MODULE ARGUMENTS`, forked from a process that has torch imported; all else is as of `Popen`.

    Args:
        forks: that process.
        module: the module, and its `arguments`.
        environment: all of it.
        folder: that it works in, if not that of the template.
        more: of `Popen`; `stdout` and `stderr` are pipes, and these are of text, unless they are given.
    """

    def __init__(
        self,
        forks: Forks,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: str = "",
        **more: Any,
    ) -> None:
        self.forks, self.module = forks, module
        whole = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **more}
        super().__init__(arguments, env=environment, cwd=folder, **whole)

    def _execute_child(self, *arguments: Any) -> None:
        given = inspect.signature(super()._execute_child).bind(*arguments).arguments  # type: ignore[misc]
        numbers = [given[f"{which}write"] for which in ("c2p", "err")]
        outputs = [own if number == -1 else number for own, number in enumerate(numbers, 1)]
        streams = (f"/proc/{os.getpid()}/fd/{outputs[0]}", f"/proc/{os.getpid()}/fd/{outputs[1]}")
        self.pid = self.forks.fork_to(self.module, given["args"], given["env"], streams, given["cwd"])
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(given[name] for name in pipes))  # type: ignore[attr-defined]


class Launch:
    """One launcher with two workers.

    Args:
        folder: for the sockets of the launch, and for its events, which go to `events` in it.
        case: what its workers do, a function of `workers.launcher_worker`.
        options: of the launcher; it has no standby workers unless they say so.
        worker: another script, whose argument is the case.
        host: what is put before its command to run it on another host.
        launcher: the module that is run as the launcher.
        template: what it is forked from, unless it is started as a user starts it, on another host, or with another
            path, which may have a `sitecustomize`.
        environment: more variables.
    """

    def __init__(
        self,
        folder: Path,
        case: str,
        *options: str,
        worker: str = "launcher_worker.py",
        host: Sequence[str] = (),
        launcher: str = "nvrx_launcher",
        template: Template | None = None,
        **environment: str,
    ) -> None:
        self.folder = folder
        standbys = () if "--ft-warm-workers" in options else ("--ft-warm-workers", "off")
        self.arguments = ["--nproc-per-node", "2", *standbys, *options, str(WORKERS / worker), case]
        ours = {"NVRX_TEST_GATE": str(folder / "gate"), "NVRX_EVENTS_DIR": str(folder / "events"), **environment}
        variables = environment_of(folder, **ours)
        if template is not None and not host and "PYTHONPATH" not in environment:
            launcher = FORKING_LAUNCHER if (launcher, worker in TORCH_WORKERS) == ("nvrx_launcher", True) else launcher
            self.process: subprocess.Popen[str] = ForkedProcess(template, launcher, self.arguments, variables)
        else:
            command = [*host, sys.executable, "-m", launcher, *self.arguments]
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(command, env=variables, stdout=pipe, stderr=pipe, text=True)
        self.events, self.log = list[dict[str, Any]](), ""
        self._unread = b""

    def read(self, count: int, event: str, cycle: int = 0, within: float = 100.0) -> list[dict[str, Any]]:
        """Wait until its workers have said so often that this has happened in a cycle; returns what they have said.

        Its log is read meanwhile: a launcher whose log nobody reads may stand still.
        """
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        deadline, stdout, stderr = time.monotonic() + within, self.process.stdout.fileno(), self.process.stderr.fileno()
        files = [stdout, stderr]
        while len(found := [e for e in self.events if (e["event"], e["cycle"]) == (event, cycle)]) < count:
            ready = select.select(files, [], [], max(0.0, deadline - time.monotonic()))[0]
            data = {file: os.read(file, 1 << 16) for file in ready}
            self.log += data.get(stderr, b"").decode(errors="replace")
            *lines, self._unread = (self._unread + data.get(stdout, b"")).split(b"\n")
            self.events += map(json.loads, lines)
            files = [file for file in files if data.get(file, b"...")]
            if not ready or not files:
                why = f"they have not come within {within:g} s" if not ready else "its output has ended"
                raise AssertionError(
                    f"{count} of {event!r} in cycle {cycle} are awaited, {why}: {self.events}\n{self.log}"
                )
        return found

    def await_log(self, text: str, within: float = 100.0) -> None:
        """Wait until its log has this text; what it logs is read as it comes, and not by lines."""
        assert self.process.stderr is not None
        deadline, stderr = time.monotonic() + within, self.process.stderr.fileno()
        while text not in self.log:
            ready = select.select([stderr], [], [], max(0.0, deadline - time.monotonic()))[0]
            data = os.read(stderr, 1 << 16) if ready else b""
            assert data, self.log
            self.log += data.decode(errors="replace")

    def finish(self, within: float = 60.0) -> tuple[int, str]:
        """Wait for its end; returns its exit code and its log."""
        out, errors = self.process.communicate(timeout=within)
        self.take(self._unread.decode(errors="replace") + out)
        self._unread = b""
        return self.process.returncode, self.log + errors

    def take(self, out: str) -> None:
        """Parse the events in the workers' output."""
        self.events += [json.loads(line) for line in out.splitlines() if line.startswith("{")]

    def pids(self) -> list[int]:
        """Return the processes that its workers have named."""
        return [each[key] for each in self.events for key in ("pid", "child") if key in each]

    def close(self) -> None:
        """Kill it if it is still there, and close its pipes."""
        self.process.kill()
        with self.process:
            pass


def assert_go_on(jobs: Sequence[Launch], cycles: set[int]) -> None:
    """Let the workers of two launchers end, which wait for the gate: all have completed, in these cycles."""
    (jobs[0].folder / "gate").touch()
    ends = [job.finish() for job in jobs]
    assert [code for code, _ in ends] == [0, 0], ends
    assert {each["cycle"] for job in jobs for each in job.events} == cycles


def left_in(folder: Path) -> list[int]:
    """Return the processes of launches in a folder, such as monitors and guardians, by their environment."""
    return [pid for pid in host.tagged(f"{folder}/run", RUNTIME) if host.alive(pid)]


def events_of(folder: Path, event: str) -> list[dict[str, Any]]:
    """Return the events of a kind that launches in a folder have written, in the order in which they happened."""
    lines = [json.loads(line) for path in (folder / "events").iterdir() for line in path.read_text().splitlines()]
    return sorted((line for line in lines if line["event"] == event), key=lambda line: float(line["monotonic"]))


def rendezvous_options(endpoint: str = "") -> tuple[str, ...]:
    """Return the rendezvous options of launchers, with a free port unless an endpoint is given."""
    return ("--rdzv-endpoint", endpoint or f"127.0.0.1:{host.free_ports()}", "--rdzv-id", "job")


Start = Callable[..., Launch]
"""Starts a launcher: the arguments of `Launch` without its folder."""
Nodes = Callable[..., list[Launch]]
"""Starts several, given their number first."""


def path_with_handler(folder: Path) -> str:
    """Return a PYTHONPATH on which a user's rendezvous handler, `own`, is installed in a folder."""
    plug_in = folder / "site" / "own-1.0.dist-info"
    plug_in.mkdir(parents=True)
    (plug_in / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    named = "[torchrun.handlers]\nown = tests.harness.process.workers.users_rendezvous:creator\n"
    (plug_in / "entry_points.txt").write_text(named)
    return os.pathsep.join([str(plug_in.parent), *sys.path])
