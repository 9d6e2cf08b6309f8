"""How often equal failures are logged."""

from nvrx_core.fault.log_rate import LogRate


def test_equal_failures_are_logged_once_a_second_from_the_third_on():
    rate = LogRate()
    lines = {n: left for n in range(300) if (left := rate.line("NameError", now=n / 100)) is not None}
    assert lines == {0: 0, 1: 0, 101: 99, 201: 99}


def test_another_failure_is_logged_at_once():
    rate = LogRate()
    assert [rate.line(each, now=0.0) for each in "aaaabab"] == [0, 0, None, None, 0, 0, 0]


def test_a_rare_failure_is_always_logged():
    rate = LogRate()
    assert [rate.line("a", now=float(2 * n)) for n in range(5)] == [0] * 5
