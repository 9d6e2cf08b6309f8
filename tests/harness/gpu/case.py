"""What the ranks of a job on CUDA devices do, passed as JSON in the environment."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Case", "environment"]

ENVIRONMENT = "NVRX_TEST_GPU_CASE"
NCCL = {
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    "TORCH_CPP_LOG_LEVEL": "error",
}
"""NCCL between ranks that share a device, and what the requirements of a restart over NCCL are."""


@dataclass(frozen=True)
class Case:
    """One job."""

    wait: str
    """The call in which the others are when the fault comes: a name in `waits.WAITS`."""
    backend: str = "nccl"
    eager: bool = False  # the communicator is made in `init_process_group`, not by the first collective
    fault: str = "exception"
    before: str = ""  # what the target does together with the others: a name in `waits.WAITS`
    after: str = ""  # what it does at the time of the fault
    target: int = 1
    restarts: int = 3
    group_timeout: float = 600.0  # of the default group, in seconds
    health: float = 0.0  # the timeout of a `CudaHealthCheck`; 0: none
    empty_cache: bool = False  # torch's cache of memory is emptied in each restart
    wrapper: dict[str, float] = field(default_factory=lambda: {"soft_timeout": 6.0, "hard_timeout": 12.0})

    @classmethod
    def of_environment(cls) -> Case:
        return cls(**json.loads(os.environ[ENVIRONMENT]))

    def device(self) -> Any:
        """What `init_process_group` gets as `device_id`."""
        import torch

        return torch.device("cuda", torch.cuda.current_device()) if self.eager else None


def environment(case: Case) -> dict[str, str]:
    """The variables of a rank."""
    return {**NCCL, ENVIRONMENT: json.dumps(dataclasses.asdict(case))}
