"""The effects of a simulated rank's monitor thread, and of what interrupts its main thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from nvrx_core.inprocess.interruption import driving
from nvrx_core.inprocess.interruption.policy import InterruptPolicy, Seen
from nvrx_core.inprocess.protocol import effects, monitor_effects
from nvrx_core.inprocess.protocol.actions import InternalError
from nvrx_core.inprocess.protocol.transitions import Phase

from .running import Waits, fail, rules_of
from .world import AwaitKey, Until

if TYPE_CHECKING:
    from .rank import Rank

__all__ = ["THREAD"]


def _await_event(rank: Rank, effect: effects.AwaitEvent) -> Waits:
    cause = (yield AwaitKey(effect.iteration, "event"))[0]
    rank.cause, rank.noticed = cause, effect.iteration
    done = cause is not None or rank.rounds.view.round.phase is not Phase.OPEN
    assert done, f"I11: a round is completed that {rank.member} has not completed"


def _notice(rank: Rank, effect: monitor_effects.NoticeEvent) -> None:
    round_, cause = rank.rounds.view.round, rank.cause
    again = round_.happened(now=rank.world.now) + round_.event(cause, now=rank.world.now)
    assert all(isinstance(action, InternalError) for action in again), f"I8: {rank.member} acts twice on an event"


def _last_call(_: Rank, effect: monitor_effects.LastCall) -> float:
    return effect.seconds


def _interrupt(rank: Rank, _: monitor_effects.InterruptFunction) -> Waits:
    function = rank.function
    function.requested = True
    rank.policy = InterruptPolicy(unwind=10.0)
    yield from _carry_out(rank, driving.begin(rank.policy, rank.now))
    while function.masked() and not function.out:
        yield Until(lambda: not function.masked() or function.out)


def _abort(rank: Rank, effect: monitor_effects.AbortFunction) -> float:
    rank.aborting = effect.iteration
    assert not rank.function.depth, f"I4: {rank.member}'s collectives are aborted in an atomic section"
    return rank.world.delay()


def _drive(rank: Rank, _: monitor_effects.AwaitOut) -> Waits:
    rank.main.poke()
    yield from _carry_out(rank, driving.drive(rank.policy, rank.now))


def _carry_out(rank: Rank, flow: effects.Flow[None]) -> Waits:
    """Carry out what interrupts the main thread."""
    function, (effect, first) = rank.function, (next(flow, None), True)
    while effect is not None:
        outcome: object = None
        if isinstance(effect, driving.AwaitLeft):
            if not (function.out or (first and effect.deadline <= rank.world.now)):
                yield Until(lambda: function.out, effect.deadline)
            outcome = function.out
        elif isinstance(effect, driving.AwaitUnmasked):
            yield Until(lambda: not function.masked() or function.out)
            outcome = function.out
        else:
            outcome = INTERRUPTS[type(effect)](rank, effect)
        first = False
        try:
            effect = flow.send(outcome)
        except StopIteration:
            return


def _observe(rank: Rank, _: driving.Observe) -> Seen:
    function = rank.function
    out = function.out or not function.armed
    return Seen(out=out, masked=function.masked(), raised=function.raised, alive=function.alive)


def _fire(rank: Rank, _: driving.FireInterrupt) -> None:
    assert rank.function.armed, f"I4: {rank.member} is interrupted outside the function"
    assert not rank.function.depth, f"I4: {rank.member} is interrupted in an atomic section"
    rank.function.signal()


def _close_blocked(rank: Rank, _: driving.CloseBlocked) -> None:
    assert rank.function.armed, f"I4: {rank.member} is unblocked outside the function"
    rank.function.blocked = False


def _logged(_: Rank, __: driving.ReportStored | driving.ReportSwallowed) -> None:
    """A log line."""


def _await_decision(rank: Rank, effect: effects.AwaitDecision) -> Waits:
    decision = yield AwaitKey(effect.iteration, "decision")
    round_, old = rank.rounds.view.round, rank.call.slots[effect.iteration - 1].decision
    stale = old is not None and round_.decided(old, now=rank.world.now)
    assert not stale, f"I8: {rank.member} acts in {effect.iteration} on the decision of the round before"
    rank.decision = decision
    return decision


def _reset(rank: Rank, _: monitor_effects.ResetInterrupt) -> None:
    assert rank.decision is not None
    again = rank.rounds.view.round.decided(rank.decision, now=rank.world.now)
    assert all(isinstance(action, InternalError) for action in again), f"I8: {rank.member} acts twice on a decision"
    rank.function.reset()


def _decided(rank: Rank, _: monitor_effects.RoundDecided) -> None:
    rank.main.poke()


INTERRUPTS: Final[Mapping[type[effects.Effect], Callable[[Rank, Any], Any]]] = {
    driving.CloseBlocked: _close_blocked,
    driving.FireInterrupt: _fire,
    driving.Observe: _observe,
    driving.ReportStored: _logged,
    driving.ReportSwallowed: _logged,
}
THREAD: Final = rules_of(
    ignored=(),
    at_once={
        monitor_effects.NoticeEvent: _notice,
        monitor_effects.ResetInterrupt: _reset,
        effects.ReportInternalError: fail,
        monitor_effects.RoundDecided: _decided,
    },
    wishes={
        monitor_effects.AbortFunction: _abort,
        monitor_effects.LastCall: _last_call,
    },
    waits={
        effects.AwaitDecision: _await_decision,
        effects.AwaitEvent: _await_event,
        monitor_effects.AwaitOut: _drive,
        monitor_effects.InterruptFunction: _interrupt,
    },
)
