"""What a flow asks its shell to do. Pure.

Each effect says what the flow is resumed with. A shell may raise instead: `StoreFailure` from whatever asks the store,
and what ends the call out of turn from whatever waits.
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
    "Abandon", "Assign", "Await", "AwaitDecision", "AwaitEvent", "AwaitGuests", "AwaitHostClosed",
    "AwaitMonitorProcess", "AwaitRendezvous", "BeginIteration", "ClearFrames", "CollectGarbage", "CollectPostponed",
    "Complete", "CountOut", "DeclareKeys", "DeleteIfOver", "DescribeArrival", "Effect", "EnterStage", "FindHolders",
    "Flow", "HostRendezvous", "Initialize", "LateFault", "LogWaiting", "LoseMembers", "LoseStore", "MakeFault",
    "MarkLeft", "ReadDecision", "Recover", "ReleaseFailure", "ReleaseGroups", "ReportAnnounced", "ReportInternalError",
    "ReportLeft", "RoundEnded", "RunFunction", "SetRendezvous", "StopHousekeeping", "StoreFailure", "StoreOperation",
    "Terminate", "UseRendezvous",
]  # fmt: skip


class StoreFailure(Exception):
    """The store did not answer as a store does."""


class Effect:
    """What a shell must do next."""

    __slots__ = ()


Result = TypeVar("Result")
Flow = Generator[Effect, Any, Result]
"""A flow with its result."""


# The control store


@dataclass(slots=True)
class StoreOperation(Effect):
    """Carry out one operation of a round's machine; resumed with its `Answer`."""

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
    """Write where the iteration's process group meets, `host:port`; "": nowhere, unless that is written already."""

    iteration: int
    address: str


@dataclass(slots=True)
class AwaitRendezvous(Effect):
    """Wait in the store for that; resumed with host and port, None for nowhere."""

    iteration: int


@dataclass(slots=True)
class FindHolders(Effect):
    """Resumed with the members in an atomic section of the round, and the beats of their leases."""

    iteration: int
    members: frozenset[InitialRank]


@dataclass(slots=True)
class MarkLeft(Effect):
    """Write that this member needs the store no longer; one that is lost by its silence may yet read its decision."""

    member: InitialRank
    silent: bool = False


@dataclass(slots=True)
class ReportInternalError(Effect):
    """Report that a machine was told what cannot be: an error of this package, from which nothing follows."""

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
    """Note on the progress page what the main thread is about."""

    stage: Stage


@dataclass(slots=True)
class LoseMembers(Effect):
    """Note on the progress page who is no longer part of the job."""

    members: tuple[InitialRank, ...]


@dataclass(slots=True)
class BeginIteration(Effect):
    """Note on the progress page that this rank is in the iteration that its state tells."""


@dataclass(slots=True)
class DeclareKeys(Effect):
    """Evaluate the user's key functions after the round; resumed with what they raised, or None."""

    iteration: int


@dataclass(slots=True)
class Assign(Effect):
    """Give the rank its place in the next iteration; resumed with what the user's assignment raised, or None."""

    decision: Decision


@dataclass(slots=True)
class HostRendezvous(Effect):
    """Host the rendezvous of the next process group; resumed with its `host:port`."""


@dataclass(slots=True)
class UseRendezvous(Effect):
    """Let the next process group meet there; None where nobody hosts it."""

    endpoint: tuple[str, int] | None


@dataclass(slots=True)
class AwaitMonitorProcess(Effect):
    """Wait, for a bounded time, until the monitor process watches over this rank."""


@dataclass(slots=True)
class Initialize(Effect):
    """Run the user's initialize and health check; resumed with how the iteration ended by that, or None.

    A reserve's iteration ends here.
    """


@dataclass(slots=True)
class RunFunction(Effect):
    """Run the function, interruptible; resumed with its `IterationResult`."""


@dataclass(slots=True)
class MakeFault(Effect):
    """Resumed with the fault that the error is."""

    error: BaseException


@dataclass(slots=True)
class LateFault(Effect):
    """Resumed with the fault that others have not completed in time."""

    reason: str


@dataclass(slots=True)
class ReportAnnounced(Effect):
    """Report a fault of this rank's own that was announced."""

    fault: FaultRecord


@dataclass(slots=True)
class ReleaseGroups(Effect):
    """The rank has completed by `SystemExit(0)`: free whoever waits for it in a collective."""

    ended: IterationResult


@dataclass(slots=True)
class RoundEnded(Effect):
    """The round restarts and this rank is out of the function: report what is known."""

    view: RoundView


@dataclass(slots=True)
class ClearFrames(Effect):
    """Let go of the outcome's result, and of the locals of the frames that its error holds.

    The frames of an interruption go altogether.
    """

    ended: IterationResult
    keep_trace: bool


@dataclass(slots=True)
class ReleaseFailure(Effect):
    """The failure is told and survived: forget its frames."""

    error: BaseException | None


@dataclass(slots=True)
class Recover(Effect):
    """Run the user's finalize and health check; resumed with what they raised, or None."""

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
    """This rank has arrived, and others have not: a good time to collect garbage."""


@dataclass(slots=True)
class CollectPostponed(Effect):
    """The failure is released: collect the garbage that it referred to, if any."""


@dataclass(slots=True)
class LogWaiting(Effect):
    """Log whom the rank goes on waiting for."""

    reason: str


@dataclass(slots=True)
class Terminate(Effect):
    """Run the user's terminate; resumed with what it raised, or None."""


@dataclass(slots=True)
class Complete(Effect):
    """All ranks have completed: run the user's completion; resumed with what ends the call nevertheless, or None."""


@dataclass(slots=True)
class ReportLeft(Effect):
    """Report that this rank leaves, and why."""

    error: BaseException | None


@dataclass(slots=True)
class StopHousekeeping(Effect):
    """Write nothing for the launcher any more."""


@dataclass(slots=True)
class AwaitGuests(Effect):
    """Serve the store until the members need it no longer; all have completed, or each leaves for itself."""

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
    """The store is lost: let the monitor process know; resumed with the error that the call ends with."""

    reason: str


@dataclass(slots=True)
class Abandon(Effect):
    """This rank leaves the job out of turn: let the monitor process tell the others."""

    error: BaseException
