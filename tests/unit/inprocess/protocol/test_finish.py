"""The end of a call: whatever comes, the others hear that this rank needs the store no longer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nvrx_core.inprocess.interpretation.interpreter import interpret
from nvrx_core.inprocess.protocol import effects
from nvrx_core.inprocess.protocol.call_rules import CallRules
from nvrx_core.inprocess.protocol.main_thread import MainThread
from nvrx_core.inprocess.protocol.outcome import IterationResult, Outcome
from nvrx_core.inprocess.protocol.round import RoundTimeouts
from nvrx_core.inprocess.protocol.view import Rounds
from nvrx_core.inprocess.state import State


class Empty(KeyboardInterrupt):
    """An error that is not true."""

    def __bool__(self) -> bool:
        return False


def main_thread(*, finished: bool) -> MainThread:
    rounds = Rounds(0, frozenset({0}), RoundTimeouts(1.0, 1.0))
    rounds.view.finished = finished
    state = State(rank=0, world_size=1, initial_rank=0, initial_world_size=1)
    return MainThread(rounds, state, CallRules(leader=lambda *_: None), lambda: 0.0)


def finish(
    ended: IterationResult, outcome: Callable[[effects.Effect], Any], *, finished: bool
) -> list[type[effects.Effect]]:
    """The effects of the end; `outcome` carries out the report of it."""
    done = list[type[effects.Effect]]()
    kinds = (effects.StopHousekeeping, effects.MarkLeft, effects.EnterStage, effects.CountOut, effects.DeleteIfOver)
    rules = {kind: lambda effect: done.append(type(effect)) for kind in kinds}
    interpret(
        main_thread(finished=finished)._finish(ended), rules | {effects.Complete: outcome, effects.ReportLeft: outcome}
    )
    return done


def interrupt(effect: effects.Effect) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("finished", [True, False])
def test_what_interrupts_the_report_of_the_end_is_raised_after_the_rank_has_left(finished: bool) -> None:
    ended = IterationResult(Outcome.RETURNED)
    assert effects.MarkLeft in finish(ended, interrupt, finished=finished)
    assert isinstance(ended.error, KeyboardInterrupt)


def test_an_error_counts_whether_or_not_it_is_true() -> None:
    ended = IterationResult(Outcome.RETURNED)
    finish(ended, lambda effect: Empty(), finished=True)
    assert isinstance(ended.error, Empty)
    ended = IterationResult(Outcome.LEFT, error=ValueError("first"))
    interpret(main_thread(finished=False)._terminate(ended), {effects.Terminate: lambda effect: Empty()})
    assert isinstance(ended.error, Empty)


def test_a_flow_that_is_dropped_does_nothing_more() -> None:
    flow = main_thread(finished=True)._finish(IterationResult(Outcome.RETURNED))
    assert isinstance(next(flow), effects.Complete)
    flow.close()
