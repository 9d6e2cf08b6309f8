"""The rendezvous of the next process group, a store that its rank 0 hosts, and the stores that user code gets.

Each rank offers an endpoint when it arrives at the barrier, and the decision carries those of the ranks that may become
rank 0. If every rank can compute the new rank 0, no request is needed; else the new rank 0 writes its endpoint to the
control store.
"""

from __future__ import annotations

import torch.distributed as dist

from nvrx_core.inprocess.configuration.parameters import Parameters
from nvrx_core.inprocess.coordination.connections import AssignmentStore, Connections
from nvrx_core.inprocess.groups.observer import GroupObserver
from nvrx_core.inprocess.state import State
from nvrx_core.rank_assignment.composition import leader
from nvrx_core.settings.environment import has_master, set_master

__all__ = ["UserStores", "leader_of", "offer", "use"]


def offer(connections: Connections, parameters: Parameters) -> str:
    """Return the `host:port` that this rank offers; "" if the others could not compute that it is rank 0."""
    return connections.offer_rendezvous() if leader_of(parameters, 1, ()) is not None else ""


def leader_of(parameters: Parameters, world_size: int, terminated: tuple[int, ...]) -> int | None:
    """Return the present rank of the next rank 0; None if it cannot be computed.

    Args:
        parameters: the parameters of the wrapper.
        world_size: the world size of the ended iteration.
        terminated: its ranks that no living member holds.
    """
    if parameters.rank_filter is not None:
        return None
    return leader(parameters.rank_assignment, world_size, terminated)


def use(observer: GroupObserver, state: State, endpoint: tuple[str, int] | None) -> None:
    """Use this endpoint for the next process group; None: there is none, or this rank is not in the group."""
    if endpoint is not None and (state.iteration > 0 or not has_master()):
        set_master(*endpoint)
    observer.rendezvous_endpoint = endpoint


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
