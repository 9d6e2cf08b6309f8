"""What the answer of the node health service means."""

import json

import pytest

from nvrx_core.health.result import Status
from nvrx_core.health.service_answer import judge_answer


@pytest.mark.parametrize(
    ("success", "output", "status", "reason"),
    [
        (True, '{"fail_count": 0, "failed_checks": []}', Status.HEALTHY, "no check has failed"),
        (True, '{"fail_count": 2}', Status.UNHEALTHY, "2 checks have failed"),
        (True, '{"fail_count": 1, "failed_checks": ["ib", 3]}', Status.UNHEALTHY, "1 checks have failed: ib, 3"),
        (False, '{"fail_count": 0}', Status.UNHEALTHY, "the check has failed with exit code 3: it broke"),
        (False, "garbage", Status.UNHEALTHY, "the check has failed with exit code 3: it broke"),
        (True, "", Status.UNKNOWN, "the answer cannot be read: '' is no JSON"),
        (True, "{" * 100_000, Status.UNKNOWN, "the answer cannot be read: "),
        (True, "[1]", Status.UNKNOWN, "the answer cannot be read: '[1]'"),
        (True, '{"fail_count": "0"}', Status.UNKNOWN, "the answer cannot be read: "),
        (True, '{"fail_count": true}', Status.UNKNOWN, "the answer cannot be read: "),
        (True, '{"fail_count": -1}', Status.UNKNOWN, "the answer cannot be read: "),
    ],
)
def test_a_stated_failure_is_unhealthy_and_an_unreadable_pass_is_unknown(success, output, status, reason):
    result = judge_answer(success=success, exit_code=3, output=output, error="it\nbroke")
    assert (result.status, result.reason.startswith(reason)) == (status, True), result
    assert len(result.reason) < 500


def test_a_failure_without_a_text_has_its_code():
    result = judge_answer(success=False, exit_code=1, output="", error="")
    assert result.reason == "the check has failed with exit code 1"


def test_many_failed_checks_are_counted():
    output = json.dumps({"fail_count": 12, "failed_checks": [f"c{n}" for n in range(12)]})
    assert judge_answer(success=True, exit_code=0, output=output, error="").reason.endswith("c9 and 2 more")
