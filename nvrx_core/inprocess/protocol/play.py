"""Execution of a machine's store actions, and the report of invalid inputs. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from nvrx_core.inprocess.protocol.actions import (
    Action,
    Announce,
    CloseCompleted,
    CountArrival,
    CountCompletion,
    InternalError,
    Publish,
    PutArrival,
    ReadArrivals,
    ReadEvent,
)
from nvrx_core.inprocess.protocol.barrier import Barrier
from nvrx_core.inprocess.protocol.ports import RoundStore

__all__ = ["play"]


async def play(
    machine: Barrier, actions: Iterable[Action], store: RoundStore, now: Callable[[], float]
) -> list[Action]:
    """Execute store actions and pass the answers back, until only other actions are left; return those."""
    pending, iteration = deque(actions), machine.iteration
    rest: list[Action] = []
    while pending:
        action = pending.popleft()
        match action:
            case Announce(fault):
                cause = await store.announce(iteration, fault)
                pending += machine.announced(cause, now=now())
            case CountCompletion():
                count = await store.count_completion(iteration)
                pending += machine.completion_counted(count, now=now())
            case CloseCompleted():
                await store.close_completed(iteration)
            case ReadEvent():
                cause = await store.read_event(iteration)
                pending += machine.event(cause, now=now())
            case PutArrival(arrival):
                await store.put_arrival(iteration, arrival)
            case CountArrival():
                count = await store.count_arrival(iteration)
                pending += machine.arrival_counted(count, now=now())
            case ReadArrivals(members):
                arrivals, event = await store.read_arrivals(iteration, members)
                pending += machine.arrivals_read(arrivals, event, now=now())
            case Publish(decision):
                await store.publish(iteration, decision)
            case InternalError(reason):
                await store.report_internal_error(f"round {iteration}: {reason}")
            case _:
                rest.append(action)
    return rest
