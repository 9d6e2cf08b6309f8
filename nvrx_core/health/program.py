"""The program that runs checks, each in a process that it forks: `python -m nvrx_core.health.program CALLER`.

It has one thread, so that a fork is safe, and never calls what may hang itself. Over standard input it gets requests,
and writes its answers to standard output, one JSON object a line:

    {"settings": {...}, "checks": ["gpu", ...], "devices": []}      run these
    {"check": "gpu", ...}                                           a result, as soon as it is known
    {"done": true}                                                  the last one was before

It ends with standard input, and with the thread of its caller that has started it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NoReturn

from nvrx_core.health.probe_deadlines import KillProbe, LeaveProbe, ProbeDeadlines
from nvrx_core.health.probes import Probe, probes_of
from nvrx_core.health.result import CheckResult, Status
from nvrx_core.health.settings import HealthSettings
from nvrx_core.parsing import parse_object
from nvrx_core.process.lifeline import ParentDeathSignal, describe_exit
from nvrx_core.process.proc import read_stat, read_wchan
from nvrx_core.process.signals import ignore_sent_to_all
from nvrx_core.process.waiting import readable

__all__ = ["main"]

CHUNK: Final = 1 << 16
MAX_OUTPUT: Final = 1 << 22
"""Bytes of the results of one probe."""


class _Running:
    """A probe that runs.

    Attributes:
        probe: which one.
        pid: its process.
        fd: what to wait for: the pipe that it writes to, and once it has closed that, its pidfd. The kernel closes the
            pipe before what the probe has opened, so a process can still hang when its pipe is closed.
        output: what it has written.
        seconds: how long it had; 0.0 before it was killed.
    """

    def __init__(self, probe: Probe) -> None:
        self.probe, self.output, self.began, self.seconds = probe, b"", time.monotonic(), 0.0
        self._is_closed = False
        self.fd, writer = os.pipe()
        mine = ParentDeathSignal(os.getpid())
        try:
            self.pid = os.fork()
        except OSError:
            os.close(self.fd)
            os.close(writer)
            raise
        if self.pid == 0:
            _run_child(probe, writer, mine)
        os.close(writer)

    def advance(self) -> bool:
        """Handle that `fd` is readable: read what it has written; return whether its process has exited."""
        if self._is_closed:
            return True
        data = os.read(self.fd, CHUNK)
        if len(self.output) < MAX_OUTPUT:
            self.output += data
        if not data:
            os.close(self.fd)
            self.fd, self._is_closed = os.pidfd_open(self.pid), True
        return False

    def kill(self) -> None:
        self.seconds = time.monotonic() - self.began
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def end(self, status: int | None) -> None:
        """Write its results, and one more if it has not ended by itself.

        Args:
            status: its wait status; None for a process that is left behind.
        """
        os.close(self.fd)
        found = list[CheckResult]()
        for line in self.output.splitlines():
            with suppress(ValueError):  # a line that the kill has cut off
                found.append(CheckResult.from_json(line))
        probe = self.probe
        if self.seconds:
            late = f"it has not returned within {self.seconds:.3g} s"
            late += "" if status is not None else f"; its process {self.pid} is left behind, {_waits(self.pid)}"
            found.append(CheckResult(probe.check, probe.subject, probe.overdue, late))
        elif status != 0:
            how = f"its process was {describe_exit(status)}"
            found.append(CheckResult(probe.check, probe.subject, Status.UNKNOWN, how))
        for result in found:
            _say(result.to_json())


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until the end of standard input; return 0."""
    caller = int((sys.argv[1:] if argv is None else argv)[0])
    ParentDeathSignal(caller).set()
    ignore_sent_to_all()  # its caller decides
    left = _LeftBehind()
    for line in sys.stdin.buffer:
        request = parse_object(line)
        settings = HealthSettings.from_dict(request["settings"])
        try:
            probes = probes_of(settings, request["checks"], request["devices"])
            _run_probes(left.without(probes), settings.health_check_timeout, left)
        except OSError as error:
            _say(CheckResult("health", "", Status.UNKNOWN, f"the checks could not be run: {error}").to_json())
        _say({"done": True})
    return 0


class _LeftBehind:
    """The processes of earlier requests that SIGKILL has not ended; their probes are not started again meanwhile."""

    def __init__(self) -> None:
        self._pids = dict[tuple[str, str], int]()

    def add(self, probe: Probe, pid: int) -> None:
        """Remember one."""
        self._pids[probe.check, probe.subject] = pid

    def without(self, probes: Sequence[Probe]) -> list[Probe]:
        """Return the probes that may run, and write the results of the others."""
        for key, pid in list(self._pids.items()):
            if os.waitpid(pid, os.WNOHANG)[0]:
                del self._pids[key]
        for probe in probes:
            if (held := self._pids.get((probe.check, probe.subject))) is not None:
                reason = f"its process {held} of an earlier check has not returned yet, {_waits(held)}"
                _say(CheckResult(probe.check, probe.subject, probe.overdue, reason).to_json())
        return [probe for probe in probes if (probe.check, probe.subject) not in self._pids]


def _run_probes(probes: Sequence[Probe], timeout: float, left: _LeftBehind) -> None:
    """Run probes side by side, and write their results.

    Args:
        probes: the probes.
        timeout: seconds for all of them.
        left: gets the processes that are left behind.
    """
    running = dict[int, _Running]()
    deadlines = ProbeDeadlines(timeout, now=time.monotonic())
    for number, probe in enumerate(probes):
        try:
            running[number] = _Running(probe)
        except OSError as error:  # no process, or no descriptor, for it
            reason = f"it cannot be started: {error.strerror}"
            _say(CheckResult(probe.check, probe.subject, Status.UNKNOWN, reason).to_json())
        else:
            deadlines.started(number, probe.timeout, now=time.monotonic())
    while running:
        by_fd = {each.fd: number for number, each in running.items()}
        found = readable(by_fd, deadlines.deadline - time.monotonic())
        deadlines.woken(now=time.monotonic())
        for fd in found:
            number = by_fd[fd]
            if running[number].advance():
                deadlines.ended(number)
                ended = running.pop(number)
                ended.end(os.waitpid(ended.pid, 0)[1])
        for action in deadlines.tick(now=time.monotonic()):
            match action:
                case KillProbe(number):
                    running[number].kill()
                case LeaveProbe(number):
                    ended = running.pop(number)
                    left.add(ended.probe, ended.pid)
                    ended.end(None)


def _run_child(probe: Probe, writer: int, caller: ParentDeathSignal) -> NoReturn:
    """Run a probe in the process that was forked for it."""
    try:
        caller.set()
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):  # libraries print; the caller's streams carry results
            os.dup2(null, fd)
        for result in probe.run():
            os.write(writer, json.dumps(result.to_json()).encode() + b"\n")
    except BaseException as error:  # boundary: the process ends here, and its result says so
        text = f"{type(error).__name__}: {error}"
        failed = CheckResult(probe.check, probe.subject, Status.UNKNOWN, f"the check itself has failed: {text}")
        os.write(writer, json.dumps(failed.to_json()).encode() + b"\n")
    os._exit(0)


def _waits(pid: int) -> str:
    """Return where a process waits in the kernel."""
    stat, where = read_stat(pid), read_wchan(pid)
    return "in an unknown state" if stat is None else f"in state {stat.state}{f' ({where})' if where else ''}"


def _say(message: dict[str, object]) -> None:
    sys.stdout.buffer.write(json.dumps(message).encode() + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
