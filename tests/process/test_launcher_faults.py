"""The fault catalogue under launchers: real launchers, monitors and workers, and as many faults as fit in a job."""

from __future__ import annotations

import re
from pathlib import Path

from tests.harness.process.launch import Start, events_of

QUICK = ("--ft-rank-section-timeouts", "step:0.7", "--ft-rank-heartbeat-timeout", "1")
IN_STEP = r"was ended by SIGKILL, hung: section 'step' open for \S+ s \(timeout 0\.7 s\)"


FAULTS = (
    ("0:kill", r"was ended by SIGKILL$"),
    ("1:term", r"was ended by SIGTERM$"),
    ("0:stop", IN_STEP + "(?!, at)"),
    ("1:segv", r"was ended by SIGSEGV$"),
    ("0:abort", r"was ended by SIGABRT$"),
    ("1:memory_error", r"has failed with exit code 1: MemoryError, at /.*/launcher_faults\.py:\d+$"),
    ("0:gil_locked", IN_STEP),
    ("1:hang_recv", IN_STEP + r", at injectors\.py:\d+ "),
    ("0:hang_lock", IN_STEP + r", at injectors\.py:\d+ "),
    ("1:spin", r"was ended by SIGKILL, hung: no heartbeat for .*, at launcher_faults\.py:\d+ inject_fault < "),
    ("0:leave", r"has exited with code 0 while it was monitored"),
    ("0:livelock", IN_STEP + r", at launcher_faults\.py:\d+ inject_fault < "),
)


def test_each_fault_of_a_worker_costs_one_cycle_and_is_named(launcher: Start, tmp_path: Path) -> None:
    schedule = ",".join(fault for fault, _ in FAULTS)
    job = launcher(schedule, "--max-restarts", str(len(FAULTS)), *QUICK, worker="launcher_faults.py")
    code, log = job.finish(120)
    assert code == 0, log
    assert len(events_of(tmp_path, "cycle_started")) == len(FAULTS) + 1, log
    failed = events_of(tmp_path, "worker_failed")
    assert [each["rank"] for each in failed] == [int(fault[0]) for fault, _ in FAULTS], log
    for (fault, expected), told in zip(FAULTS, failed, strict=True):
        assert re.search(expected, told["reason"]), (fault, told["reason"])
