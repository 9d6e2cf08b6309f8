"""The class of a fault of a restart in process."""

from __future__ import annotations

import pytest

from nvrx_core.attribution.fault_class import class_of_fault
from nvrx_core.attribution.verdict import Action
from nvrx_core.fault.record import OUT_OF_MEMORY, FaultRecord
from nvrx_core.rank_assignment.identity import InitialRank


def fault(interruption: str, message: str = "", category: str = "") -> FaultRecord:
    return FaultRecord(
        initial_rank=InitialRank(1), rank=1, interruption=interruption, message=message, category=category
    )


@pytest.mark.parametrize(
    ("record", "failure", "action"),
    [
        (None, "unknown", Action.RESTART),
        (fault("EXCEPTION", "ValueError: no such luck"), "user_exception", Action.RESTART),
        (fault("EXCEPTION", "torch.OutOfMemoryError: CUDA out of memory. Tried"), "cuda_out_of_memory", Action.STOP),
        (fault("EXCEPTION", "strange.NoMemory", OUT_OF_MEMORY), "host_out_of_memory", Action.STOP),
        (fault("EXCEPTION", "CUDA error: uncorrectable ECC error encountered"), "ecc_error", Action.RESTART),
        (fault("EXCEPTION", "RuntimeError: [gloo] Connection closed by peer [::1]:1"), "peer_lost", Action.RESTART),
        (fault("BASE_EXCEPTION", "KeyboardInterrupt"), "operator_kill", Action.STOP),
        (fault("SOFT_TIMEOUT", "no progress for 60 s"), "hang", Action.RESTART),
        (fault("HARD_TIMEOUT", "KeyError: 1"), "hang", Action.RESTART),
        (fault("UNRESPONSIVE", "no sign of life for 30 s (heartbeat_timeout)"), "peer_lost", Action.RESTART),
        (fault("TERMINATED", "process 7 ended by SIGSEGV"), "segmentation_fault", Action.RESTART),
        (fault("TERMINATED", "process 7 ended by SIGKILL"), "operator_kill", Action.RESTART),
        (fault("TERMINATED", "process 7 ended by SIGKILL", OUT_OF_MEMORY), "host_out_of_memory", Action.STOP),
        (fault("TERMINATED", "process 7 ended by SIGSTKFLT"), "unknown", Action.RESTART),
        (fault("TERMINATED", "process 7 ended with exit code 3"), "unknown", Action.RESTART),
    ],
)  # fmt: skip
def test_a_fault_has_a_class(record: FaultRecord | None, failure: str, action: Action) -> None:
    assert class_of_fault(record) == (failure, action)
