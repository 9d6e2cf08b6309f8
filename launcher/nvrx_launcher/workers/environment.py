"""The environment of a worker: its ranks and world sizes, as torchrun sets them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from nvrx_launcher.options import LaunchOptions

__all__ = ["Placement", "import_environment", "without_place", "worker_environment"]

PLACE: Final = frozenset({
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE",
    "NVRX_STORE_ENDPOINT",
})  # fmt: skip


@dataclass(frozen=True)
class Placement:
    """The ranks of this node in a cycle of the job.

    Attributes:
        group_rank: the node's rank.
        group_world_size: the number of nodes.
        first_rank: the global rank of local rank 0.
        world_size: the number of workers of all nodes.
        local_world_size: the number of workers of this node.
        master_addr, master_port: the rendezvous endpoint of the workers.
        agent_store: the agent's store already listens at that endpoint.
        cycle: the number of restarts of the job, the same on all nodes.
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
    placement: Placement, local_rank: int, options: LaunchOptions, *, inherited: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of one worker, in addition to those it inherits.

    Args:
        placement: the ranks of this node.
        local_rank: the worker's local rank.
        options: its job.
        inherited: the launcher's environment.
    """
    rank, size = placement.first_rank + local_rank, placement.world_size
    variables: dict[str, object] = {
        "RANK": rank,
        "LOCAL_RANK": 0 if options.virtual_local_rank else local_rank,
        "GROUP_RANK": placement.group_rank,
        "ROLE_RANK": rank,
        "ROLE_NAME": options.role,
        "LOCAL_WORLD_SIZE": placement.local_world_size,
        "WORLD_SIZE": size,
        "GROUP_WORLD_SIZE": placement.group_world_size,
        "ROLE_WORLD_SIZE": size,
        "MASTER_ADDR": placement.master_addr,
        "MASTER_PORT": placement.master_port,
        "TORCHELASTIC_RESTART_COUNT": placement.cycle,
        "TORCHELASTIC_MAX_RESTARTS": options.max_restarts,
        "TORCHELASTIC_RUN_ID": options.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": placement.agent_store,
    }
    imported = import_environment(options, local_rank, inherited)
    return {name: str(value) for name, value in variables.items()} | imported


def import_environment(options: LaunchOptions, local_rank: int, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a worker that libraries may read at import; they are the same in all cycles."""
    variables = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": inherited.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")}
    if options.virtual_local_rank:
        visible = inherited.get("CUDA_VISIBLE_DEVICES")
        variables["CUDA_VISIBLE_DEVICES"] = (
            str(local_rank) if visible is None else visible.split(",")[local_rank].strip()
        )
    if "OMP_NUM_THREADS" not in inherited and options.workers > 1:
        variables["OMP_NUM_THREADS"] = "1"
    return variables


def without_place(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables that differ between cycles."""
    return {name: value for name, value in environment.items() if name not in PLACE}
