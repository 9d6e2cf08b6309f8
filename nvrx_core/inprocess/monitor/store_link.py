"""The monitor process's connection to the control store, opened when it is first needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from nvrx_core.failpoint import hit
from nvrx_core.inprocess.coordination.control_store import ControlStore
from nvrx_core.inprocess.coordination.guarded_store import GuardedStore
from nvrx_core.inprocess.coordination.joining import join_for_dead
from nvrx_core.inprocess.monitor.plan import MonitorPlan
from nvrx_core.inprocess.progress_watchdog import SILENT_STORE
from nvrx_core.inprocess.protocol.ports import StoreFailure
from nvrx_core.progress.page import Page, ProgressField
from nvrx_core.store.connection import Connection
from nvrx_core.store.mixin import as_client

__all__ = ["StoreLink"]


class StoreLink:
    """The connection of all parts of the process.

    Args:
        plan: the plan of the process.
        page: the rank's progress page, which names the generation of keys.
        has_ended: whether the store has ended with the rank that hosts it: torch would try to connect for seconds.

    Attributes:
        reattaches: this process replaces one that was lost.
    """

    def __init__(self, plan: MonitorPlan, page: Page, has_ended: Callable[[], bool]) -> None:
        self.plan, self.page, self._has_ended = plan, page, has_ended
        self.reattaches = False
        self._control_store: ControlStore | None = None

    def connect(self) -> ControlStore:
        """Return the control store; opens the connection on the first call.

        Raises:
            StoreFailure: when the store cannot be reached.
        """
        if self._control_store is None:
            if self._has_ended():
                raise StoreFailure("the rank that hosts the store has ended")
            try:  # with a bound: torch would wait forever for a store that is silent, and nobody would judge the rank
                plan, silence = self.plan, int(SILENT_STORE)
                store: Any = Connection(self._open, plan.factory, plan.kwargs, silence=silence)
            except Exception as error:  # boundary: a user's store factory
                raise StoreFailure(str(error)) from error
            generation = max(0, self.page[ProgressField.GENERATION] - 1)
            self._control_store = ControlStore(GuardedStore(store), self.plan.keys.of(generation))
            if self.reattaches:
                hit("monitor-reattach", self.page[ProgressField.ITERATION])
        return self._control_store

    def join_for_dead(self) -> bool:
        """Complete the joining of a dead rank, and continue with the keys of its generation, if it has one."""
        store = self.connect().store
        keys = join_for_dead(store, self.plan.keys, self.page, self.plan.entrant)
        if keys is not None:
            self._control_store = ControlStore(store, keys)
        return keys is not None

    def _open(self) -> dist.Store:
        with as_client():
            return self.plan.factory(**self.plan.kwargs)
