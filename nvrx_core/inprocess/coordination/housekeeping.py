"""The work of rank 0 for all ranks, off the critical path of a restart.

It reports each round that is entered to the launcher, and deletes the keys of rounds that are no longer read.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from nvrx_core.inprocess.compose import Compose
from nvrx_core.inprocess.coordination.control_store import ControlStore
from nvrx_core.inprocess.initialize import Initialize, RetryController
from nvrx_core.inprocess.protocol.decision import Decision
from nvrx_core.inprocess.protocol.ports import StoreFailure
from nvrx_core.inprocess.protocol.retention import kept_in_call
from nvrx_core.inprocess.state import State
from nvrx_core.progress.page import Page
from nvrx_core.store.keys import LauncherKeys

__all__ = ["Housekeeping", "least_world_size"]

KEPT: Final = 2
"""Rounds whose keys may still be read when a further one has ended."""


class Housekeeping:
    """The housekeeping of a rank; only rank 0 has any.

    Args:
        control_store: on a connection that no wait blocks.
        page: the rank's progress page, which names the members that are lost.
        least: the minimum number of ranks with which the call continues.
        defer: runs work soon, in a thread that no restart waits for.
    """

    def __init__(
        self, control_store: ControlStore, page: Page, least: int, defer: Callable[[Callable[[], None]], None]
    ) -> None:
        self.control_store, self.page, self.least = control_store, page, least
        self._defer = defer
        self._announced = self._over = False
        self._read_late = frozenset[int]()
        self._telling = threading.Lock()

    def entered(self, state: State) -> None:
        """Record that an iteration has started."""
        if state.active_rank == 0:
            iteration = state.iteration
            self._defer(lambda: self._tell(iteration))

    def decided(self, rank: int, decision: Decision) -> None:
        """Record that a round has ended, in which this rank was `rank`."""
        self._read_late |= kept_in_call(decision)
        ended = decision.iteration - KEPT
        if rank == 0 and ended >= 0:
            read_late, deletion = ended in self._read_late, self.control_store.deletion
            self._defer(lambda: deletion.delete_round(ended, self.page.world_size, read_late=read_late))

    def close(self) -> None:
        """Stop writing: the call's keys may be deleted from now on."""
        with self._telling:
            self._over = True

    def _tell(self, iteration: int) -> None:
        store, generation = self.control_store.store, self.control_store.keys.generation
        keys = LauncherKeys(self.control_store.keys.job, self.control_store.keys.call)
        lost = sorted(set(range(self.page.world_size)) - self.page.members())
        entered = json.dumps({"generation": generation, "iteration": iteration, "lost": lost})
        announcement = json.dumps({"generation": generation, "min_world_size": self.least, "pid": os.getpid()})
        with self._telling, suppress(StoreFailure):
            if not self._over:
                if not self._announced:
                    store.put(keys.announce(), announcement)
                store.put(keys.entered(), entered)
                self._announced = True


def least_world_size(initialize: Initialize | None) -> int:
    """Return how many ranks must be alive for an iteration to start: the highest `min_world_size`, at least 1."""
    asked = (part.min_world_size for part in _parts(initialize) if isinstance(part, RetryController))
    return max([1, *asked])


def _parts(initialize: object) -> Iterator[object]:
    if not isinstance(initialize, Compose):
        yield initialize
        return
    for part in initialize.instances:
        yield from _parts(part)
