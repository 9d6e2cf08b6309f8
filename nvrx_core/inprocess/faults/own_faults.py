"""This rank's own faults: made from exceptions, announced to the other ranks and written to the event file."""

from __future__ import annotations

import time
from contextlib import suppress

from nvrx_core.events.log import EventLog
from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.coordination.round_operations import RoundOperations
from nvrx_core.inprocess.faults.fault_maker import FaultMaker, clear_frames, of_function, release_frames
from nvrx_core.inprocess.faults.survived_errors import SurvivedErrors
from nvrx_core.inprocess.interpretation.interpreter import Rules
from nvrx_core.inprocess.protocol import effects
from nvrx_core.inprocess.protocol.effects import StoreFailure
from nvrx_core.inprocess.protocol.outcome import Outcome
from nvrx_core.inprocess.state import State
from nvrx_core.process.garbage import postpone_collection

__all__ = ["OwnFaults"]


class OwnFaults:
    """Creates, announces and logs the faults of this rank.

    Args:
        maker: creates the records.
        state: the state of this rank.
        events: the event file.
        rounds: announce faults of the user's threads; the main thread's flow announces all others.
        survived: logs the exceptions of the function.

    Attributes:
        occurred: when the main thread last left the function, monotonic seconds.
    """

    def __init__(
        self,
        maker: FaultMaker,
        state: State,
        events: EventLog,
        *,
        rounds: RoundOperations,
        survived: SurvivedErrors,
    ) -> None:
        self._maker, self._state, self._events, self._rounds, self._survived = maker, state, events, rounds, survived
        self.occurred = 0.0

    def rules(self) -> Rules:
        """Return the rules that create a fault, report it, and release its exception."""
        return {
            effects.MakeFault: lambda effect: self._maker.of(effect.error, self._state.rank, self.occurred),
            effects.LateFault: self._late_fault,
            effects.ReportAnnounced: lambda effect: self._report(effect.fault),
            effects.ClearFrames: self._clear_frames,
            effects.ReleaseFailure: lambda effect: release_frames(effect.error),
        }

    def thread_failed(self, error: BaseException, iteration: int) -> None:
        """Announce that a user's thread has ended with `error`: a fault of the iteration that started it."""
        fault = self._maker.of(error, self._state.rank, time.monotonic())
        with suppress(StoreFailure):
            self._rounds.announce(iteration, fault)
        self._report(fault)

    def _late_fault(self, effect: effects.LateFault) -> FaultRecord:
        return self._maker.late_completion(effect.reason, self._state.rank, time.monotonic())

    def _report(self, fault: FaultRecord) -> None:
        self._events.write("fault", self._state.iteration, **fault.event_fields())

    def _clear_frames(self, effect: effects.ClearFrames) -> None:
        effect.ended.result = None
        if effect.ended.how is Outcome.FAILED and effect.ended.error is not None:
            self._survived.survived(effect.ended.error, self._state.iteration)
        clear_frames(effect.ended.error)
        postpone_collection(of_function(effect.ended.error) if effect.keep_trace else ())
        if not effect.keep_trace:
            release_frames(effect.ended.error)
