"""The end of a call: whatever comes, the others hear that this rank needs the store no longer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nvrx_core.inprocess.protocol.flows import FlowRules, MainThread
from nvrx_core.inprocess.protocol.outcome import IterationResult, Outcome
from nvrx_core.inprocess.protocol.ports import CallPorts
from nvrx_core.inprocess.protocol.round import Rounds, RoundTimeouts
from nvrx_core.inprocess.state import State
from tests.harness.asked import Asked, Asking, ask, drive


class Empty(KeyboardInterrupt):
    """An error that is not true."""

    def __bool__(self) -> bool:
        return False


def main_thread(*, finished: bool) -> MainThread:
    rounds = Rounds(0, frozenset({0}), RoundTimeouts(1.0, 1.0))
    rounds.view.finished = finished
    state, ports = State(rank=0, world_size=1, initial_rank=0, initial_world_size=1), CallPorts(*(Asking(),) * 7)
    return MainThread(rounds, state, FlowRules(), ports=ports, now=lambda: 0.0)


def finish(ended: IterationResult, report: Callable[[], Any], *, finished: bool) -> list[str]:
    """What is asked for at the end; `report` carries out the report of it."""
    done = list[str]()

    def answer(asked: Asked) -> Any:
        if asked.name in ("complete", "report_left"):
            return report()
        return done.append(asked.name)

    drive(main_thread(finished=finished)._finish(ended), answer)
    return done


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("finished", [True, False])
def test_what_interrupts_the_report_of_the_end_is_raised_after_the_rank_has_left(finished: bool) -> None:
    ended = IterationResult(Outcome.RETURNED)
    assert "mark_left" in finish(ended, interrupt, finished=finished)
    assert isinstance(ended.error, KeyboardInterrupt)


def test_an_error_counts_whether_or_not_it_is_true() -> None:
    ended = IterationResult(Outcome.RETURNED)
    finish(ended, Empty, finished=True)
    assert isinstance(ended.error, Empty)
    ended = IterationResult(Outcome.LEFT, error=ValueError("first"))
    drive(main_thread(finished=False)._terminate(ended), lambda asked: Empty())
    assert isinstance(ended.error, Empty)


def test_a_flow_that_is_dropped_does_nothing_more() -> None:
    flow = main_thread(finished=True)._finish(IterationResult(Outcome.RETURNED))
    assert flow.send(None) == ask("complete")
    flow.close()


@pytest.mark.parametrize("fails", [{"declare_keys"}, {"declare_keys", "report_failure"}])
def test_a_flow_tells_the_others_before_all_else(fails: set[str]) -> None:
    flow = main_thread(finished=False)
    told = list[tuple[str, bool]]()

    def fail(asked: Asked) -> None:
        told.append((asked.name, flow.over))
        if asked.name in fails:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drive(flow.run(), fail)
    assert told == [("declare_keys", False), ("abandon", False), ("report_failure", True)]


def test_a_flow_that_could_not_tell_the_others_is_not_over() -> None:
    def fail(_: Asked) -> None:
        raise KeyboardInterrupt

    flow = main_thread(finished=False)
    with pytest.raises(KeyboardInterrupt):
        drive(flow.run(), fail)
    assert not flow.over


def test_a_flow_that_is_closed_has_told_nobody() -> None:
    flow = main_thread(finished=False)
    running = flow.run()
    assert running.send(None) == ask("declare_keys", -1)
    running.close()
    assert not flow.over


def test_released_ports_are_gone_though_a_traceback_keeps_the_flow() -> None:
    flow = main_thread(finished=False)
    flow.ports.release()
    assert not vars(flow.ports)
