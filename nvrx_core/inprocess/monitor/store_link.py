"""The monitor process's connection to the control store, opened when it is first needed."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from nvrx_core.failpoint import hit
from nvrx_core.inprocess.coordination.control_store import ControlStore
from nvrx_core.inprocess.coordination.guarded_store import GuardedStore
from nvrx_core.inprocess.monitor.plan import MonitorPlan
from nvrx_core.inprocess.progress_watchdog import SILENT_STORE
from nvrx_core.inprocess.protocol.effects import StoreFailure
from nvrx_core.progress.page import Page, ProgressField
from nvrx_core.store.connection import Connection
from nvrx_core.store.mixin import as_client

__all__ = ["StoreLink"]


class StoreLink:
    """One connection for all parts of the process.

    Args:
        plan: how to connect.
        page: the rank's progress page, which names the generation of keys.

    Attributes:
        reattaches: this process replaces one that was lost.
    """

    def __init__(self, plan: MonitorPlan, page: Page) -> None:
        self.plan, self.page = plan, page
        self.reattaches = False
        self._control_store: ControlStore | None = None

    def connect(self) -> ControlStore:
        """Return the control store; opens the connection on the first call.

        Raises:
            StoreFailure: when the store cannot be reached.
        """
        if self._control_store is None:
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

    def _open(self) -> dist.Store:
        with as_client():
            return self.plan.factory(**self.plan.kwargs)
