"""What a monitor process says of its rank's death, when the kernel has killed for want of memory before."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from nvrx_core.flow import run
from nvrx_core.inprocess.monitor import fault_reporter
from nvrx_core.inprocess.monitor.fault_reporter import SEEN_DEAD_WITHIN, FaultReporter
from nvrx_core.progress.page import Page, ProgressField


@pytest.fixture
def killed():
    """A process that has been killed."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    pidfd = os.pidfd_open(process.pid)
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT)
    yield SimpleNamespace(pid=process.pid, pidfd=pidfd)
    os.close(pidfd)
    process.wait()
    process.stdin.close()


@pytest.mark.parametrize("is_replacement", [False, True])
@pytest.mark.parametrize(
    ("seconds", "category"),
    [(SEEN_DEAD_WITHIN - 0.1, "out of memory"), (SEEN_DEAD_WITHIN + 0.1, "")],
    ids=["just before", "long before"],
)
def test_a_kill_for_memory_is_the_cause_of_a_death_just_after(killed, monkeypatch, seconds, category, is_replacement):
    """Also where the first that was killed is the monitor process, and another one is there when the rank dies."""
    clock = SimpleNamespace(monotonic=lambda: clock.now, time=lambda: 0.0, now=1000.0)
    counts = [7]
    monkeypatch.setattr(fault_reporter, "time", clock)
    events = SimpleNamespace(write=lambda *args, **fields: None)
    page = Page(1)
    page[ProgressField.MEMORY_KILLS] = 7  # before the call
    plan = SimpleNamespace(
        rank_pid=killed.pid, rank_pidfd=killed.pidfd, member=0, events=events,
        memory_kills=SimpleNamespace(count=lambda: counts[0]),
    )  # fmt: skip
    reporter = FaultReporter(plan, page)
    reporter.look_for_memory_kills()
    counts[0] = 8
    if is_replacement:
        reporter = FaultReporter(plan, page)
    for _ in range(3):  # with each renewal of the lease
        reporter.look_for_memory_kills()
    clock.now += seconds

    async def describe():
        return await reporter.describe_death(None, None)

    fault = run(describe())
    page.close()
    assert (fault.interruption, fault.category) == ("TERMINATED", category)
