"""The rules for a flow's effects on the control store, on the connection of the flow's shell."""

from __future__ import annotations

import logging
from datetime import timedelta

from nvrx_core.inprocess.coordination.control_store import ControlStore
from nvrx_core.inprocess.coordination.guarded_store import FOREVER
from nvrx_core.inprocess.coordination.round_operations import RoundOperations
from nvrx_core.inprocess.interpretation.interpreter import Rules
from nvrx_core.inprocess.protocol import effects

__all__ = ["round_rules", "store_rules"]

log = logging.getLogger("nvrx_core.inprocess")


def round_rules(rounds: RoundOperations, decided_within: timedelta = FOREVER) -> Rules:
    """Return the rules for the effects of a round.

    Args:
        rounds: the operations, on the flow's connection.
        decided_within: bound of a wait for a decision.
    """
    return {
        effects.StoreOperation: lambda effect: rounds.perform(effect.action, effect.iteration),
        effects.AwaitDecision: lambda effect: rounds.wait_decision(effect.iteration, decided_within),
        effects.ReadDecision: lambda effect: rounds.decision(effect.iteration),
        effects.SetRendezvous: lambda effect: rounds.set_rendezvous(effect.iteration, effect.address),
        effects.AwaitRendezvous: lambda effect: rounds.wait_rendezvous(effect.iteration),
        effects.ReportInternalError: lambda effect: log.error("internal error, please report it: %s", effect.reason),
    }


def store_rules(control_store: ControlStore, size: int, decided_within: timedelta = FOREVER) -> Rules:
    """Return the rules for one connection: those of a round, and those for leaving the call.

    Args:
        control_store: the connection.
        size: the initial number of members.
        decided_within: bound of a wait for a decision.
    """
    membership, deletion = control_store.membership, control_store.deletion
    return {
        **round_rules(control_store.rounds, decided_within),
        effects.CountOut: lambda effect: deletion.count_out(effect.iteration, effect.living, size),
        effects.DeleteIfOver: lambda effect: deletion.delete_if_over(size),
        effects.MarkLeft: lambda effect: membership.mark_left(effect.member, silent=effect.silent),
    }
