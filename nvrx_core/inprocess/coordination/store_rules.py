"""How a flow's effects on the control store are carried out: on one connection, that of the flow's shell."""

from __future__ import annotations

from datetime import timedelta

from nvrx_core.inprocess.coordination.control_store import FOREVER, ControlStore
from nvrx_core.inprocess.coordination.interpreter import Rules
from nvrx_core.inprocess.protocol import effects

__all__ = ["store_rules"]


def store_rules(control_store: ControlStore, size: int, decided_within: timedelta = FOREVER) -> Rules:
    """The rules for one connection.

    Args:
        control_store: the connection.
        size: how many members the call had at first.
        decided_within: bound of a wait for a decision.
    """
    return {
        effects.StoreOperation: lambda effect: control_store.perform(effect.action, effect.iteration),
        effects.AwaitDecision: lambda effect: control_store.wait_decision(effect.iteration, decided_within),
        effects.ReadDecision: lambda effect: control_store.decision(effect.iteration),
        effects.SetRendezvous: lambda effect: control_store.set_master(effect.iteration, effect.address),
        effects.AwaitRendezvous: lambda effect: control_store.master(effect.iteration),
        effects.CountOut: lambda effect: control_store.count_out(effect.iteration, effect.living, size),
        effects.DeleteIfOver: lambda effect: control_store.delete_if_over(size),
        effects.MarkLeft: lambda effect: control_store.leave(effect.member),
    }
