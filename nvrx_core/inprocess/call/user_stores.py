"""The stores for user code: that of an iteration, the control store itself, and that of a rank assignment."""

from __future__ import annotations

import torch.distributed as dist

from nvrx_core.inprocess.coordination.connections import AssignmentStore, Connections
from nvrx_core.inprocess.groups.observer import GroupObserver
from nvrx_core.inprocess.state import State

__all__ = ["UserStores"]


class UserStores:
    """Opens the stores, each on its own connection.

    Args:
        connections: the call's connections to the control store.
        observer: cuts a connection if nothing else ends the function's wait on it.
        state: the state of this rank.
    """

    def __init__(self, connections: Connections, observer: GroupObserver, state: State) -> None:
        self._connections, self._observer, self._state = connections, observer, state

    def assignment_store(self, iteration: int) -> AssignmentStore:
        """Return the store for a custom rank assignment before this iteration."""
        return self._connections.assignment_store(iteration)

    def iteration_store(self) -> dist.Store:
        """Open a torch store for the iteration, initially empty."""
        self._may_be_cut()
        return self._connections.iteration_store(self._state.iteration, self._observer.rendezvous_endpoint)

    def base_store(self) -> dist.Store:
        """Open a connection to the control store itself."""
        self._may_be_cut()
        return self._connections.another_store()

    def _may_be_cut(self) -> None:
        if self._connections.endpoint[1]:
            self._observer.store_ports.add(self._connections.endpoint[1])
