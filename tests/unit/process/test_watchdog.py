"""A progress watchdog without a wrapper."""

import threading
from datetime import timedelta

import pytest

from nvrx_core.process.watchdog import ProgressWatchdog


class Reports:
    """What it has reported."""

    def __init__(self):
        self.all, self.came = [], threading.Event()

    def send_timestamp(self, timestamp):
        self.all.append(timestamp)
        self.came.set()

    def wait(self, condition):
        """Wait, executing bytecode, until a report fulfils a condition."""
        while not any(map(condition, self.all)):
            assert self.came.wait(20)
            self.came.clear()


@pytest.fixture
def reports():
    return Reports()


@pytest.fixture
def watchdog(reports):
    made = ProgressWatchdog(0, reports, timedelta(milliseconds=1))
    made.start()
    yield made
    made.shutdown()


def test_it_reports_that_the_main_thread_runs(watchdog, reports):
    reports.wait(lambda report: report.auto > reports.all[0].auto)
    assert {report.manual for report in reports.all} == {None}
    assert all(earlier.auto <= later.auto for earlier, later in zip(reports.all, reports.all[1:], strict=False))


def test_it_reports_a_ping(watchdog, reports):
    watchdog.ping()
    reports.wait(lambda report: report.manual is not None)


def test_a_pause_lets_no_report_through_until_it_resumes(watchdog, reports):
    reports.wait(lambda report: True)
    watchdog.pause_and_synchronize()
    count = len(reports.all)
    assert not threading.Event().wait(0.02)
    assert len(reports.all) == count
    watchdog.resume()
    watchdog.resume()
    reports.came.clear()
    assert reports.came.wait(20)


def test_after_its_end_it_reports_once_for_each_call_and_cannot_resume(watchdog, reports):
    watchdog.pause_and_synchronize()
    count = len(reports.all)
    watchdog.shutdown()
    watchdog.shutdown()
    assert len(reports.all) == count + 2
    with pytest.raises(RuntimeError, match=r"resume\(\) after shutdown\(\)"):
        watchdog.resume()
