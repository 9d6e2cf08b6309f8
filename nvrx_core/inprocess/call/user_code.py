"""The user's code in a call: the function and the plug-ins around it, each run by an effect of the main thread's flow.

Whatever it raises is an outcome: the flow decides what follows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from nvrx_core.errors import HealthCheckError, StoreLost
from nvrx_core.failpoint import hit
from nvrx_core.fault.exceptions import text_of
from nvrx_core.inprocess.call.parameters import Parameters
from nvrx_core.inprocess.call.resources import Equipment
from nvrx_core.inprocess.coordination.interpreter import Rules
from nvrx_core.inprocess.protocol import effects
from nvrx_core.inprocess.protocol.outcome import IterationResult, Outcome, RankShouldRestart, how_it_ended
from nvrx_core.inprocess.state import State
from nvrx_core.process.forks import EndedInChild
from nvrx_core.progress.stage import Stage
from nvrx_core.rank_assignment.base import Mode, RankAssignmentCtx
from nvrx_core.rank_assignment.composition import assign, declare, snapshot

__all__ = ["UserCode"]

log = logging.getLogger("nvrx_core.inprocess")


class UserCode:
    """Runs it.

    Args:
        parameters: the wrapper's.
        state: this rank's.
        kit: the call's equipment.
        function: the wrapped one, with its arguments.

    Attributes:
        keys: what the user's key functions said last.
    """

    def __init__(self, parameters: Parameters, state: State, kit: Equipment, function: Callable[[], Any]) -> None:
        self.parameters, self.state, self.kit = parameters, state, kit
        self.keys: tuple[str, ...] = ()
        self._function = function

    def rules(self) -> Rules:
        """The effects that run the user's code."""
        return {
            effects.DeclareKeys: self._declare,
            effects.Assign: self._assign,
            effects.Initialize: lambda effect: self._guarded(self._initialize),
            effects.RunFunction: lambda effect: self._guarded(self._run),
            effects.Recover: self._recover,
            effects.Terminate: self._terminate,
            effects.Complete: self._complete,
        }

    def _declare(self, effect: effects.DeclareKeys) -> BaseException | None:
        try:
            self.keys = declare(self.parameters.rank_assignment, self.state, effect.iteration)
        except BaseException as error:  # boundary: a user's key function; whatever it raises, the rank leaves
            return error
        return None

    def _assign(self, effect: effects.Assign) -> BaseException | None:
        state, decision = self.state, effect.decision
        try:
            self._place(effect)
        except BaseException as error:  # boundary: a user's rank assignment; whatever it raises, the rank leaves
            state.mode = Mode.TERMINATED
            return error
        if decision.iteration >= 0:
            state.advance()
        state.set_distributed_vars()
        return None

    def _place(self, effect: effects.Assign) -> None:
        parameters, state, decision = self.parameters, self.state, effect.decision
        ranks, terminated = parameters.rank_assignment, set(decision.terminated)
        store = self.kit.assignment_store(decision.iteration + 1)
        facts = snapshot(
            ranks, state.freeze(), iteration=decision.iteration, terminated=terminated, columns=decision.keys
        )
        assign(ranks, RankAssignmentCtx(state, store, terminated, facts))
        if parameters.rank_filter is not None:
            parameters.rank_filter(RankAssignmentCtx(state, store, set()))

    def _guarded(self, run: Callable[[], IterationResult | None]) -> IterationResult | None:
        """Every way out of the user's code ends here, except on the way to the next piece of it."""
        try:
            ended = run()
        except EndedInChild:
            raise
        except StoreLost:
            self._out()
            raise
        except BaseException as error:  # boundary: the wrapped function and its initialize
            ended = self._ended_by(error)
        finally:
            self.kit.interrupt.armed = False
        if ended is not None:
            self._out()
        return ended

    def _out(self) -> None:
        kit = self.kit
        kit.struck = time.monotonic()
        kit.enter(Stage.UNWINDING)
        kit.interrupt.leave()

    def _ended_by(self, error: BaseException) -> IterationResult:
        kit = self.kit
        landed = kit.aborting or kit.interrupt.raised > 0
        how = how_it_ended(error, requested=kit.interrupt.requested, landed=landed)
        if isinstance(error, RankShouldRestart):
            kit.report_restart()
        if how is Outcome.INTERRUPTED:
            kit.mark("interrupted")
        return IterationResult(how, error=error)

    def _initialize(self) -> IterationResult | None:
        kit, parameters = self.kit, self.parameters
        kit.observer.clear_groups()
        if parameters.initialize is not None:
            parameters.initialize(self.state.freeze())
        try:
            self._check_health()
        except HealthCheckError as error:
            return IterationResult(Outcome.LEFT, error=error)
        kit.mark("initialized")
        if self.state.mode is not Mode.ACTIVE:
            kit.entered(self.state)
            return IterationResult(Outcome.RESERVE)
        return None

    def _run(self) -> IterationResult:
        kit = self.kit
        kit.observer.begin()
        kit.threads.begin(self.state.iteration)
        kit.enter(Stage.RUNNING)
        hit("entry-before", self.state.iteration)
        try:
            kit.interrupt.arm()
            if kit.early_exit.reason is not None:
                raise kit.early_exit.reason()
            kit.entered(self.state)
            return IterationResult(Outcome.RETURNED, result=self._function())
        finally:  # in this order, and nothing before them
            kit.interrupt.armed = False
            kit.interrupt.drop()

    def _check_health(self) -> None:
        if self.parameters.health_check is None:
            return
        try:
            self.parameters.health_check(self.state.freeze())
        except Exception as error:  # boundary: a user's health check
            message = f"health check failed: {text_of(error)}"
            raise HealthCheckError(message, initial_rank=self.state.initial_rank) from error

    def _recover(self, effect: effects.Recover) -> BaseException | None:
        self.state.fn_exception = effect.failure
        try:
            if self.parameters.finalize is not None:
                self.parameters.finalize(self.state.freeze())
            self.kit.mark("finalized")
            self._check_health()
            self.kit.mark("health_checked")
        except BaseException as error:  # boundary: a user's plug-in; whatever it raises, the rank leaves
            return error
        finally:
            self.state.fn_exception = None
        return None

    def _terminate(self, effect: effects.Terminate) -> BaseException | None:
        try:
            if self.parameters.terminate is not None:
                self.parameters.terminate(self.state.freeze())
        except BaseException as error:  # boundary: a user's plug-in; its exception replaces the original
            return error
        return None

    def _complete(self, effect: effects.Complete) -> BaseException | None:
        self.kit.events.write("completed", self.state.iteration)
        try:
            if self.parameters.completion is not None:
                self.parameters.completion(self.state.freeze())
        except Exception:  # boundary: a user's completion must not undo a completed job
            log.exception("completion failed")
        except BaseException as error:  # boundary: the call ends by it
            return error
        return None
