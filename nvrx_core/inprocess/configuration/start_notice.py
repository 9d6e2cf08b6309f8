"""One log line about how the ranks were started, where that limits what a wrapped call survives."""

from __future__ import annotations

import logging
import multiprocessing

from nvrx_core.settings import environment

__all__ = ["log_start"]

log = logging.getLogger("nvrx_core.inprocess")
_ONE_RANK = "RANK and WORLD_SIZE are not set: this process is a job of one rank; start it with ft_launcher for more"
_SPAWNED = (
    "RANK and WORLD_SIZE are not set: this process, a child of multiprocessing, is a job of one rank, whatever its "
    "parent has started; for one job of all, set %s in the target of mp.spawn before the call"
)
_TORCHRUN = (
    "started by torchrun, which ends all ranks when the process of one ends: only faults in which no process ends are "
    "survived; start with ft_launcher, which has the same options, to survive the others"
)


def log_start(rank: int, world_size: int) -> None:
    """Log the line; it is for the first wrapped call of a process.

    Args:
        rank: the rank of the process on entry to the call.
        world_size: the number of ranks.
    """
    if not environment.has_ranks():
        if multiprocessing.parent_process() is not None:
            log.warning(_SPAWNED, ", ".join(environment.missing_variables()))
        else:
            log.info(_ONE_RANK)
    elif rank == 0 and world_size > 1 and environment.started_by_torchrun():
        log.warning(_TORCHRUN)
