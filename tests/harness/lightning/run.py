"""Runs a training script, under `ft_launcher` or alone, and reads its output."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.process.monitored import environment_of

__all__ = ["Run", "alone", "launched"]

WORKERS = Path(__file__).parent / "workers"
LIMIT = 150


@dataclass(frozen=True)
class Run:
    """The results of a job.

    Attributes:
        code: its exit code.
        events: the events that its processes printed.
        log: the rest of its output.
    """

    code: int
    events: list[dict[str, Any]]
    log: str

    def said(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        """Return the lines of this kind, by rank."""
        found = [each for each in self.events if each["event"] == event and fields.items() <= each.items()]
        return sorted(found, key=lambda each: int(each["rank"]))


def launched(folder: Path, script: str, *options: str, workers: int = 2, **environment: str) -> Run:
    """Run a worker under the launcher; the folder for its files is its argument."""
    launcher = ["-m", "nvrx_launcher", "--nproc-per-node", str(workers), *options]
    return _run(folder, [*launcher, str(WORKERS / script), str(folder)], environment)


def alone(folder: Path, script: str, **environment: str) -> Run:
    """Run a worker as a process of its own."""
    return _run(folder, [str(WORKERS / script), str(folder)], environment)


def _run(folder: Path, arguments: list[str], environment: dict[str, str]) -> Run:
    ours = environment_of(folder, OMP_NUM_THREADS="1", **environment)
    done = subprocess.run(
        [sys.executable, *arguments], env=ours, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    lines = done.stdout.splitlines()
    events = [json.loads(line) for line in lines if line.startswith('{"event"')]
    rest = [line for line in lines if not line.startswith('{"event"')]
    return Run(done.returncode, events, "\n".join(rest) + done.stderr)
