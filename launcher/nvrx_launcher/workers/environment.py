"""The environment of a worker: its place in the job, as torchrun's workers have it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Placement", "worker_environment"]


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


def worker_environment(
    placement: Placement, local_rank: int, *, role: str, run_id: str, max_restarts: int, inherited: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of one worker, on top of what it inherits."""
    rank, size = placement.first_rank + local_rank, placement.world_size
    variables = {
        "LOCAL_RANK": local_rank,
        "RANK": rank,
        "GROUP_RANK": placement.group_rank,
        "ROLE_RANK": rank,
        "ROLE_NAME": role,
        "LOCAL_WORLD_SIZE": placement.local_world_size,
        "WORLD_SIZE": size,
        "GROUP_WORLD_SIZE": placement.group_world_size,
        "ROLE_WORLD_SIZE": size,
        "MASTER_ADDR": placement.master_addr,
        "MASTER_PORT": placement.master_port,
        "TORCHELASTIC_RESTART_COUNT": placement.cycle,
        "TORCHELASTIC_MAX_RESTARTS": max_restarts,
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_USE_AGENT_STORE": placement.agent_store,
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": inherited.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }
    if "OMP_NUM_THREADS" not in inherited and placement.local_world_size > 1:
        variables["OMP_NUM_THREADS"] = 1
    return {name: str(value) for name, value in variables.items()}
