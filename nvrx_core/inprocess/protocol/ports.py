"""The ports of a rank's flows: the store, the user's code, the rank's page, its faults and its exit. Pure.

`XPort` is what the class `X` does in production, in the module of that name in `inprocess/call`; `CallStore` is in
`coordination/control_store`, `ArrivalReport` in `rank_status`, and `WrappedCall` makes them.

An awaited operation of the store may raise `StoreFailure`; a wait raises the exception of an early exit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.protocol.decision import Arrival, ArrivalStatus, RoundDecision
from nvrx_core.inprocess.protocol.outcome import IterationResult
from nvrx_core.inprocess.protocol.round import Endpoint, RoundStore, RoundView
from nvrx_core.progress.stage import Stage
from nvrx_core.rank_assignment.identity import InitialRank

__all__ = [
    "ArrivalReportPort",
    "CallPorts",
    "CallStorePort",
    "FunctionAbortPort",
    "LeavingPort",
    "OwnFaultsPort",
    "PlugInsPort",
    "RankStatusPort",
    "StoreFailure",
    "WrappedFunctionPort",
]


class StoreFailure(Exception):
    """The store has failed, or has returned an invalid value."""


# The control store


class CallStorePort(RoundStore, Protocol):
    """The control store as a member uses it, or a monitor process for it: the rounds, and the end of the call."""

    def mark_left(self, member: InitialRank, *, silent: bool = False) -> Awaitable[None]:
        """Write that a member no longer needs the store; a silent one that is lost may still read its decision."""

    def count_out(self, iteration: int, living: int) -> Awaitable[None]:
        """Count this member out of the completed call; the last of `living` deletes its keys, if all have left."""

    def delete_if_over(self) -> Awaitable[None]:
        """Delete the call's keys if it is completed and all other members have left."""


# The main thread


class RankStatusPort(Protocol):
    """The rank between its iterations: its progress page, and its waits for the monitor thread."""

    def wait(self, view: RoundView, until: Callable[[RoundView], bool], deadline: float) -> Awaitable[None]:
        """Wait until the predicate holds for the round, which the monitor thread changes, or until the deadline."""

    def enter(self, stage: Stage) -> Awaitable[None]:
        """Write the stage of the main thread to the progress page."""

    def note_decision(self, lost: tuple[InitialRank, ...]) -> Awaitable[None]:
        """The round is decided: write the members that it has lost to the progress page."""

    def begin_iteration(self) -> Awaitable[None]:
        """Write the iteration in this rank's state to the progress page."""

    def round_ended(self, view: RoundView) -> Awaitable[None]:
        """The round restarts and this rank has left the function: start the trace of the restart."""

    def find_holders(self, iteration: int, members: frozenset[InitialRank]) -> Awaitable[Mapping[int, int]]:
        """Return the members in an atomic section of the round, and the beats of their leases."""


class ArrivalReportPort(Protocol):
    """The arrivals of this rank."""

    def describe_arrival(
        self, status: ArrivalStatus, fault: FaultRecord | None, *, completed: bool = False, long: bool = False
    ) -> Awaitable[Arrival]:
        """Return this rank's arrival at the end of the round that it is in."""


class PlugInsPort(Protocol):
    """The user's plug-ins; what one raises is returned."""

    def declare_keys(self, iteration: int) -> Awaitable[BaseException | None]:
        """Evaluate the key functions after the round."""

    def assign(self, decision: RoundDecision) -> Awaitable[BaseException | None]:
        """Assign the rank of the next iteration; changes the state of this rank."""

    def recover(self, failure: BaseException | None) -> Awaitable[BaseException | None]:
        """Run finalize and health check after an iteration."""

    def terminate(self) -> Awaitable[BaseException | None]:
        """Run terminate."""

    def complete(self) -> Awaitable[BaseException | None]:
        """All ranks have completed: run completion; return the exception that ends the call."""


class WrappedFunctionPort(Protocol):
    """The wrapped function, and the rendezvous of its process group."""

    def host_rendezvous(self) -> Awaitable[str]:
        """Host the rendezvous of the next process group; return its `host:port`."""

    def use_rendezvous(self, endpoint: Endpoint | None) -> Awaitable[None]:
        """Use this endpoint for the next process group; None if there is none."""

    def initialize(self) -> Awaitable[IterationResult | None]:
        """Run the user's initialize and health check; return the iteration's result if they end it.

        A reserve's iteration ends here.
        """

    def run(self) -> Awaitable[IterationResult]:
        """Run the function, interruptible."""

    def release_groups(self, ended: IterationResult) -> Awaitable[None]:
        """The rank has completed by `SystemExit(0)`: unblock the ranks that wait for it in a collective."""


class OwnFaultsPort(Protocol):
    """The faults of this rank."""

    def describe_fault(self, ended: IterationResult) -> Awaitable[FaultRecord]:
        """Return the fault record of the error that has ended the iteration."""

    def describe_late(self, reason: str) -> Awaitable[FaultRecord]:
        """Return the fault record for ranks that have not completed in time."""

    def record_fault(self, fault: FaultRecord) -> Awaitable[None]:
        """Write a fault to the event file that was announced: the others do not wait for a file."""

    def release_iteration(self, ended: IterationResult, *, keep_trace: bool) -> Awaitable[None]:
        """Release the result of the iteration and the locals of its error's frames; note a failure for the log.

        Without `keep_trace`, as after an interruption, the frames are released as a whole.
        """

    def report_failure(self, cause: FaultRecord | None) -> Awaitable[None]:
        """Log the failure of this rank, if it had one, which is not the error that it leaves with.

        Args:
            cause: the fault that the decision names as the cause; None if there is no decision.
        """

    def survive(self, error: BaseException | None, cause: FaultRecord | None) -> Awaitable[None]:
        """The rank goes on: log its failure, if it had one, and release the frames that it refers to.

        Args:
            error: the failure.
            cause: the fault that the decision names as the cause.
        """

    def collect_garbage(self) -> Awaitable[None]:
        """Collect garbage while this rank waits for the others' arrivals."""

    def collect_postponed(self) -> Awaitable[None]:
        """Collect the garbage that the failure has referred to, once nothing refers to the failure any more."""


class LeavingPort(Protocol):
    """The end of the call on this rank."""

    def report_left(self, error: BaseException | None) -> Awaitable[None]:
        """Report that this rank leaves, and why."""

    def finish_reports(self) -> Awaitable[None]:
        """Finish what is written to the store beside the restarts: afterwards the call's keys may be deleted."""

    def await_clients(self, members: frozenset[InitialRank], *, completed: bool) -> Awaitable[None]:
        """Host the store until the members no longer need it; all have completed, or each leaves by itself."""

    def await_host_closed(self) -> Awaitable[None]:
        """Wait, for a bounded time, until the rank that hosts the store has closed it."""

    def lose_store(self, reason: str) -> Awaitable[BaseException]:
        """The store is lost: notify the monitor process; return the error with which the call ends."""

    def abandon(self, error: BaseException) -> Awaitable[None]:
        """Early exit of this rank: let the monitor process notify the others."""


@dataclass
class CallPorts:
    """The ports of a main thread.

    A traceback keeps the flow's frames, and these the ports: who has run the flow releases them.
    """

    store: CallStorePort
    status: RankStatusPort
    arrivals: ArrivalReportPort
    plug_ins: PlugInsPort
    function: WrappedFunctionPort
    faults: OwnFaultsPort
    leaving: LeavingPort

    def release(self) -> None:
        """Release the ports; the flow has ended."""
        vars(self).clear()


# The monitor thread


class FunctionAbortPort(Protocol):
    """What the monitor thread does with what it has waited for: it ends the function of a round that restarts."""

    def event_received(self, iteration: int) -> Awaitable[None]:
        """The round has its event; called before anything is done about it."""

    def decision_received(self, iteration: int) -> Awaitable[None]:
        """The round has its decision; likewise."""

    def notice(self, iteration: int) -> Awaitable[None]:
        """The round is over: record the progress of this rank."""

    def last_call(self, seconds: float) -> Awaitable[None]:
        """Wait for late faults, for so many seconds."""

    def interrupt_function(self, reason: str) -> Awaitable[None]:
        """Ask the main thread to leave the function, and wait until it is in no atomic section."""

    def abort_function(self, iteration: int) -> Awaitable[None]:
        """Abort the calls in which the function blocks."""

    def await_out(self) -> Awaitable[None]:
        """Interrupt the main thread until it has left the function."""

    def reset_interrupt(self) -> Awaitable[None]:
        """The next round starts: discard the request to leave the function."""

    def round_decided(self) -> Awaitable[None]:
        """The round is decided: the main thread continues, or leaves the job."""
