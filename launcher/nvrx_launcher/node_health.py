"""The health of this node: checked before it joins a rendezvous and during training, by what `HealthPolicy` decides.

The checks run in a program of their own, so that the launcher waits for none of them. A node for which there is nothing
to check starts none, and joins at once.
"""

from __future__ import annotations

import logging
import math
import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from nvrx_core.errors import ConfigurationError
from nvrx_core.health.policy import Exclude, HealthAction, HealthPolicy, MayJoin, RunChecks, Warn
from nvrx_core.health.probes import MONITORED, enabled_checks
from nvrx_core.health.result import CheckResult, HealthReport, Status
from nvrx_core.health.runner import ANSWERS_LATE, HealthRunner
from nvrx_core.health.settings import HealthSettings, check_endpoint
from nvrx_core.process.children import end_child, start_child, watch_child
from nvrx_core.process.lifeline import describe_exit
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.watched_checks import WatchedChecks

__all__ = ["NodeHealth"]

log = logging.getLogger("nvrx_launcher")
EXCLUDE_TIMEOUT: Final = 30.0
"""Seconds that the command of `on_exclude` has, for which the launcher waits."""
KILL_TIMEOUT: Final = 1.0
MAX_REASON: Final = 1000
"""Characters of a reason in a variable."""


class NodeHealth:
    """Checks a node, and keeps it out of the job when it is unhealthy.

    Args:
        loop: the event loop that watches the checks.
        settings: the settings.
        environ: the environment of the command that is run when the node is excluded.

    Attributes:
        timeout: seconds that the checks before a rendezvous may take; 0 for none.

    Raises:
        ConfigurationError: when a setting cannot be carried out.
    """

    def __init__(self, loop: EventLoop, settings: HealthSettings, environ: Mapping[str, str]) -> None:
        check_endpoint(settings.node_health_check_endpoint)
        self._loop, self._environ = loop, environ
        self._command = _split(settings.on_exclude)
        self._checks = enabled_checks(settings)
        self._monitored = tuple(check for check in MONITORED if check in self._checks)
        self._running = WatchedChecks(loop, HealthRunner(settings), self._checked)
        self._policy = HealthPolicy(
            interval=settings.node_health_check_interval, failures=settings.health_check_failures,
            strict=settings.health_strict, is_monitored=bool(self._monitored),
        )  # fmt: skip
        self.timeout = settings.health_check_timeout + ANSWERS_LATE if self._checks else 0.0
        self._events = list[MayJoin | Exclude]()
        self._excluding: subprocess.Popen[bytes] | None = None
        self._excluding_ended, self._excluding_until, self._is_excluded = -1, math.inf, False

    @property
    def deadline(self) -> float:
        """When `tick` is due, monotonic seconds."""
        if self._events:
            return -math.inf
        return min(self._policy.deadline, self._running.deadline, self._excluding_until)

    @property
    def is_excluding(self) -> bool:
        """Whether the command runs that is run when the node is excluded."""
        return self._excluding is not None

    def begin(self) -> bool:
        """Begin the checks before a rendezvous; return whether there are any, whose outcome is one of the `events`."""
        self._carry_out(self._policy.wants_to_join() if self._checks else ())
        return bool(self._checks)

    def events(self) -> list[MayJoin | Exclude]:
        """Return what has been decided since the last call."""
        events, self._events = self._events, []
        return events

    def excluded(self, reason: str) -> None:
        """Run the command of the settings, once."""
        if self._is_excluded or not self._command:
            return
        self._is_excluded = True
        variables = {"NVRX_EXCLUDED_NODE": socket.gethostname(), "NVRX_EXCLUDE_REASON": reason[:MAX_REASON]}
        try:
            excluding = start_child(
                self._command, env={**self._environ, **variables}, stdin=subprocess.DEVNULL, start_new_session=True
            )
            self._excluding_ended, self._excluding = watch_child(excluding), excluding
        except OSError as error:
            log.error("the command of --ft-on-exclude cannot be run: %s", error)
            return
        self._excluding_until = time.monotonic() + EXCLUDE_TIMEOUT
        self._loop.watch(self._excluding_ended, self._command_ended)

    def tick(self, *, now: float) -> None:
        """Run the checks that are due; `now` is what the loop's turn has returned."""
        self._running.tick(now=now)
        self._carry_out(self._policy.tick(now=now))
        if now >= self._excluding_until:
            log.error("the command of --ft-on-exclude has not ended within %g s and is killed", EXCLUDE_TIMEOUT)
            self._end_command()

    def close(self) -> None:
        """End the checks."""
        self._running.close()
        if self._excluding is not None:
            self._end_command()

    def _carry_out(self, actions: tuple[HealthAction, ...]) -> None:
        for action in actions:
            match action:
                case RunChecks(is_complete):
                    self._start(self._checks if is_complete else self._monitored)
                case Warn(reason):
                    log.warning("health of this node: %s", reason)
                case MayJoin() | Exclude():
                    self._events.append(action)

    def _start(self, checks: tuple[str, ...]) -> None:
        try:
            self._running.start(checks)
        except OSError as error:
            unknown = CheckResult("health", "", Status.UNKNOWN, f"the checks cannot be run: {error.strerror}")
            self._checked(HealthReport((unknown,)), time.monotonic())

    def _checked(self, report: HealthReport, now: float) -> None:
        self._carry_out(self._policy.checked(report, now=now))

    def _command_ended(self) -> None:
        assert self._excluding is not None
        if (code := self._excluding.wait(0)) != 0:
            log.error("the command of --ft-on-exclude %s", describe_exit(code << 8 if code > 0 else -code))
        self._end_command()

    def _end_command(self) -> None:
        command, self._excluding, self._excluding_until = self._excluding, None, math.inf
        assert command is not None
        self._loop.forget(self._excluding_ended)
        os.close(self._excluding_ended)
        if command.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(command.pid, signal.SIGKILL)
        end_child(command, KILL_TIMEOUT)


def _split(command: str | None) -> list[str]:
    """Return the words of a command.

    Raises:
        ConfigurationError: when a quotation is open.
    """
    try:
        return shlex.split(command or "")
    except ValueError as error:
        advice = "quote it as for a shell"
        raise ConfigurationError("health checks", "--ft-on-exclude", f"{command!r}: {error}", advice) from None
