"""Execution of a machine's store actions, and the report of invalid inputs. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from nvrx_core.inprocess.protocol.actions import Action, InternalError, StoreAction
from nvrx_core.inprocess.protocol.effects import Flow, ReportInternalError, StoreOperation

__all__ = ["play"]


class Machine(Protocol):
    """The machine of one round."""

    iteration: int


def play(machine: Machine, actions: Iterable[Action], now: Callable[[], float]) -> Flow[list[Action]]:
    """Execute store actions and pass the answers back, until only other actions are left; return those."""
    pending = deque(actions)
    rest: list[Action] = []
    while pending:
        action = pending.popleft()
        if isinstance(action, StoreAction):
            answer = yield StoreOperation(action, machine.iteration)
            if answer is not None:
                pending += getattr(machine, answer[0])(*answer[1:], now=now())
        elif isinstance(action, InternalError):
            yield ReportInternalError(f"round {machine.iteration}: {action.reason}")
        else:
            rest.append(action)
    return rest
