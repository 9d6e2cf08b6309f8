"""The abort of a call as a chain of independent steps: one that fails does not prevent the others.

A composition is taken apart into its parts, in the order in which it would run them. A part that names an `AbortPhase`
goes there; the others keep their place before or after torch's abort. The parts of phase `MAIN_THREAD` wait for the
main thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from nvrx_core.errors import ParameterError
from nvrx_core.inprocess.abort import AbortPhase, AbortTorchDistributed
from nvrx_core.inprocess.compose import Compose
from nvrx_core.inprocess.state import FrozenState

__all__ = ["AbortChain", "steps_of"]

log = logging.getLogger("nvrx_core.inprocess")
Step = Callable[[FrozenState], Any]
_PLACE: Final = {AbortPhase.BEFORE_TORCH: 0, None: 1, AbortPhase.AFTER_TORCH: 2}


def steps_of(abort: Step) -> list[Step]:
    """Return the parts of a composition in the order in which they run, also of one inside another.

    Raises:
        ValueError: when a part's `phase` is none.
    """
    if isinstance(abort, Compose) and type(abort).__call__ is Compose.__call__:
        return [step for part in reversed(abort.instances) for step in steps_of(part)]
    if not isinstance(phase_of(abort), AbortPhase | None):
        expected = "a member of nvrx_core.inprocess.abort.AbortPhase, or None"
        raise ParameterError(f"{_name(abort)}.phase", phase_of(abort), expected)
    return [abort]


def phase_of(step: Step) -> Any:
    """Return the phase that a step names, None for its place in the composition."""
    return getattr(step, "phase", None)


class AbortChain:
    """The steps of one abort.

    Args:
        abort: the user's; None for nothing.

    Attributes:
        beside: those that run beside the function, in order.
        main: those that run in the main thread once it is out of the function.
    """

    def __init__(self, abort: Step | None) -> None:
        steps = [] if abort is None else steps_of(abort)
        self.main = [step for step in steps if phase_of(step) is AbortPhase.MAIN_THREAD]
        self.beside = _in_order([step for step in steps if phase_of(step) is not AbortPhase.MAIN_THREAD])
        self._aborts_groups = abort is not None

    def run(self, state: FrozenState) -> None:
        """Run the steps beside the function; if one fails, torch's groups are aborted all the same."""
        failed = _run(self.beside, state)
        aborted = any(_is_torch_abort(step) and step not in failed for step in self.beside)
        if self._aborts_groups and failed and not aborted:
            _run([AbortTorchDistributed()], state)

    def run_in_main_thread(self, state: FrozenState) -> None:
        """Run the steps that wait for the main thread."""
        _run(self.main, state)


def _in_order(steps: list[Step]) -> list[Step]:
    """Put the steps in the order of their phases; within one they stay in that of the composition."""
    torch_abort = next((number for number, step in enumerate(steps) if _is_torch_abort(step)), None)

    def place(numbered: tuple[int, Step]) -> int:
        number, step = numbered
        if torch_abort is None or phase_of(step) is not None:
            return _PLACE[phase_of(step)]
        return (number > torch_abort) - (number < torch_abort) + 1

    return [step for _, step in sorted(enumerate(steps), key=place)]


def _is_torch_abort(step: Step) -> bool:
    return isinstance(step, AbortTorchDistributed)


def _run(steps: Iterable[Step], state: FrozenState) -> list[Step]:
    """Run each step, whatever those before it did, and log its outcome; return those that failed."""
    failed = list[Step]()
    for step in steps:
        began = time.monotonic()
        try:
            returned = step(state)
        except BaseException:  # boundary: a user's abort; the other steps and the interruption must follow
            failed.append(step)
            log.exception("abort failed in %s after %s", _name(step), _since(began))
        else:
            state = returned if isinstance(returned, FrozenState) else state
            log.debug("abort: %s is done after %s", _name(step), _since(began))
    return failed


def _name(step: Step) -> str:
    return str(getattr(step, "__qualname__", type(step).__qualname__))


def _since(began: float) -> str:
    return f"{(time.monotonic() - began) * 1000:.1f} ms"
