"""This rank's own faults: made from exceptions, announced to the other ranks and written to the event file."""

from __future__ import annotations

import time
from contextlib import suppress

from nvrx_core.events.log import EventLog
from nvrx_core.fault.record import FaultRecord
from nvrx_core.flow import operation
from nvrx_core.inprocess.coordination.round_operations import RoundOperations
from nvrx_core.inprocess.faults.fault_maker import FaultMaker, clear_frames, of_function, release_frames
from nvrx_core.inprocess.faults.survived_errors import SurvivedErrors
from nvrx_core.inprocess.protocol.outcome import IterationResult, Outcome
from nvrx_core.inprocess.protocol.ports import StoreFailure
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
        survived: logs the exceptions of the function, once their round is decided.

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

    @operation
    def describe_fault(self, error: BaseException) -> FaultRecord:
        """Return the fault record of the error."""
        return self._maker.of(error, self._state.rank, self.occurred)

    @operation
    def describe_late(self, reason: str) -> FaultRecord:
        """Return the fault record for ranks that have not completed in time."""
        return self._maker.late_completion(reason, self._state.rank, time.monotonic())

    @operation
    def report_announced(self, fault: FaultRecord) -> None:
        """Write a fault that was announced to the event file."""
        self._report(fault)

    @operation
    def clear_frames(self, ended: IterationResult, *, keep_trace: bool) -> None:
        """Release the result of the iteration, and the locals of the frames that its error holds."""
        ended.result = None
        if ended.how is Outcome.FAILED and ended.error is not None:
            self._survived.survived(ended.error, self._state.iteration)
        clear_frames(ended.error)
        postpone_collection(of_function(ended.error) if keep_trace else ())
        if not keep_trace:
            release_frames(ended.error)

    @operation
    def report_failure(self, cause: FaultRecord | None) -> None:
        """Log the failure of this rank."""
        self._survived.decided(cause)

    @operation
    def release_failure(self, error: BaseException | None) -> None:
        """The failure was announced and survived: release its frames."""
        release_frames(error)

    def thread_failed(self, error: BaseException, iteration: int) -> None:
        """Announce that a user's thread has ended with `error`: a fault of the iteration that started it."""
        fault = self._maker.of(error, self._state.rank, time.monotonic())
        with suppress(StoreFailure):
            self._rounds.announce(iteration, fault)
        self._report(fault)

    def _report(self, fault: FaultRecord) -> None:
        self._events.write("fault", self._state.iteration, **fault.event_fields())
