"""What the fault that a restart in process has followed is called."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nvrx_core.attribution.restart import verdict_of_fault
from nvrx_core.attribution.verdict import Action
from nvrx_core.fault.record import LATE_COMPLETION, FaultRecord

FAULT = FaultRecord(
    initial_rank=3, rank=2, interruption="EXCEPTION", message="ValueError: bad", error_type="ValueError", host="n1",
    pid=77, origin="/work/train.py:8",
)  # fmt: skip
ENDED = replace(FAULT, interruption="TERMINATED", error_type="", exit_code=3)
LEFT = replace(FAULT, interruption="BASE_EXCEPTION", error_type="SystemExit", message="SystemExit: 3", exit_code=3)


@pytest.mark.parametrize(
    ("fault", "failure", "action", "rank"),
    [
        (FAULT, "user_exception", Action.RESTART, 2),
        (replace(FAULT, message="OSError: [Errno 28] No space left on device"), "disk_full", Action.STOP, 2),
        (replace(FAULT, message="AcceleratorError: CUDA error: uncorrectable ECC error encountered"), "ecc_error",
            Action.RESTART, 2),
        (replace(FAULT, message="late", error_type=LATE_COMPLETION), "unknown", Action.RESTART, None),
        (replace(FAULT, interruption="SOFT_TIMEOUT", message="no progress for 60 s (soft_timeout)"), "hang",
            Action.RESTART, 2),
        (replace(ENDED, interruption="HARD_TIMEOUT", message="process ended by SIGKILL after no progress for 9 s"),
            "hang", Action.RESTART, 2),
        (replace(ENDED, message="process ended by SIGSEGV"), "segmentation_fault", Action.RESTART, 2),
        (replace(ENDED, message="process ended by SIGKILL"), "operator_kill", Action.RESTART, 2),
        (replace(ENDED, message="process ended by SIGKILL").of_memory(), "host_out_of_memory", Action.STOP, 2),
        (replace(ENDED, message="process ended with exit code 3"), "unknown", Action.RESTART, 2),
        (replace(ENDED, message="process ended by SIGSEGV", rank=-1), "segmentation_fault", Action.RESTART, 3),
        (replace(ENDED, message="the rank left"), "unknown", Action.RESTART, 2),
        (replace(ENDED, message="process ended", exit_code=0), "unknown", Action.RESTART, 2),
        (LEFT, "unknown", Action.RESTART, 2),
        (
            replace(FAULT, interruption="BASE_EXCEPTION", message="KeyboardInterrupt"),
            "operator_kill", Action.RESTART, 2,
        ),
        (replace(FAULT, interruption="UNRESPONSIVE", rank=-1, host="unknown host",
            message="no sign of life for 30 s (heartbeat_timeout)"), "peer_lost", Action.RESTART, None),
    ],
)  # fmt: skip
def test_a_fault_has_its_class(fault: FaultRecord, failure: str, action: Action, rank: int | None) -> None:
    found = verdict_of_fault(fault)
    assert (found.failure, found.action, found.rank) == (failure, action, rank)
    assert found.node_to_exclude is None


def test_the_name_of_the_exception_is_known_and_no_secret_is_shown() -> None:
    found = verdict_of_fault(replace(FAULT, message="KeyError: 'lr'; password='a b c'"))
    assert found.error_type == "KeyError"
    assert "'lr'" in found.sentence
    assert "a b c" not in str(found)
