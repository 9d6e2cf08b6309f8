"""Runs a flow: carries out each effect by the rule for its type, and resumes the flow with the outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any, Final, TypeVar

from nvrx_core.inprocess.protocol.effects import Effect, Flow
from nvrx_core.process.forks import EndedInChild

__all__ = ["Rules", "interpret"]

FAILURES: Final = 100
"""Steps in a row that fail before the flow goes on, after which it is given up: what surrounds a step is broken."""

Result = TypeVar("Result")
Rules = Mapping[type[Effect], Callable[[Any], Any]]
"""What carries out an effect of each type, and returns its outcome."""


def interpret(
    flow: Flow[Result],
    rules: Rules,
    step: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Result:
    """Run the flow to its end; returns its result.

    Args:
        flow: has not begun.
        rules: one for each effect that it may yield.
        step: what surrounds a step of the flow, from one effect to the next.

    Raises:
        BaseException: what the flow raises. What a rule raises is raised in the flow, at its effect, and so is what a
            signal handler raises between the two; but a child of `os.fork` passes by the flow, which is the rank's.
    """
    resume: Callable[[Any], Effect] = flow.send
    outcome: Any = None
    effect: Effect | None = None
    failures = 0
    try:
        while True:
            try:
                while True:
                    failures += 1
                    with step():
                        effect = resume(outcome)
                        failures = 0
                    resume, outcome = flow.send, rules[type(effect)](effect)
            except EndedInChild:
                raise
            except BaseException as error:  # boundary: the flow decides what follows, until it has ended
                if getgeneratorstate(flow) != GEN_CLOSED and failures < FAILURES:
                    resume, outcome = flow.throw, error
                elif isinstance(error, StopIteration):
                    result: Result = error.value
                    return result
                else:
                    raise
    finally:  # the error's traceback keeps this frame, which would keep the store's connections, and the error
        del flow, rules, step, resume, outcome, effect
