"""How a flow is run: its effects are carried out, their outcomes and failures go back into it."""

from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from nvrx_core.inprocess.interpretation.interpreter import interpret
from nvrx_core.inprocess.protocol.effects import Effect
from nvrx_core.process.forks import EndedInChild


@dataclass
class Double(Effect):
    number: int


@dataclass
class Fail(Effect):
    error: BaseException


def fail(effect):
    raise effect.error


RULES = {Double: lambda effect: 2 * effect.number, Fail: fail}


def test_a_flow_is_resumed_with_the_outcomes_and_returns_its_result():
    def flow():
        first = yield Double(2)
        second = yield Double(first)
        return first, second

    assert interpret(flow(), RULES) == (4, 8)


def test_what_a_rule_raises_is_raised_at_its_effect():
    def flow():
        try:
            yield Fail(KeyError("gone"))
        except KeyError:
            return (yield Double(3))

    assert interpret(flow(), RULES) == 6


def test_what_a_flow_does_not_catch_comes_out():
    def flow():
        yield Fail(SystemExit(75))

    with pytest.raises(SystemExit):
        interpret(flow(), RULES)


def test_a_flow_whose_steps_cannot_begin_is_given_up():
    """As when user code has broken what surrounds a step: the flow cannot even be told."""
    begun = []

    def flow():
        begun.append(True)
        yield Double(2)

    @contextmanager
    def broken():
        raise TypeError("'NoneType' object is not callable")
        yield

    with pytest.raises(TypeError, match="not callable"):
        interpret(flow(), RULES, broken)
    assert not begun


def test_a_step_that_cannot_begin_for_once_tells_the_flow():
    errors = [KeyboardInterrupt()]

    def flow():
        try:
            yield Double(2)
            yield Double(3)
        except KeyboardInterrupt:
            return (yield Double(4))

    @contextmanager
    def interrupted():
        if begun and errors:
            raise errors.pop()
        begun.append(True)
        yield

    begun = []
    assert interpret(flow(), RULES, interrupted) == 8


def test_a_child_of_fork_passes_by_the_flow():
    caught = []

    def flow():
        try:
            yield Fail(EndedInChild(result=3))
        except BaseException as error:
            caught.append(type(error))
            raise

    running = flow()
    with pytest.raises(EndedInChild):
        interpret(running, RULES)
    assert caught == []
    running.close()
    assert caught == [GeneratorExit]


def test_a_step_is_surrounded_and_an_effect_is_not():
    history = []

    @contextmanager
    def step():
        history.append("begins")
        yield
        history.append("ends")

    def flow():
        history.append("step")
        yield Double(1)
        history.append("step")

    rules = {Double: lambda effect: history.append("effect")}
    interpret(flow(), rules, step)
    assert history[:5] == ["begins", "step", "ends", "effect", "begins"]
