"""Runs a round's machine against a store, as the flows do."""

from __future__ import annotations

from collections.abc import Iterable

from nvrx_core.flow import run
from nvrx_core.inprocess.coordination.control_store import CallStore, ControlStore
from nvrx_core.inprocess.protocol.death_report import DeathReport
from nvrx_core.inprocess.protocol.round import Round, RoundAction, run_store_actions

__all__ = ["carry_out"]


def carry_out(
    control_store: ControlStore, machine: Round | DeathReport, actions: Iterable[RoundAction]
) -> list[RoundAction]:
    """Carry out store actions and feed the answers back; returns those that are not the store's."""
    return run(run_store_actions(machine, actions, CallStore(lambda: control_store, len(machine.members))))
