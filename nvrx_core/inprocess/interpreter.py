"""Runs a flow: carries out each effect by the rule for its type, and resumes the flow with the outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from nvrx_core.inprocess.forks import EndedInChild
from nvrx_core.inprocess.protocol.effects import Effect, Flow

__all__ = ["Rules", "interpret"]

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
        BaseException: what the flow raises. What a rule raises is raised in the flow, at its effect; but a child of
            `os.fork` passes by the flow, which is the rank's.
    """
    resume, outcome = flow.send, None
    while True:
        try:
            with step():
                effect = resume(outcome)
        except StopIteration as end:
            result: Result = end.value
            return result
        try:
            resume, outcome = flow.send, rules[type(effect)](effect)
        except EndedInChild:
            raise
        except BaseException as error:  # boundary: the flow decides what follows
            resume, outcome = flow.throw, error
