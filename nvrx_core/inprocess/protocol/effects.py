"""The effects of a flow, for its shell. Pure.

The docstring of an effect says what the flow is resumed with. A shell may raise instead: `StoreFailure` from a store
operation, and the exception of an early exit from a wait.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.protocol.actions import StoreAction
from nvrx_core.inprocess.protocol.decision import ArrivalStatus, Decision
from nvrx_core.inprocess.protocol.outcome import IterationResult
from nvrx_core.inprocess.protocol.view import RoundView
from nvrx_core.progress.stage import Stage
from nvrx_core.rank_assignment.identity import InitialRank

__all__ = [
    "Abandon", "Assign", "Await", "AwaitClients", "AwaitDecision", "AwaitEvent", "AwaitHostClosed", "AwaitRendezvous",
    "BeginIteration", "ClearFrames", "CollectGarbage", "CollectPostponed", "Complete", "CountOut", "DeclareKeys",
    "DeleteIfOver", "DescribeArrival", "Effect", "EnterStage", "FindHolders", "Flow", "HostRendezvous", "Initialize",
    "LateFault", "LogWaiting", "LoseMembers", "LoseStore", "MakeFault", "MarkLeft", "ReadDecision", "Recover",
    "ReleaseFailure", "ReleaseGroups", "ReportAnnounced", "ReportInternalError", "ReportLeft", "RoundEnded",
    "RunFunction", "SetRendezvous", "StopHousekeeping", "StoreFailure", "StoreOperation", "Terminate", "UseRendezvous",
]  # fmt: skip


class StoreFailure(Exception):
    """The store has failed, or has returned an invalid value."""


class Effect:
    """The next step of a shell."""

    __slots__ = ()


Result = TypeVar("Result")
Flow = Generator[Effect, Any, Result]
"""A flow with its result."""


# The control store


@dataclass(slots=True)
class StoreOperation(Effect):
    """Execute one operation of a round's machine; resumed with its `Answer`."""

    action: StoreAction
    iteration: int


@dataclass(slots=True)
class AwaitEvent(Effect):
    """Wait in the store until the round has its event."""

    iteration: int


@dataclass(slots=True)
class AwaitDecision(Effect):
    """Wait in the store for the round's decision; resumed with it."""

    iteration: int


@dataclass(slots=True)
class ReadDecision(Effect):
    """Resumed with the round's decision, None while it has none."""

    iteration: int


@dataclass(slots=True)
class SetRendezvous(Effect):
    """Write the rendezvous endpoint of the iteration's process group; "": none, unless one is written already."""

    iteration: int
    address: str


@dataclass(slots=True)
class AwaitRendezvous(Effect):
    """Wait in the store for that endpoint; resumed with host and port, None for none."""

    iteration: int


@dataclass(slots=True)
class FindHolders(Effect):
    """Resumed with the members in an atomic section of the round, and the beats of their leases."""

    iteration: int
    members: frozenset[InitialRank]


@dataclass(slots=True)
class MarkLeft(Effect):
    """Write that this member no longer needs the store; a silent one that is lost may still read its decision."""

    member: InitialRank
    silent: bool = False


@dataclass(slots=True)
class ReportInternalError(Effect):
    """Report that a machine got an impossible input: an error in this package, without further effect."""

    reason: str


# The main thread


@dataclass(slots=True)
class Await(Effect):
    """Wait until the predicate holds for the round, which the monitor thread changes, or until the deadline."""

    view: RoundView
    until: Callable[[RoundView], bool]
    deadline: float


@dataclass(slots=True)
class EnterStage(Effect):
    """Write the stage of the main thread to the progress page."""

    stage: Stage


@dataclass(slots=True)
class LoseMembers(Effect):
    """Write the lost members to the progress page."""

    members: tuple[InitialRank, ...]


@dataclass(slots=True)
class BeginIteration(Effect):
    """Write the iteration in this rank's state to the progress page."""


@dataclass(slots=True)
class DeclareKeys(Effect):
    """Evaluate the user's key functions after the round; resumed with what they raised, or None."""

    iteration: int


@dataclass(slots=True)
class Assign(Effect):
    """Assign the rank of the next iteration; resumed with the exception of the user's assignment, or None."""

    decision: Decision


@dataclass(slots=True)
class HostRendezvous(Effect):
    """Host the rendezvous of the next process group; resumed with its `host:port`."""


@dataclass(slots=True)
class UseRendezvous(Effect):
    """Use this endpoint for the next process group; None if there is none."""

    endpoint: tuple[str, int] | None


@dataclass(slots=True)
class Initialize(Effect):
    """Run the user's initialize and health check; resumed with the iteration's result if they end it, or None.

    A reserve's iteration ends here.
    """


@dataclass(slots=True)
class RunFunction(Effect):
    """Run the function, interruptible; resumed with its `IterationResult`."""


@dataclass(slots=True)
class MakeFault(Effect):
    """Resumed with the fault record of the error."""

    error: BaseException


@dataclass(slots=True)
class LateFault(Effect):
    """Resumed with the fault record for ranks that have not completed in time."""

    reason: str


@dataclass(slots=True)
class ReportAnnounced(Effect):
    """Report a fault of this rank's own that was announced."""

    fault: FaultRecord


@dataclass(slots=True)
class ReleaseGroups(Effect):
    """The rank has completed by `SystemExit(0)`: unblock the ranks that wait for it in a collective."""

    ended: IterationResult


@dataclass(slots=True)
class RoundEnded(Effect):
    """The round restarts and this rank has left the function: start the trace of the restart."""

    view: RoundView


@dataclass(slots=True)
class ClearFrames(Effect):
    """Release the result of the iteration, and the locals of the frames that its error holds.

    The frames of an interruption are released as a whole.
    """

    ended: IterationResult
    keep_trace: bool


@dataclass(slots=True)
class ReleaseFailure(Effect):
    """The failure was announced and survived: release its frames."""

    error: BaseException | None


@dataclass(slots=True)
class Recover(Effect):
    """Run the user's finalize and health check; resumed with their exception, or None."""

    failure: BaseException | None


@dataclass(slots=True)
class DescribeArrival(Effect):
    """Resumed with this rank's arrival."""

    status: ArrivalStatus
    fault: FaultRecord | None
    completed: bool
    long: bool


@dataclass(slots=True)
class CollectGarbage(Effect):
    """Collect garbage while this rank waits for the others' arrivals."""


@dataclass(slots=True)
class CollectPostponed(Effect):
    """Collect the garbage that the released failure referred to, if any."""


@dataclass(slots=True)
class LogWaiting(Effect):
    """Log the members that the rank continues to wait for."""

    reason: str


@dataclass(slots=True)
class Terminate(Effect):
    """Run the user's terminate; resumed with its exception, or None."""


@dataclass(slots=True)
class Complete(Effect):
    """All ranks have completed: run the user's completion; resumed with the exception that ends the call, or None."""


@dataclass(slots=True)
class ReportLeft(Effect):
    """Report that this rank leaves, and why."""

    error: BaseException | None


@dataclass(slots=True)
class StopHousekeeping(Effect):
    """Stop writing for the launcher."""


@dataclass(slots=True)
class AwaitClients(Effect):
    """Host the store until the members no longer need it; all have completed, or each leaves by itself."""

    members: frozenset[InitialRank]
    completed: bool


@dataclass(slots=True)
class AwaitHostClosed(Effect):
    """Wait, for a bounded time, until the rank that hosts the store has closed it."""


@dataclass(slots=True)
class CountOut(Effect):
    """Count this member out of the completed call; the last of `living` deletes the call's keys, if all have left."""

    iteration: int
    living: int


@dataclass(slots=True)
class DeleteIfOver(Effect):
    """Delete the call's keys if it is completed and all other members have left."""


@dataclass(slots=True)
class LoseStore(Effect):
    """The store is lost: notify the monitor process; resumed with the error with which the call ends."""

    reason: str


@dataclass(slots=True)
class Abandon(Effect):
    """Early exit of this rank: let the monitor process notify the others."""

    error: BaseException
