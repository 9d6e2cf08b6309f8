"""The phases of a living member in a round, and the transition for each input: the table that `Round` follows.

An input that the table does not have in a phase cannot occur in it; `Round` answers with an `InternalError` and does
not change. A machine has inputs from two threads, so some arrive when the other thread has continued already: these are
in the table, and have no effect.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from nvrx_core.inprocess.protocol.actions import Action, InternalError

__all__ = ["NOWHERE", "TRANSITIONS", "Input", "Phase", "takes"]


class Phase(enum.Enum):
    """The phase of a member in a round."""

    __hash__ = object.__hash__  # each input is a look-up, and that of an enumeration hashes a name

    OPEN = "in the function, or on its way into it"
    COMPLETE = "has completed, and waits for the others"
    INTERRUPTED = "out of the function, or on its way out: the round restarts"
    ARRIVED = "in the barrier"
    DECIDED = "knows the decision"
    FINISHED = "knows that all have completed"


class Input(enum.Enum):
    """The inputs of a machine, by method."""

    FAULT = "`fault`: its function failed, or the others are late"
    COMPLETED = "`completed`: its function returned, or it is a reserve"
    WAITS = "`waits_for_completion`: the others have a bound"
    EVENT = "`happened`: the round has its event"
    CAUSE = "`event`: what the event says"
    ARRIVES = "`arrive`: ready for the next round, or leaving"
    LEAVES = "`leave`: it has no place in the round"
    DECISION = "`decided`: the round has its decision"
    HOLDERS = "`held_up`: who is in an atomic section"


NOWHERE: Final = ()
"""What has happened meanwhile has overtaken the input: nothing follows."""

TRANSITIONS: Final[Mapping[Input, Mapping[Phase, tuple[Phase, ...]]]] = {
    Input.FAULT: {
        Phase.OPEN: (Phase.OPEN,),
        Phase.COMPLETE: (Phase.COMPLETE,),
        Phase.INTERRUPTED: NOWHERE,
        Phase.FINISHED: NOWHERE,
    },
    Input.COMPLETED: {Phase.OPEN: (Phase.COMPLETE,), Phase.INTERRUPTED: NOWHERE},
    Input.WAITS: {Phase.COMPLETE: (Phase.COMPLETE,), Phase.INTERRUPTED: NOWHERE, Phase.FINISHED: NOWHERE},
    Input.EVENT: {
        Phase.OPEN: (Phase.INTERRUPTED,),
        Phase.COMPLETE: (Phase.COMPLETE,),
        Phase.ARRIVED: NOWHERE,
    },
    Input.CAUSE: {Phase.COMPLETE: (Phase.INTERRUPTED, Phase.FINISHED)},
    Input.ARRIVES: {Phase.OPEN: (Phase.ARRIVED,), Phase.INTERRUPTED: (Phase.ARRIVED,)},
    Input.LEAVES: {Phase.OPEN: (Phase.ARRIVED,), Phase.INTERRUPTED: (Phase.ARRIVED,)},
    Input.DECISION: {  # it comes early to a member that lives and was taken for dead
        Phase.OPEN: NOWHERE,
        Phase.INTERRUPTED: NOWHERE,
        Phase.ARRIVED: (Phase.DECIDED,),
    },
    Input.HOLDERS: {
        Phase.COMPLETE: (Phase.COMPLETE,),
        Phase.ARRIVED: (Phase.ARRIVED,),
        Phase.INTERRUPTED: NOWHERE,
        Phase.DECIDED: NOWHERE,
        Phase.FINISHED: NOWHERE,
    },
}
"""For each input, the phases in which it comes, and those that it may lead to."""

Arguments = ParamSpec("Arguments")
Machine = TypeVar("Machine", bound=Any)
Actions = tuple[Action, ...]


def takes(
    kind: Input,
) -> Callable[[Callable[Concatenate[Machine, Arguments], Actions]], Callable[Concatenate[Machine, Arguments], Actions]]:
    """Let a method of a machine with a `phase` follow the table."""
    rule = TRANSITIONS[kind]
    wrong = {phase: (InternalError(f"{kind.name} came in phase {phase.name}"),) for phase in Phase}

    def decorate(
        method: Callable[Concatenate[Machine, Arguments], Actions],
    ) -> Callable[Concatenate[Machine, Arguments], Actions]:
        @functools.wraps(method)
        def checked(machine: Machine, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Actions:
            before: Phase = machine.phase
            leads_to = rule.get(before)
            if leads_to is None:
                return wrong[before]
            if not leads_to:
                return NOWHERE
            actions = method(machine, *args, **kwargs)
            if machine.phase not in leads_to:
                return (*actions, InternalError(f"{kind.name} led from {before.name} to {machine.phase.name}"))
            return actions

        return checked

    return decorate
