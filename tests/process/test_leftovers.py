"""What an earlier run left behind: keys of its store, its port, its files. It is ignored, or refused with a text."""

from __future__ import annotations

import os
import signal
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

from tests.harness.process.job import Job
from tests.harness.process.oracle import assert_nothing_lost, restart

from .conftest import Launch

KILLED = -signal.SIGKILL
FAULTS = {(1, 0, 3): "exception", (0, 1, 3): "kill"}
EXPECTED = (restart("EXCEPTION", by=[1]), restart("TERMINATED", by=[0], lost=[0]))


def cut_short(job: Job, spared: int | None = None) -> Job:
    """A run of which all processes but one are killed in the middle of its second iteration."""
    for rank in job.pids:
        job.await_line("step", initial_rank=rank, iteration=1)
    while left := set(job.template.leftovers()) - {spared}:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        job.finish_ranks()
    assert set(job.codes.values()) == {KILLED}
    return job


def an_earlier_run(prepare: Launch) -> Job:
    """It leaves its store, with all that was in it."""
    job = prepare({(1, 0, 3): "exception", (1, 1, 10_000): "exception"}).start()
    return cut_short(job, job.store_pid)


@pytest.mark.parametrize("name", ["NVRX_JOB_ID", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"])
def test_the_keys_of_an_earlier_run_are_not_read(prepare: Launch, name: str) -> None:
    earlier = an_earlier_run(prepare)
    job = prepare(FAULTS, store=False)
    assert earlier.store_pid is not None
    job.endpoint, job.others = earlier.endpoint, {earlier.store_pid}
    job.start(**{name: "7"}).finish()
    assert_nothing_lost(job, *EXPECTED, codes={0: KILLED})
    earlier.stop_store()


def test_the_port_of_a_run_that_was_killed_is_free_at_once(prepare: Launch) -> None:
    earlier = prepare({(1, 0, 3): "exception", (1, 1, 10_000): "exception"}, store=False)
    cut_short(earlier.start())
    job = prepare({(1, 0, 3): "exception", (2, 1, 3): "kill"}, collective=True, store=False)
    job.port = earlier.port
    job.start().finish()
    assert_nothing_lost(job, EXPECTED[0], restart("TERMINATED", by=[2], lost=[2]), codes={2: KILLED})


def test_files_of_an_earlier_run_do_not_disturb_a_job(launch: Launch, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("not a pid\n")
    for rank in range(3):
        (tmp_path / f"monitor-{rank}.pid").symlink_to(precious)
        (tmp_path / f"monitor-{rank}.log").write_text("of an earlier run\n")
    (tmp_path / f"monitor-0.pid.{uuid.uuid4().int % 10_000}").write_text("half")
    files = {f"monitor_process_{kind}file": f"{tmp_path}/monitor-{{rank}}.{kind}" for kind in ("pid", "log")}
    job = launch(FAULTS, wrapper=files).finish()
    assert_nothing_lost(job, *EXPECTED, codes={0: KILLED})
    assert precious.read_text() == "not a pid\n", "a link was followed"
    for rank in range(3):
        assert (tmp_path / f"monitor-{rank}.pid").read_text().strip().isdecimal()
        assert (tmp_path / f"monitor-{rank}.log").read_text().startswith("of an earlier run\n")


def test_a_link_in_the_place_of_a_log_file_is_refused(launch: Launch, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("no log\n")
    (tmp_path / "monitor-0.log").symlink_to(precious)
    job = launch(world=1, wrapper={"monitor_process_logfile": f"{tmp_path}/monitor-{{rank}}.log"}).finish()
    assert job.codes == {0: 1}
    assert f"a symbolic link, which is not followed: '{tmp_path}/monitor-0.log'" in job.errors(0)
    assert precious.read_text() == "no log\n"
