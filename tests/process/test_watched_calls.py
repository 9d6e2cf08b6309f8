"""A rank monitor and a wrapped call in one script: one page, one judge, and the rules of both."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nvrx_core.fault_tolerance import FaultToleranceConfig, RankMonitorServer
from nvrx_core.fault_tolerance.server import RankMonitorProcess
from tests.harness.process.job import Job
from tests.harness.process.oracle import assert_restarts, restart
from tests.harness.process.workers.watched_calls import CONFIG, TIMEOUT

from .conftest import Launch

WORKER = "tests.harness.process.workers.watched_calls"
SETTINGS: dict[str, Any] = {"rank_section_timeouts": {"step": TIMEOUT}, "rank_heartbeat_timeout": TIMEOUT}


@pytest.fixture
def launchers_monitors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RankMonitorProcess]]:
    folder = tmp_path_factory.mktemp("m")
    config = FaultToleranceConfig(**SETTINGS)
    monitors = [RankMonitorServer.run_in_subprocess(config, folder / f"{rank}.socket") for rank in range(3)]
    yield monitors
    for monitor in monitors:
        monitor.terminate()


def assert_restarted_in_process_and_judged_again(job: Job) -> None:
    job.finish()
    assert job.codes == {0: 0, 1: -signal.SIGKILL, 2: -signal.SIGKILL}
    entered = [[line["iteration"] for line in job.lines("enter", initial_rank=rank)] for rank in range(3)]
    assert entered == [[0, 1], [0, 1], []]
    assert len({(line["initial_rank"], line["pid"]) for line in job.lines("")}) == 3
    assert_restarts(job, [restart("SOFT_TIMEOUT", by=[1])])
    told = [line["message"] for line in job.events("fault", initial_rank=1)]
    assert any("section 'step' open for" in line for line in told), told


def test_the_call_judges_while_it_lasts_and_the_local_monitor_after_it(
    prepare: Launch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    job = prepare(world=3)
    folder = str(tmp_path_factory.mktemp("r"))
    job.start(WORKER, **{CONFIG: json.dumps(SETTINGS), "NVRX_RUNTIME_DIR": folder})
    assert_restarted_in_process_and_judged_again(job)
    assert [line["monitors"] for line in job.lines("monitored")] == [2, 2, 2]
    assert [line["monitors"] for line in job.lines("trains")] == [0, 0]
    assert all(line["judge"] > 0 for line in job.lines("trains"))
    assert [line["monitors"] for line in job.lines("returned")] == [2, 2, 2]
    assert "section 'step' open for" in job.errors(1)
    assert "no heartbeat for" in job.errors(2)


def test_the_call_judges_while_it_lasts_and_the_launchers_monitors_after_it(
    prepare: Launch, launchers_monitors: list[RankMonitorProcess]
) -> None:
    job = prepare(world=3)
    job.start_store()
    for rank, monitor in enumerate(launchers_monitors):
        environment = job.environment(rank, FT_RANK_MONITOR_IPC_SOCKET=str(monitor._listener.path))
        job.pids[rank] = job.template.fork(WORKER, [], environment, Path(job.directory / f"rank-{rank}"))
    assert_restarted_in_process_and_judged_again(job)
    assert all(line["judge"] > 0 for line in job.lines("trains"))
    assert all(monitor.is_alive() for monitor in launchers_monitors)
