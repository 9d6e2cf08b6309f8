"""Carry out what a round's machine asks of the store. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from nvrx_core.inprocess.protocol.effects import Flow, StoreOperation
from nvrx_core.inprocess.protocol.round import Action, DeathReport, Round, StoreAction

__all__ = ["play"]


def play(machine: Round | DeathReport, actions: Iterable[Action], now: Callable[[], float]) -> Flow[list[Action]]:
    """Carry out store actions and feed the answers back, until only other actions are left; returns those."""
    pending, rest = deque(actions), list[Action]()
    while pending:
        action = pending.popleft()
        if not isinstance(action, StoreAction):
            rest.append(action)
            continue
        answer = yield StoreOperation(action, machine.iteration)
        if answer is not None:
            method, *told = answer
            pending.extend(getattr(machine, method)(*told, now=now()))
    return rest
