"""Runs a training script, under `ft_launcher` or alone, and reads its output."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.process.job import Template
from tests.harness.process.launch import FORKING_LAUNCHER, ForkedProcess
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


def launched(
    folder: Path, script: str, *options: str, workers: int = 2, template: Template | None = None, **environment: str
) -> Run:
    """Run a worker under the launcher; the folder for its files is its argument.

    Both are forked from the template, if there is one: it has imported Lightning, by its name `lightning.pytorch`.
    """
    arguments = [
        "--nproc-per-node",
        str(workers),
        "--ft-warm-workers",
        "off",
        *options,
        str(WORKERS / script),
        str(folder),
    ]
    return _run(folder, "nvrx_launcher" if template is None else FORKING_LAUNCHER, arguments, template, environment)


def alone(folder: Path, script: str, *, template: Template | None = None, **environment: str) -> Run:
    """Run a worker as a process of its own."""
    module = f"{__package__}.workers.{script.removesuffix('.py')}"
    return _run(folder, module, [str(folder)], template, environment)


def _run(
    folder: Path, module: str, arguments: Sequence[str], template: Template | None, environment: dict[str, str]
) -> Run:
    ours = environment_of(folder, OMP_NUM_THREADS="1", **environment)
    if template is not None:
        process: subprocess.Popen[str] = ForkedProcess(template, module, arguments, ours)
    else:
        command, pipe = [sys.executable, "-m", module, *arguments], subprocess.PIPE
        process = subprocess.Popen(command, env=ours, stdout=pipe, stderr=pipe, text=True)
    with process:
        try:
            out, errors = process.communicate(timeout=LIMIT)
        finally:
            process.kill()
    lines = out.splitlines()
    events = [json.loads(line) for line in lines if line.startswith('{"event"')]
    rest = [line for line in lines if not line.startswith('{"event"')]
    return Run(process.returncode, events, "\n".join(rest) + errors)
