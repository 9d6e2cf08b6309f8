"""What follows from the health checks of a node: when it may join, when it is checked, when it is excluded. Pure.

Before a node joins a rendezvous, one failed check is enough to keep it out. During training it takes `failures` reports
in a row: one that fails once and is healthy the next time was a transient.

A check reads the state of the moment. A counter that has risen since the first reading, or a link that was active once
and is not, is a failure as well; `Baseline` remembers the readings.
"""

from __future__ import annotations

import math

from nvrx_core.health.result import CheckResult, HealthReport, Status
from nvrx_core.values import value

__all__ = ["Baseline", "Exclude", "HealthAction", "HealthPolicy", "MayJoin", "RunChecks", "Warn"]


@value
class RunChecks:
    """Run the checks and report to `checked`; all of them, or those that also run during training."""

    is_complete: bool


@value
class MayJoin:
    """The node is healthy, as far as is known, and may join."""


@value
class Warn:
    """Say something that changes nothing yet."""

    reason: str


@value
class Exclude:
    """The node is unhealthy and leaves the job."""

    reason: str


HealthAction = RunChecks | MayJoin | Warn | Exclude


class Baseline:
    """The readings that later ones are compared with: the lowest of a counter, the highest of a level."""

    def __init__(self) -> None:
        self._counters, self._levels = dict[tuple[str, str, str], int](), dict[tuple[str, str, str], int]()

    def judge(self, report: HealthReport) -> HealthReport:
        """Return the report with a failure for each reading that is worse than before."""
        return HealthReport(tuple(map(self._judged, report.results)), report.seconds)

    def _judged(self, result: CheckResult) -> CheckResult:
        problems = list[str]()
        for name, reading in result.counters:
            key = (result.check, result.subject, name)
            lowest = self._counters[key] = min(reading, self._counters.get(key, reading))
            if reading > lowest:
                problems.append(f"{name} has risen from {lowest} to {reading}")
        for name, reading in result.levels:
            key = (result.check, result.subject, name)
            highest = self._levels[key] = max(reading, self._levels.get(key, reading))
            if reading < highest:
                problems.append(f"{name} was {highest} and is {reading}")
        if not problems or result.status is Status.UNHEALTHY:
            return result
        return CheckResult(
            result.check, result.subject, Status.UNHEALTHY, "; ".join(problems), counters=result.counters,
            levels=result.levels,
        )  # fmt: skip


class HealthPolicy:
    """Decides about one node.

    Args:
        interval: seconds from the end of one check during training to the next.
        failures: unhealthy reports in a row that exclude the node during training.
        strict: a check whose outcome is unknown has failed.
        is_monitored: there are checks to run during training.

    Attributes:
        deadline: when `tick` is due, monotonic seconds.
    """

    def __init__(self, *, interval: float, failures: int, strict: bool, is_monitored: bool) -> None:
        self._interval, self._needed, self._strict, self._is_monitored = interval, failures, strict, is_monitored
        self._baseline, self._in_a_row = Baseline(), 0
        self._waits_to_join, self._is_running, self._is_excluded = False, False, False
        self._is_complete, self._told = False, frozenset[str]()
        self.deadline = math.inf

    def wants_to_join(self) -> tuple[HealthAction, ...]:
        """Handle that the node is ready for a rendezvous; checks of before do not count."""
        if self._is_excluded or self._waits_to_join:
            return ()
        self._waits_to_join = True
        return () if self._is_running else self._run(is_complete=True)

    def tick(self, *, now: float) -> tuple[HealthAction, ...]:
        """Return the checks that are due."""
        if now < self.deadline or self._is_running:
            return ()
        return self._run(is_complete=False)

    def checked(self, report: HealthReport, *, now: float) -> tuple[HealthAction, ...]:
        """Handle the results of `RunChecks`."""
        self._is_running = False
        if self._is_excluded:
            return ()
        if self._waits_to_join and not self._is_complete:  # it began before the node was ready
            return self._run(is_complete=True)
        self.deadline = now + self._interval if self._is_monitored else math.inf
        report = self._baseline.judge(report)
        failures, unknown = report.failures(strict=self._strict), self._news(report)
        if not failures:
            if report.status(strict=self._strict) is Status.HEALTHY:  # where nothing is known, nothing has changed
                self._in_a_row = 0
            joins = (MayJoin(),) if self._waits_to_join else ()
            self._waits_to_join = False
            return (*unknown, *joins)
        reason = "; ".join(map(str, failures))
        self._in_a_row += 1
        if self._waits_to_join or self._in_a_row >= self._needed:
            self._is_excluded, self._waits_to_join, self.deadline = True, False, math.inf
            return (*unknown, Exclude(reason))
        return (*unknown, Warn(f"check {self._in_a_row} of {self._needed} that exclude this node: {reason}"))

    def _run(self, *, is_complete: bool) -> tuple[HealthAction, ...]:
        self._is_running, self._is_complete, self.deadline = True, is_complete, math.inf
        return (RunChecks(is_complete),)

    def _news(self, report: HealthReport) -> tuple[HealthAction, ...]:
        """Return a warning for each reason for which outcomes are unknown, once."""
        unknown = [each for each in report.results if each.status is Status.UNKNOWN]
        fresh = dict[str, list[str]]()
        for each in unknown:
            if not each.is_failure(strict=self._strict) and each.reason not in self._told:
                fresh.setdefault(each.reason, []).append(" ".join(filter(None, (each.check, each.subject))))
        self._told |= fresh.keys()
        return tuple(Warn(f"unknown: {', '.join(names)}: {reason}") for reason, names in fresh.items())
