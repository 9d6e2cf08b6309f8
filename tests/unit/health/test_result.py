"""Results of health checks, and what they say about a node."""

import json

import pytest

from nvrx_core.health.result import MAX_TEXT, CheckResult, HealthReport, Status

HEALTHY = CheckResult("gpu", "GPU 0", Status.HEALTHY, "fine", counters=(("Xid", 1),), levels=(("link 0", 1),))
UNHEALTHY = CheckResult("storage", "/data", Status.UNHEALTHY, "No such file or directory")
UNKNOWN = CheckResult("service", "", Status.UNKNOWN, "no answer")
ABSENT = CheckResult("gpu", "", Status.UNKNOWN, "no NVML", is_absent=True)


@pytest.mark.parametrize("result", [HEALTHY, UNHEALTHY, UNKNOWN, ABSENT])
def test_a_result_crosses_a_pipe_unchanged(result):
    assert CheckResult.from_json(json.dumps(result.to_json())) == result


@pytest.mark.parametrize(
    "line",
    [
        "", "[]", "{}", '{"check": 1}', '{"check": "gpu", "subject": "", "status": "odd", "reason": ""}',
        json.dumps(HEALTHY.to_json() | {"counters": [1]}), json.dumps(HEALTHY.to_json() | {"levels": {"a": "1"}}),
        json.dumps(HEALTHY.to_json() | {"levels": {"a": True}}),
        json.dumps(HEALTHY.to_json() | {"counters": {str(n): 0 for n in range(1 + (1 << 14))}}),
    ],
)  # fmt: skip
def test_a_malformed_line_is_a_value_error(line):
    with pytest.raises(ValueError, match=r".*"):
        CheckResult.from_json(line)


def test_a_long_text_is_cut():
    line = json.dumps(UNKNOWN.to_json() | {"reason": "x" * (MAX_TEXT + 1)})
    assert len(CheckResult.from_json(line).reason) == MAX_TEXT


@pytest.mark.parametrize(
    ("results", "usual", "strict"),
    [
        ((), Status.UNKNOWN, Status.UNKNOWN),
        ((HEALTHY, ABSENT), Status.HEALTHY, Status.HEALTHY),
        ((ABSENT,), Status.UNKNOWN, Status.UNKNOWN),
        ((HEALTHY, UNKNOWN), Status.HEALTHY, Status.UNHEALTHY),
        ((HEALTHY, UNHEALTHY, UNKNOWN), Status.UNHEALTHY, Status.UNHEALTHY),
    ],
)
def test_unknown_takes_a_node_out_only_if_checks_are_strict_and_there_is_something_to_check(results, usual, strict):
    report = HealthReport(results, 0.5)
    assert report.status(strict=False) is usual
    assert report.status(strict=True) is strict
    assert json.loads(report.to_json(strict=True))["status"] == strict.value


def test_a_result_is_shown_with_check_and_subject():
    assert str(UNHEALTHY) == "storage /data: No such file or directory"
    assert str(UNKNOWN) == "service: no answer"
