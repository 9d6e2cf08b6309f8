"""How a flow's effects on the control store are carried out: on one connection, that of the flow's shell."""

from __future__ import annotations

from datetime import timedelta

from nvrx_core.inprocess.coordination.control_store import FOREVER, Board
from nvrx_core.inprocess.coordination.interpreter import Rules
from nvrx_core.inprocess.protocol import effects

__all__ = ["store_rules"]


def store_rules(board: Board, size: int, decided_within: timedelta = FOREVER) -> Rules:
    """The rules for one connection.

    Args:
        board: the connection.
        size: how many members the call had at first.
        decided_within: bound of a wait for a decision.
    """
    return {
        effects.StoreOperation: lambda effect: board.perform(effect.action, effect.iteration),
        effects.AwaitDecision: lambda effect: board.wait_decision(effect.iteration, decided_within),
        effects.ReadDecision: lambda effect: board.decision(effect.iteration),
        effects.SetRendezvous: lambda effect: board.set_master(effect.iteration, effect.address),
        effects.AwaitRendezvous: lambda effect: board.master(effect.iteration),
        effects.CountOut: lambda effect: board.count_out(effect.iteration, effect.living, size),
        effects.DeleteIfOver: lambda effect: board.delete_if_over(size),
        effects.MarkLeft: lambda effect: board.leave(effect.member),
    }
