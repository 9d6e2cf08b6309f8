"""The environment of a worker: its place in the job, as torchrun's workers have it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["JobName", "Placement", "import_environment", "without_place", "worker_environment"]

PLACE: Final = frozenset({
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE",
    "NVRX_STORE_ENDPOINT",
})  # fmt: skip


@dataclass(frozen=True)
class Placement:
    """This node's place in a cycle of the job.

    Attributes:
        group_rank: the node's rank.
        group_world_size: how many nodes there are.
        first_rank: the global rank of local rank 0.
        world_size: workers of all nodes.
        local_world_size: workers of this node.
        master_addr, master_port: where the workers meet.
        agent_store: a store listens there already.
        cycle: how often the job was restarted, the same on all nodes.
    """

    group_rank: int
    group_world_size: int
    first_rank: int
    world_size: int
    local_world_size: int
    master_addr: str
    master_port: int
    agent_store: bool
    cycle: int


@dataclass(frozen=True)
class JobName:
    """What workers are told of their job.

    Attributes:
        role: their role.
        run_id: the job's name.
        max_restarts: how often they may be restarted.
    """

    role: str
    run_id: str
    max_restarts: int


def worker_environment(
    placement: Placement, local_rank: int, job: JobName, *, inherited: Mapping[str, str], is_virtual: bool = False
) -> dict[str, str]:
    """Return the variables of one worker, on top of what it inherits.

    Args:
        placement: this node's place.
        local_rank: the worker's number on it.
        job: its job.
        inherited: the launcher's environment.
        is_virtual: the worker sees local rank 0, and one device.
    """
    rank, size = placement.first_rank + local_rank, placement.world_size
    variables: dict[str, object] = {
        "RANK": rank,
        "LOCAL_RANK": 0 if is_virtual else local_rank,
        "GROUP_RANK": placement.group_rank,
        "ROLE_RANK": rank,
        "ROLE_NAME": job.role,
        "LOCAL_WORLD_SIZE": placement.local_world_size,
        "WORLD_SIZE": size,
        "GROUP_WORLD_SIZE": placement.group_world_size,
        "ROLE_WORLD_SIZE": size,
        "MASTER_ADDR": placement.master_addr,
        "MASTER_PORT": placement.master_port,
        "TORCHELASTIC_RESTART_COUNT": placement.cycle,
        "TORCHELASTIC_MAX_RESTARTS": job.max_restarts,
        "TORCHELASTIC_RUN_ID": job.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": placement.agent_store,
    }
    imported = import_environment(inherited, local_rank, placement.local_world_size, is_virtual=is_virtual)
    return {name: str(value) for name, value in variables.items()} | imported


def import_environment(
    inherited: Mapping[str, str], local_rank: int, workers: int, *, is_virtual: bool
) -> dict[str, str]:
    """Return the variables of a worker that libraries may read when they are imported; no cycle changes them."""
    variables = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": inherited.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")}
    if is_virtual:
        visible = inherited.get("CUDA_VISIBLE_DEVICES")
        variables["CUDA_VISIBLE_DEVICES"] = (
            str(local_rank) if visible is None else visible.split(",")[local_rank].strip()
        )
    if "OMP_NUM_THREADS" not in inherited and workers > 1:
        variables["OMP_NUM_THREADS"] = "1"
    return variables


def without_place(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what a cycle changes in it."""
    return {name: value for name, value in environment.items() if name not in PLACE}
