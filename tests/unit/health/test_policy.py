"""When a node may join, when it is checked and when it is excluded."""

import math

import pytest

from nvrx_core.health.policy import Baseline, Exclude, HealthPolicy, MayJoin, RunChecks, Warn
from nvrx_core.health.result import CheckResult, HealthReport, Status

GOOD = HealthReport((CheckResult("gpu", "GPU 0", Status.HEALTHY, "fine"),))
BAD = HealthReport((CheckResult("gpu", "GPU 0", Status.UNHEALTHY, "lost"),))
VAGUE = HealthReport((CheckResult("service", "", Status.UNKNOWN, "no answer"),))
UNSEEN = HealthReport(())
ABSENT = HealthReport((CheckResult("service", "", Status.UNKNOWN, "skipped", is_absent=True),))


def policy(**options):
    return HealthPolicy(**({"interval": 5.0, "failures": 3, "strict": False, "is_monitored": True} | options))


def joined(**options):
    one = policy(**options)
    assert one.wants_to_join() == (RunChecks(is_complete=True),)
    assert one.checked(GOOD, now=10.0) == (MayJoin(),)
    return one


def test_a_node_joins_after_all_checks_and_is_checked_at_an_interval():
    one = joined()
    assert one.deadline == 15.0
    assert one.tick(now=14.9) == ()
    assert one.tick(now=15.0) == (RunChecks(is_complete=False),)
    assert one.deadline == math.inf
    assert one.tick(now=99.0) == (), "one at a time"
    assert one.checked(GOOD, now=16.0) == ()
    assert one.deadline == 21.0


def test_nothing_is_monitored_where_there_is_nothing_to_check():
    assert joined(is_monitored=False).deadline == math.inf


def test_one_failure_keeps_a_node_out_before_it_joins():
    one = policy()
    one.wants_to_join()
    assert one.checked(BAD, now=1.0) == (Exclude("gpu GPU 0: lost"),)
    assert one.wants_to_join() == one.tick(now=9.0) == one.checked(GOOD, now=9.0) == ()
    assert one.deadline == math.inf


def test_during_training_it_takes_failures_in_a_row():
    one, now = joined(), 15.0
    reports = [(BAD, Warn), (BAD, Warn), (GOOD, None), (BAD, Warn), (UNSEEN, None), (BAD, Warn), (BAD, Exclude)]
    for report, expected in reports:
        assert one.tick(now=now) == (RunChecks(is_complete=False),)
        actions = one.checked(report, now=now)
        assert [type(each) for each in actions] == ([expected] if expected else [])
        now += 5.0
    assert actions == (Exclude("gpu GPU 0: lost"),)


def test_a_check_that_began_before_the_node_was_ready_does_not_let_it_join():
    one = joined()
    one.tick(now=15.0)
    assert one.wants_to_join() == ()
    assert one.wants_to_join() == (), "it waits already"
    assert one.checked(GOOD, now=16.0) == (RunChecks(is_complete=True),)
    assert one.checked(GOOD, now=17.0) == (MayJoin(),)


def test_an_unknown_outcome_is_told_once_and_excludes_only_if_checks_are_strict():
    one = policy()
    one.wants_to_join()
    assert one.checked(VAGUE, now=0.0) == (Warn("unknown: service: no answer"), MayJoin())
    assert one.wants_to_join() == (RunChecks(is_complete=True),)
    assert one.checked(VAGUE, now=1.0) == (MayJoin(),)
    one = policy(strict=True)
    one.wants_to_join()
    assert one.checked(ABSENT, now=0.0) == (Warn("unknown: service: skipped"), MayJoin())
    one.wants_to_join()
    assert one.checked(VAGUE, now=1.0) == (Exclude("service: no answer"),)


def test_one_reason_for_several_checks_is_told_once():
    one = policy()
    one.wants_to_join()
    results = tuple(CheckResult(check, "", Status.UNKNOWN, "no NVML", is_absent=True) for check in ("gpu", "nvlink"))
    assert one.checked(HealthReport(results), now=0.0) == (Warn("unknown: gpu, nvlink: no NVML"), MayJoin())


def reading(status=Status.HEALTHY, **readings):
    result = CheckResult("nic", "mlx5_0", status, "read", **{name: (("it", at),) for name, at in readings.items()})
    return HealthReport((result,))


@pytest.mark.parametrize(
    ("kind", "values", "failures"),
    [
        ("counters", [3, 3, 4, 4, 3], [0, 0, 1, 1, 0]),
        ("counters", [3, 0, 1], [0, 0, 1]),  # cleared meanwhile
        ("levels", [0, 0, 1, 0, 1], [0, 0, 0, 1, 0]),
    ],
)
def test_a_reading_that_is_worse_than_before_is_a_failure(kind, values, failures):
    baseline = Baseline()
    judged = [baseline.judge(reading(**{kind: each})) for each in values]
    assert [len(each.failures(strict=False)) for each in judged] == failures


def test_the_reason_names_both_readings():
    baseline = Baseline()
    baseline.judge(reading(counters=3, levels=1))
    (result,) = baseline.judge(reading(counters=4, levels=0)).results
    assert result.reason == "it has risen from 3 to 4; it was 1 and is 0"
    (result,) = baseline.judge(reading(Status.UNHEALTHY, counters=9)).results
    assert result.reason == "read", "a check that has failed says why itself"
