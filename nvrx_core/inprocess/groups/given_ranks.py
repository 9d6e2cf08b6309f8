"""The rank and the world size that the function itself passes to `init_process_group`.

Both change in a restart that loses a rank, and a function that keeps those of its start, as the tutorials write them,
would wait for ranks that do not exist. Without RANK and WORLD_SIZE, a process that means to be one of several is a job
of its own, whose restarts the others would not follow.
"""

from __future__ import annotations

from nvrx_core.errors import RestartAbort
from nvrx_core.settings.environment import missing_variables, rank_and_world_size

__all__ = ["GivenRanks"]


class GivenRanks:
    """Checks them; created on entry to a call.

    Args:
        rank, world_size: those of the call on entry.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self._on_entry, self._missing = (rank, world_size), missing_variables()

    def check(self, rank: int | None, world_size: int | None, iteration: int) -> None:
        """Check those that the function has passed, in the URL of a rendezvous or with a store.

        Args:
            rank: the rank that it has passed; None if it has left it out.
            world_size: the same for the world size.
            iteration: the present one.

        Raises:
            RestartAbort: when they are not those of this iteration; another iteration would not mend it.
        """
        given = {"rank": rank, "world_size": world_size}
        call = f"init_process_group({', '.join(f'{name}={each}' for name, each in given.items() if each is not None)})"
        if self._missing[:2] == ["RANK", "WORLD_SIZE"] and world_size is not None and world_size > 1:
            raise RestartAbort(
                f"{call} in a wrapped call of one rank: {', '.join(self._missing)} are not set",
                advice=f"before the call of the wrapped function, set os.environ['RANK'] = '{rank or 0}', "
                f"os.environ['WORLD_SIZE'] = '{world_size}', and MASTER_ADDR and MASTER_PORT alike on all ranks; "
                "then write init_process_group() without rank and world_size",
            )
        present = rank_and_world_size()
        if self._are_of_the_start(rank, world_size, present):
            raise RestartAbort(
                f"{call}: in iteration {iteration} this is rank {present[0]} of {present[1]}",
                advice="write init_process_group() without rank and world_size, and ask torch.distributed for them; "
                "also for what is divided among the ranks, as the samples",
            )

    def _are_of_the_start(self, rank: int | None, world_size: int | None, present: tuple[int, int]) -> bool:
        """Whether what was passed is that of the entry, and no longer that of the iteration.

        A world size that is larger than the present one is so with any rank: one that was read anew would wait as well.
        """
        entry_rank, entry_size = self._on_entry
        if world_size == entry_size > present[1]:
            return True
        return rank == entry_rank != present[0] and world_size in {entry_size, None}
