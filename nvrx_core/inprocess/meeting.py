"""Where the next process group meets: in a store that its rank 0 hosts.

Each rank offers a place when it arrives at the barrier, and the decision tells the places of those who may become rank
0. Where every rank can tell who that will be, nobody asks; else the new rank 0 writes its place into the control store.
"""

from __future__ import annotations

from nvrx_core.inprocess.connections import Connections
from nvrx_core.inprocess.decision import Decision
from nvrx_core.inprocess.environment import set_master
from nvrx_core.inprocess.equipment import Equipment
from nvrx_core.inprocess.rules import Parameters
from nvrx_core.inprocess.state import State
from nvrx_core.progress.stage import Stage
from nvrx_core.rank_assignment.composition import leader

__all__ = ["Place", "foretold", "meet", "offer"]

Place = tuple[str, int]
"""Host and port."""


def offer(links: Connections, parameters: Parameters) -> str:
    """The `host:port` that this rank offers; "" where the others could not tell that it is rank 0."""
    return links.offer_meeting() if _leader(parameters, 1, ()) is not None else ""


def foretold(parameters: Parameters, world_size: int, decision: Decision) -> Place | None:
    """Where the new rank 0 has offered to meet; None where the ranks must ask.

    Args:
        parameters: the wrapper's.
        world_size: of the iteration that ended.
        decision: what has ended it.
    """
    return decision.place_of(_leader(parameters, world_size, decision.terminated))


def _leader(parameters: Parameters, world_size: int, terminated: tuple[int, ...]) -> int | None:
    if parameters.rank_filter is not None:
        return None
    return leader(parameters.rank_assignment, world_size, terminated)


def meet(kit: Equipment, state: State, place: Place | None) -> Place | None:
    """Give the next process group a place to meet; None when its rank 0 is lost, or this rank is none of it.

    Args:
        kit: the call's equipment.
        state: this rank's, in the iteration that begins.
        place: the one that was foretold.
    """
    if state.active_rank == 0:
        hosted = kit.links.host_meeting()
        if place is None:
            kit.board.set_master(state.iteration, hosted)
    if place is None and state.active_rank is not None:
        kit.enter(Stage.WAITING)
        place = kit.board.master(state.iteration)
        kit.enter(Stage.STARTING)
    if place is not None and state.iteration > 0:
        set_master(*place)
    kit.observer.meeting_place = place
    return place
