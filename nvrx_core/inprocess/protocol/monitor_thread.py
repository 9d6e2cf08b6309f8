"""The flow of the monitor thread: wait for the round's event, end the function, wait for the decision. Pure.

It runs as long as the call. Faults are pushed to it: it waits in the store on its own connection.
"""

from __future__ import annotations

from collections.abc import Callable

from nvrx_core.inprocess.protocol.actions import Abort, Action, Enter, Finish
from nvrx_core.inprocess.protocol.decision import Decision
from nvrx_core.inprocess.protocol.effects import (
    AwaitDecision,
    AwaitEvent,
    Flow,
)
from nvrx_core.inprocess.protocol.monitor_effects import (
    AbortFunction,
    AwaitOut,
    InterruptFunction,
    LastCall,
    NoticeEvent,
    ResetInterrupt,
    RoundDecided,
)
from nvrx_core.inprocess.protocol.play import play
from nvrx_core.inprocess.protocol.view import Rounds, RoundView

__all__ = ["monitor_thread"]


def monitor_thread(rounds: Rounds, now: Callable[[], float]) -> Flow[None]:
    """Run the rounds of one call, until all have completed or this rank has left the job."""
    going_on = True
    while going_on:
        view = rounds.view
        if view.round.iteration >= 0:
            yield from _await_end(view, now)
            if view.finished:
                return
        decision = yield AwaitDecision(view.round.iteration)
        going_on = yield from _go_on(rounds, view, decision, now)
        yield RoundDecided()


def _await_end(view: RoundView, now: Callable[[], float]) -> Flow[None]:
    """Wait for the event, and end the function if the round restarts."""
    yield AwaitEvent(view.round.iteration)
    actions: list[Action] = yield from play(view.round, view.round.happened(now=now()), now)
    for action in actions:
        if isinstance(action, Abort):
            yield from _end_function(view, action)
        else:
            assert isinstance(action, Finish)
            view.finished = True


def _end_function(view: RoundView, abort: Abort) -> Flow[None]:
    """Interrupt, then abort: a busy main thread would compete with the abort for the interpreter's lock."""
    iteration = view.round.iteration
    yield NoticeEvent(iteration)
    if view.round.timeouts.last_call > 0:
        yield LastCall(view.round.timeouts.last_call)
    yield InterruptFunction(abort.reason)
    yield AbortFunction(iteration, abort.reason)
    view.aborted = True
    yield AwaitOut()


def _go_on(rounds: Rounds, view: RoundView, decision: Decision, now: Callable[[], float]) -> Flow[bool]:
    """Continue with the next round; return False if this rank is not part of it."""
    actions: list[Action] = yield from play(view.round, view.round.decided(decision, now=now()), now)
    enter = next((action for action in actions if isinstance(action, Enter)), None)
    if enter is not None:
        yield ResetInterrupt()
        rounds.advance(enter.members)
    view.decision = decision
    return enter is not None
