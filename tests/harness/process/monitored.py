"""Starts ranks that are watched by rank monitors, and reads what they print."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["RUNTIME", "MonitoredRank", "children", "environment_of", "is_monitor", "monitors_of"]

WORKER = "tests.harness.process.workers.monitored"
RUNTIME = "NVRX_RUNTIME_DIR"
LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_", "TORCHELASTIC_", "FT_", "NVRX_", "SLURM_")


class MonitoredRank:
    """One process.

    Args:
        folder: for the sockets of monitors.
        case: what it does, a function of the worker.
        config: the settings of its own monitor; None: it connects to the one that its environment names.
        environment: more variables.
    """

    def __init__(self, folder: Path, case: str, config: Mapping[str, Any] | None, **environment: str) -> None:
        self.folder = folder
        arguments = [] if config is None else [json.dumps(config)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", WORKER, case, *arguments],
            env=environment_of(folder, **{"RANK": "0", **environment}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines = list[dict[str, Any]]()

    def tell(self) -> None:
        """Let it continue."""
        assert self.process.stdin is not None
        self.process.stdin.write("x")
        self.process.stdin.flush()

    @property
    def pid(self) -> int:
        return self.process.pid

    def read(self, event: str) -> dict[str, Any]:
        """Wait for its next line of this kind."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(json.loads(line))
            if self.lines[-1]["event"] == event:
                return self.lines[-1]
        raise AssertionError(f"no {event!r} in {self.lines}: {self.finish()[1]}")

    def finish(self, within: float = 30.0) -> tuple[int, str]:
        """Wait for its end; returns its exit code and what it has written to stderr."""
        _, errors = self.process.communicate(timeout=within)
        return self.process.returncode, errors

    def close(self) -> None:
        """Kill it if it is still there, and close its pipes."""
        self.process.kill()
        with self.process:
            pass

    def monitors(self) -> list[int]:
        """Return the pids of the processes of its own monitor: the fork server, then the monitor."""
        return monitors_of(self.pid)


def environment_of(folder: Path, **more: str) -> dict[str, str]:
    """The environment of this process without the variables of a job; sockets of monitors are in a folder."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHER)}
    return {**clean, "PYTHONPATH": os.pathsep.join(sys.path), RUNTIME: str(folder / "run"), **more}


def monitors_of(pid: int) -> list[int]:
    """Return the pids of a process's own monitor: the fork server, then the monitor."""
    servers = children(pid)
    return [*servers, *(worker for server in servers for worker in children(server))]


def children(pid: int) -> list[int]:
    """Return the children of a process that are rank monitors."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(child) for child in task.read_text().split() if is_monitor(int(child))]
    return found


def is_monitor(pid: int) -> bool:
    try:
        return b"nvrx_core.fault_tolerance" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
