"""The results of health checks. Pure.

A result is healthy, unhealthy or unknown, with a reason. Unknown takes no node out, unless checks are strict. Even then
it does not where there is nothing to check: no driver, no mount, no service (`is_absent`).
"""

from __future__ import annotations

import enum
import json
from typing import Final

from nvrx_core.parsing import integer, parse_object, string
from nvrx_core.values import value

__all__ = ["CheckResult", "HealthReport", "Status"]

MAX_TEXT: Final = 4096
MAX_READINGS: Final = 1 << 14


class Status(enum.Enum):
    """The outcome of a check."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"


@value
class CheckResult:
    """What one check has found.

    Attributes:
        check: the check: gpu, nvlink, nic, storage or service.
        subject: what was checked, such as `GPU 3` or a path; "" for the check as a whole.
        status: the outcome.
        reason: why, in a few words.
        is_absent: unknown because there is nothing to check.
        counters: readings that a healthy node does not increase, by name.
        levels: readings that a healthy node does not decrease, by name, such as 1 for an active link.
    """

    check: str
    subject: str
    status: Status
    reason: str
    is_absent: bool = False
    counters: tuple[tuple[str, int], ...] = ()
    levels: tuple[tuple[str, int], ...] = ()

    def is_failure(self, *, strict: bool) -> bool:
        """Return whether the node counts as unhealthy by this result."""
        return self.status is Status.UNHEALTHY or (strict and self.status is Status.UNKNOWN and not self.is_absent)

    def __str__(self) -> str:
        return f"{' '.join(filter(None, (self.check, self.subject)))}: {self.reason}"

    def to_json(self) -> dict[str, object]:
        """Return the result as a JSON object."""
        return {
            "check": self.check, "subject": self.subject, "status": self.status.value, "reason": self.reason,
            "is_absent": self.is_absent, "counters": dict(self.counters), "levels": dict(self.levels),
        }  # fmt: skip

    @classmethod
    def from_json(cls, line: str | bytes) -> CheckResult:
        """Return the result that `to_json` of another process gave.

        Raises:
            ValueError: when the text is none.
        """
        found = parse_object(line)
        return cls(
            check=string(found.get("check"))[:MAX_TEXT], subject=string(found.get("subject"))[:MAX_TEXT],
            status=Status(found.get("status")), reason=string(found.get("reason"))[:MAX_TEXT],
            is_absent=found.get("is_absent") is True, counters=_readings(found.get("counters")),
            levels=_readings(found.get("levels")),
        )  # fmt: skip


def _readings(found: object) -> tuple[tuple[str, int], ...]:
    if not isinstance(found, dict) or len(found) > MAX_READINGS:
        raise ValueError("readings are an object of whole numbers")
    return tuple((name, integer(each)) for name, each in found.items())


@value
class HealthReport:
    """The results of all checks of a node.

    Attributes:
        results: the results, in the order of the checks.
        seconds: how long the checks took.
    """

    results: tuple[CheckResult, ...]
    seconds: float = 0.0

    def failures(self, *, strict: bool) -> tuple[CheckResult, ...]:
        """Return the results by which the node counts as unhealthy."""
        return tuple(each for each in self.results if each.is_failure(strict=strict))

    def status(self, *, strict: bool) -> Status:
        """Return the outcome for the node: unknown only if nothing is known to be healthy."""
        if self.failures(strict=strict):
            return Status.UNHEALTHY
        is_any_healthy = any(each.status is Status.HEALTHY for each in self.results)
        return Status.HEALTHY if is_any_healthy else Status.UNKNOWN

    def to_json(self, *, strict: bool) -> str:
        """Return the report as one line of JSON."""
        results = [each.to_json() for each in self.results]
        status = self.status(strict=strict).value
        return json.dumps({"schema": 1, "status": status, "seconds": round(self.seconds, 3), "results": results})
