"""The rank and the world size that the function itself passes to `init_process_group`.

Both change in a restart that loses a rank, and a function that keeps those of its start, as the tutorials write them,
would wait for ranks that do not exist. Without RANK and WORLD_SIZE, a process that means to be one of several is a job
of its own, whose restarts the others would not follow.
"""

from __future__ import annotations

from nvrx_core.errors import RestartAbort
from nvrx_core.inprocess.groups.store_clients import rank_of
from nvrx_core.settings.environment import missing_variables, rank_and_world_size

__all__ = ["GivenRanks"]


class GivenRanks:
    """Checks them; created on entry to a call.

    Args:
        rank, world_size: those of the call on entry.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self._on_entry, self._missing = (rank, world_size), missing_variables()

    def check(self, url: str) -> None:
        """Check those in the URL of a rendezvous, which is where torch puts them.

        Raises:
            RestartAbort: when they are not those of this iteration; another iteration would not mend it.
        """
        given = rank_of(url)
        if given is None:
            return
        call = f"init_process_group(rank={given[0]}, world_size={given[1]})"
        if self._missing[:2] == ["RANK", "WORLD_SIZE"] and given[1] > 1:
            raise RestartAbort(
                f"{call} in a wrapped call of one rank: {', '.join(self._missing)} are not set",
                advice=f"before the call of the wrapped function, set os.environ['RANK'] = '{given[0]}', "
                f"os.environ['WORLD_SIZE'] = '{given[1]}', and MASTER_ADDR and MASTER_PORT alike on all ranks; "
                "then write init_process_group() without rank and world_size",
            )
        present = rank_and_world_size()
        if given == self._on_entry != present:
            raise RestartAbort(
                f"{call}: after the restart this is rank {present[0]} of {present[1]}",
                advice="write init_process_group() without rank and world_size, and ask torch.distributed for them; "
                "also for what is divided among the ranks, as the samples",
            )
