"""What the answer of the node health service means. Pure.

A failure that the answer states makes the node unhealthy: `success` is false, or `fail_count` is not 0. An answer that
says that the check has passed, and whose output cannot be read, leaves the outcome unknown.
"""

from __future__ import annotations

from typing import Any, Final

from nvrx_core.health.result import CheckResult, Status
from nvrx_core.parsing import parse_json

__all__ = ["SERVICE", "judge_answer"]

SERVICE: Final = "service"
SHOWN: Final = 200
"""Characters of a text of the service."""
NAMED: Final = 10
"""Failed checks in a reason."""


def judge_answer(*, success: bool, exit_code: int, output: str, error: str) -> CheckResult:
    """Return what an answer says about the node.

    Args:
        success: the check has run and has passed.
        exit_code: the exit code of the check.
        output: what it has printed: a JSON object with `fail_count` and perhaps `failed_checks`.
        error: why it could not run, or what it has said of that.
    """
    found = _object(output)
    count = found.get("fail_count")
    is_count = isinstance(count, int) and not isinstance(count, bool) and count >= 0
    if is_count and count:
        return _result(Status.UNHEALTHY, f"{count} checks have failed{_names(found.get('failed_checks'))}")
    if not success:
        said = _shown(error or output)
        return _result(
            Status.UNHEALTHY, f"the check has failed with exit code {exit_code}{f': {said}' if said else ''}"
        )
    if is_count:
        return _result(Status.HEALTHY, "no check has failed")
    return _result(Status.UNKNOWN, f"the answer cannot be read: {_shown(output)!r} is no JSON object with a fail_count")


def _result(status: Status, reason: str) -> CheckResult:
    return CheckResult(SERVICE, "", status, reason)


def _object(output: str) -> dict[str, Any]:
    try:
        found = parse_json(output)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _names(found: object) -> str:
    """Return the failed checks for a reason; they may be names or anything else."""
    if not isinstance(found, list) or not found:
        return ""
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return f": {', '.join(_shown(str(each)) for each in found[:NAMED])}{more}"


def _shown(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN else f"{line[:SHOWN]}..."
