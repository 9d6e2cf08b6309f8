"""Runs checks for a caller that must not wait for what hangs: a launcher, a rank, a command.

The checks are in a program of their own (`program.py`), which is started for the first ones and kept. It answers in
time whatever its checks do. If it does not, or has ended, the outcome is unknown, and another one is started for the
next checks: also the interpreter may lie on a file system that has gone.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from nvrx_core.health.probe_deadlines import ENDS_WITHIN, PAUSE
from nvrx_core.health.probes import CHECKS
from nvrx_core.health.result import CheckResult, HealthReport, Status
from nvrx_core.health.settings import HealthSettings
from nvrx_core.parsing import parse_object
from nvrx_core.process.children import end_child, start_child
from nvrx_core.process.waiting import readable
from nvrx_core.settings.parameter import declarations

__all__ = ["ANSWERS_LATE", "HealthRunner", "check_node"]

ANSWERS_LATE: Final = 10.0
"""Seconds beyond the timeout of the checks for the start of the program, and for a busy machine."""
CHUNK: Final = 1 << 16


class HealthRunner:
    """The program that runs checks, at its caller's end.

    Args:
        settings: the settings.
        devices: numbers or UUIDs of the GPUs to check; empty for all of the node.

    Attributes:
        deadline: when `poll` is due though nothing is readable, monotonic seconds; `inf` when no checks run.
    """

    def __init__(self, settings: HealthSettings, devices: Sequence[str] = ()) -> None:
        known = declarations(HealthSettings)
        self._settings = {name: given for name, given in settings.to_dict().items() if name in known}
        self._timeout, self._devices = settings.health_check_timeout, list(devices)
        self._program: subprocess.Popen[bytes] | None = None
        self._output, self._results, self._began = b"", list[CheckResult](), 0.0
        self.deadline = math.inf

    @property
    def is_running(self) -> bool:
        """Whether the program is there, and its descriptor is open."""
        return self._program is not None

    def start(self, checks: Sequence[str]) -> int:
        """Begin checks, while no others run; return the descriptor to wait for, which is another one from time to time.

        Raises:
            OSError: when the program cannot be started.
        """
        if self._program is None:
            command = [sys.executable, "-m", "nvrx_core.health.program", str(os.getpid())]
            self._program = start_child(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._results, self._began = [], time.monotonic()
        self.deadline = self._began + self._timeout + ANSWERS_LATE
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        request = {"settings": self._settings, "checks": list(checks), "devices": self._devices}
        with suppress(BrokenPipeError):  # it has ended: `poll` says so
            self._program.stdin.write(json.dumps(request).encode() + b"\n")
            self._program.stdin.flush()
        return self._program.stdout.fileno()

    def poll(self) -> HealthReport | None:
        """Read what the program has written, without waiting; return the report when the checks are over."""
        if self._program is None:
            return None
        assert self._program.stdout is not None
        if readable([self._program.stdout], 0):
            data = os.read(self._program.stdout.fileno(), CHUNK)
            if (
                not data and self.deadline == math.inf
            ):  # it has nothing to do: another one is started for the next checks
                self.close()
                return None
            if not data:
                return self._fail("the program of the checks has ended")
            self._output += data
            *lines, self._output = self._output.split(b"\n")
            for line in lines:
                if self._take(line):
                    return self._report()
        if time.monotonic() >= self.deadline + PAUSE:  # this process was stopped, and so perhaps was the program
            self.deadline = time.monotonic() + self._timeout + ANSWERS_LATE
        if time.monotonic() >= self.deadline:
            return self._fail(f"the program of the checks (pid {self._program.pid}) does not answer")
        return None

    def close(self) -> None:
        """End the program; one that does not end is left behind."""
        if (program := self._program) is None:
            return
        self._program, self._output, self.deadline = None, b"", math.inf
        end_child(program, ENDS_WITHIN)

    def _take(self, line: bytes) -> bool:
        """Take a line of the program; return whether it was the last one."""
        try:
            if parse_object(line).get("done") is True:
                return True
            self._results.append(CheckResult.from_json(line))
        except ValueError as error:
            self._results.append(CheckResult("health", "", Status.UNKNOWN, f"the program of the checks says {error}"))
        return False

    def _report(self) -> HealthReport:
        self.deadline = math.inf
        order = {check: number for number, check in enumerate(CHECKS)}
        results = sorted(self._results, key=lambda each: (order.get(each.check, len(order)), _natural(each.subject)))
        return HealthReport(tuple(results), time.monotonic() - self._began)

    def _fail(self, reason: str) -> HealthReport:
        self._results.append(CheckResult("health", "", Status.UNKNOWN, reason))
        self.close()
        return self._report()


def _natural(text: str) -> list[tuple[int, str]]:
    """Return the key of a text for an order in which `GPU 9` is before `GPU 10`."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", text)]


def check_node(settings: HealthSettings, checks: Sequence[str], devices: Sequence[str] = ()) -> HealthReport:
    """Run checks, and wait for their results.

    Args:
        settings: the settings.
        checks: the checks, whether the settings enable them or not.
        devices: numbers or UUIDs of the GPUs to check; empty for all of the node.

    Raises:
        OSError: when no process can be started for them.
    """
    runner = HealthRunner(settings, devices)
    try:
        fd = runner.start(checks)
        while (report := runner.poll()) is None:
            readable([fd], runner.deadline - time.monotonic())
        return report
    finally:
        runner.close()
