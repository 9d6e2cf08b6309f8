"""Whatever is raised while a flow runs reaches the flow, and what the flow raises keeps nothing of the call alive."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from nvrx_core.inprocess.interpretation.interpreter import Rules, interpret
from nvrx_core.inprocess.protocol.effects import Abandon, CollectGarbage, Effect, Flow, LogWaiting
from nvrx_core.process.forks import EndedInChild


class Interrupted(BaseException):
    """A signal handler's."""


class Connection:
    """What a rule uses."""


def flow() -> Flow[str]:
    """As that of the main thread: tells the others of what ends it."""
    try:
        yield CollectGarbage()
        yield LogWaiting("the others")
    except GeneratorExit:
        raise
    except BaseException as error:  # boundary: as there
        yield Abandon(error)
        raise
    return "done"


def raise_interrupted(effect: Effect) -> None:
    raise Interrupted


@pytest.mark.parametrize(("moment", "at"), [("before", 2), ("after", 2), ("before", 3)])
def test_an_interruption_between_two_steps_reaches_the_flow(moment: str, at: int) -> None:
    done = list[type[Effect]]()
    steps = iter(range(1, 10))

    @contextmanager
    def step() -> Iterator[None]:
        injected = next(steps) == at
        if injected and moment == "before":
            raise Interrupted
        yield
        if injected and moment == "after":
            raise Interrupted

    def carry_out(effect: Effect) -> None:
        done.append(type(effect))

    rules = dict.fromkeys((CollectGarbage, LogWaiting, Abandon), carry_out)
    with pytest.raises(Interrupted):
        interpret(flow(), rules, step)
    assert done[-1] is Abandon


def test_what_a_flow_raises_keeps_nothing_of_the_call() -> None:
    connection = Connection()
    dropped = weakref.ref(connection)
    used = list[int]()
    rules: Rules = {
        CollectGarbage: lambda effect, held=connection: used.append(id(held)),
        LogWaiting: raise_interrupted,
        Abandon: lambda effect: None,
    }
    del connection
    gc.disable()
    try:
        with pytest.raises(Interrupted) as caught:
            interpret(flow(), rules)
        del rules
        assert len(used) == 1
        assert dropped() is None, "the traceback keeps the connection"
        error = weakref.ref(caught.value)
        del caught
        assert error() is None, "the error is in a cycle"
    finally:
        gc.enable()


def test_what_a_rule_raises_is_the_flows_even_if_it_looks_like_its_end() -> None:
    def raise_stop(effect: Effect) -> None:
        raise StopIteration("no end")

    with pytest.raises(RuntimeError, match="StopIteration"):
        interpret(flow(), {CollectGarbage: raise_stop, Abandon: lambda effect: None})


def test_a_child_of_fork_passes_by_the_flow() -> None:
    def end_in_child(effect: Effect) -> None:
        raise EndedInChild

    with pytest.raises(EndedInChild):
        interpret(flow(), {CollectGarbage: end_in_child})
