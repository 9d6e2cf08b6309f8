"""The decision of a round: computed from the arrivals, frozen, the same bytes for all members.

Pure. Traffic is linear in the number of ranks: a decision names the lost ranks only, never the living ones. If the rank
assignment needs the keys of all ranks, the decision carries them, as runs of neighbours with equal keys.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from nvrx_core.fault.blame import RankProgress, behind
from nvrx_core.fault.interruption import Interruption
from nvrx_core.fault.record import LATE_COMPLETION, FaultRecord
from nvrx_core.parsing import MAX_RANKS, address, integer, integers, parse_json, parse_object, string
from nvrx_core.rank_assignment.identity import InitialRank
from nvrx_core.rank_assignment.moves import FillGaps, ShiftRanks
from nvrx_core.rank_assignment.snapshot import Column, columns_of
from nvrx_core.values import value

__all__ = [
    "JOINING",
    "Arrival",
    "ArrivalStatus",
    "RoundDecision",
    "decide",
    "decode_arrivals",
    "decode_event",
    "encode_completion",
    "kept_after_call",
    "kept_in_call",
]


_COMPLETED: Final = "completed"
_MAY_LACK: Final = ("keys", "long", "endpoint", "fills_gaps", "silent", "exit", "vote", "several")
_SIGNS: Final = (
    "gloo",
    "NCCL",
    "DistBackendError",
    "DistNetworkError",
    "Connection closed by peer",
    "Connection reset",
)
_EXCEPTION: Final = Interruption.EXCEPTION.name
_ANNOUNCED: Final = Interruption.BASE_EXCEPTION.name
_SOFT_TIMEOUT: Final = Interruption.SOFT_TIMEOUT.name
_UNRESPONSIVE: Final = Interruption.UNRESPONSIVE.name
_TIMED_OUT: Final = ("imed out", "iming out", "imeout")


class ArrivalStatus(enum.Enum):
    """The status with which a member arrives at the barrier."""

    ALIVE = "alive"
    LEAVING = "leaving"
    DEAD = "dead"


@value
class Arrival:
    """One member's record at the barrier.

    Attributes:
        initial_rank: the member.
        rank: its wrapper rank in the iteration that ends, -1 if it has none.
        status: alive, leaving or dead.
        world_size: the wrapper's world size in that iteration, as far as the writer knows it.
        fault: its own fault, if it had one.
        step: the highest step that it has reported, -1 for none.
        progress: its progress when the round ended; None for a rank that did not run the function.
        stalled: it had shown no sign of life for half the soft timeout.
        completed: it had completed the iteration.
        long: the iteration had lasted too long to be one of an endless loop of restarts.
        keys: its keys for the rank assignment of all members.
        endpoint: the `host:port` at which it would host the rendezvous of the next process group, "" for none.
        fills_gaps: the ranks are assigned by `FillGaps`, not `ShiftRanks`.
        vote: the iteration and the step of the last vote of its `LiveState` that it has passed; empty for none.
        several: it has several, and tells of none.
    """

    initial_rank: InitialRank
    rank: int
    status: ArrivalStatus
    world_size: int = 0
    fault: FaultRecord | None = None
    step: int = -1
    progress: RankProgress | None = None
    stalled: bool = False
    completed: bool = False
    long: bool = False
    keys: tuple[str, ...] = ()
    endpoint: str = ""
    fills_gaps: bool = False
    vote: tuple[int, ...] = ()
    several: bool = False

    def encode(self) -> str:
        """Return the arrival as JSON."""
        fault, progress = self.fault and self.fault.to_data(), self.progress and self.progress.values()
        return _encode({**vars(self), "status": self.status.value, "fault": fault, "progress": progress})

    @classmethod
    def decode(cls, text: str | bytes) -> Arrival:
        """Parse the result of `encode`.

        Raises:
            ValueError: when the text is malformed.
        """
        return cls._from_data(parse_object(text))

    @classmethod
    def _from_data(cls, data: Any) -> Arrival:
        _require_fields(data, "initial_rank", "rank", "status", "world_size", "step", "progress", "stalled")
        fault = FaultRecord.from_data(data["fault"]) if data.get("fault") else None
        progress = RankProgress.of(integers(data["progress"])) if data["progress"] is not None else None
        return cls(
            initial_rank=InitialRank(integer(data["initial_rank"], 0, MAX_RANKS)), rank=integer(data["rank"]),
            status=ArrivalStatus(data["status"]), world_size=integer(data["world_size"], 0, MAX_RANKS), fault=fault,
            step=integer(data["step"]), progress=progress, stalled=bool(data["stalled"]),
            completed=bool(data.get("completed")), long=bool(data.get("long")),
            keys=tuple(map(string, _list(data.get("keys", [])))), endpoint=_endpoint(data.get("endpoint", "")),
            fills_gaps=bool(data.get("fills_gaps")), vote=_vote(data.get("vote", [])),
            several=bool(data.get("several")),
        )  # fmt: skip


@value
class RoundDecision:
    """The decision of a round, on which all members act.

    Attributes:
        iteration: the round that ended.
        lost: the initial ranks that no longer take part.
        terminated: the wrapper ranks, of the iteration that ended, that no living member holds.
        cause: the fault that ended the round: the first one announced, unless it is a symptom of another one.
        culprits: the initial ranks that failed; empty if all stalled alike.
        step: the highest step that any rank has reported, -1 for none.
        long: the iteration had lasted too long to be one of an endless loop of restarts.
        keys: one column for each key that the ranks declared.
        leader: the wrapper rank, of the iteration that ended, that becomes rank 0; -1 if that does not follow from
            the terminated ranks alone, or it cannot host the rendezvous of the next process group.
        endpoint: the `host:port` at which it hosts that, "" for none.
        silent: those of the lost ranks that were unresponsive: they may be alive, and read this decision late.
        exit: the fault of a lost rank that has left with an exit code: where the job cannot go on without it, all end
            with this code. The cause, if it is such a fault; else the exit that its rank has announced itself.
        vote: the newest vote that any living rank has passed, as in its arrival; empty for none, and where any of these
            has several live states: it cannot be told which one each vote is of.
    """

    iteration: int
    lost: tuple[InitialRank, ...]
    terminated: tuple[int, ...]
    cause: FaultRecord | None
    culprits: tuple[InitialRank, ...]
    step: int
    long: bool = False
    keys: tuple[Column, ...] = ()
    leader: int = -1
    endpoint: str = ""
    silent: tuple[InitialRank, ...] = ()
    exit: FaultRecord | None = None
    vote: tuple[int, ...] = ()

    @property
    def reason(self) -> str:
        """The reason for the end of the round, and the lost ranks, for people."""
        lost = f"; lost: initial ranks {list(self.lost)}" if self.lost else ""
        return f"{self.cause or 'no fault is known'}{lost}"

    @property
    def rendezvous(self) -> tuple[str, int] | None:
        """Host and port of the rendezvous of the next process group; None if they are not known yet."""
        return address(self.endpoint.encode()) if self.endpoint else None

    def encode(self) -> str:
        """Return the decision as JSON."""
        cause, exited = self.cause and self.cause.to_data(), self.exit and self.exit.to_data()
        return _encode({**vars(self), "cause": cause, "exit": exited})

    @classmethod
    def decode(cls, text: str | bytes) -> RoundDecision:
        """Parse the result of `encode`.

        Raises:
            ValueError: when the text is malformed.
        """
        data = parse_object(text)
        _require_fields(data, "iteration", "lost", "terminated", "culprits", "step")
        cause = FaultRecord.from_data(data["cause"]) if data.get("cause") else None
        return cls(
            iteration=integer(data["iteration"]),
            lost=tuple(map(InitialRank, integers(data["lost"], 0, MAX_RANKS))),
            culprits=tuple(map(InitialRank, integers(data["culprits"]))),
            terminated=integers(data["terminated"], 0, MAX_RANKS), cause=cause,
            step=integer(data["step"]), long=bool(data.get("long")),
            keys=tuple(map(_column, _list(data.get("keys", [])))),
            leader=integer(data.get("leader", -1)), endpoint=_endpoint(data.get("endpoint", "")),
            silent=tuple(map(InitialRank, integers(data.get("silent", []), 0, MAX_RANKS))),
            exit=FaultRecord.from_data(data["exit"]) if data.get("exit") else None, vote=_vote(data.get("vote", [])),
        )  # fmt: skip


def decide(iteration: int, arrivals: Mapping[int, Arrival], event: FaultRecord | None) -> RoundDecision:
    """Return the decision of a round in which all members have arrived.

    Args:
        iteration: the round.
        arrivals: the arrivals of all members, by initial rank.
        event: the fault that was announced first.
    """
    alive = [a for a in arrivals.values() if a.status is ArrivalStatus.ALIVE]
    held = {a.rank for a in alive}
    world_size = max((a.world_size for a in alive), default=0)
    faults = [fault for fault in (event, *(a.fault for a in arrivals.values())) if fault is not None]
    cause = min(faults, key=_symptom, default=None)
    lost = tuple(sorted(a.initial_rank for a in arrivals.values() if a.status is not ArrivalStatus.ALIVE))
    terminated = tuple(rank for rank in range(world_size) if rank not in held)
    silent = (a for a in arrivals.values() if a.status is ArrivalStatus.DEAD and a.fault is not None
              and a.fault.interruption == _UNRESPONSIVE)  # fmt: skip
    move = FillGaps() if any(a.fills_gaps for a in alive) else ShiftRanks()
    leader = move.leader(world_size, terminated)
    endpoint = next((a.endpoint for a in alive if a.rank == leader), "")
    return RoundDecision(
        iteration=iteration,
        lost=lost,
        terminated=terminated,
        cause=cause,
        culprits=_culprits(arrivals.values(), faults, cause),
        step=max((a.step for a in arrivals.values()), default=-1),
        long=any(a.long for a in arrivals.values()),
        keys=columns_of(a.keys for a in sorted(alive, key=lambda arrival: arrival.rank)),
        leader=leader if leader is not None and endpoint else -1,
        endpoint=endpoint,
        silent=tuple(sorted(a.initial_rank for a in silent)),
        exit=_exit(faults, cause, lost),
        vote=() if any(a.several for a in alive) else max((a.vote for a in alive), default=()),
    )


def _exit(
    faults: Collection[FaultRecord], cause: FaultRecord | None, lost: Collection[InitialRank]
) -> FaultRecord | None:
    """Return the exit of a lost rank: the cause, else one that was announced by the rank itself, else any."""
    exits = (fault for fault in faults if fault.exit_code and fault.initial_rank in lost)

    def order(fault: FaultRecord) -> tuple[bool, bool, int]:
        return fault != cause, fault.interruption != _ANNOUNCED, fault.initial_rank

    return min(exits, key=order, default=None)


def _symptom(fault: FaultRecord) -> bool:
    """Return whether a fault is a collective that another rank has broken: a death does so before it is announced."""
    if fault.interruption != _EXCEPTION:
        return False
    text = f"{fault.error_type} {fault.message}"
    return any(sign in text for sign in _SIGNS)


def _culprits(
    arrivals: Collection[Arrival], faults: list[FaultRecord], cause: FaultRecord | None
) -> tuple[InitialRank, ...]:
    """Return the ranks that failed; if the ranks only waited in vain, those that blocked them."""
    failed = {fault.initial_rank for fault in faults if not (_stalled(fault) or _late(fault) or _symptom(fault))}
    if not failed and cause is not None and _late(cause):
        return tuple(sorted(a.initial_rank for a in arrivals if not a.completed))
    if not failed and cause is not None and not _stalled(cause):
        waited = any(sign in cause.message for sign in _TIMED_OUT)
        failed = (waited and _behind(arrivals)) or {cause.initial_rank}
    return tuple(sorted(failed or _behind(arrivals)))


def _stalled(fault: FaultRecord) -> bool:
    return fault.interruption == _SOFT_TIMEOUT


def _late(fault: FaultRecord) -> bool:
    return fault.error_type == LATE_COMPLETION


def _behind(arrivals: Collection[Arrival]) -> set[InitialRank]:
    progress = {a.initial_rank: a.progress for a in arrivals if a.progress and a.status is not ArrivalStatus.DEAD}
    return behind(progress, {a.initial_rank for a in arrivals if a.stalled})


def decode_arrivals(values: Iterable[bytes]) -> list[Arrival]:
    """Parse results of `Arrival.encode`, hundreds at once: one by one they take twice as long.

    Raises:
        ValueError: when a value is malformed.
    """
    return [Arrival._from_data(each) for each in parse_json(b"[" + b",".join(map(bytes, values)) + b"]")]


def encode_completion() -> str:
    """Return the event of a round that all members have completed."""
    return json.dumps({_COMPLETED: True})


def decode_event(text: str | bytes) -> FaultRecord | None:
    """Return the fault in a round's event, None if the round was completed.

    Raises:
        ValueError: when the text is malformed.
    """
    data = parse_object(text)
    return None if data.get(_COMPLETED) is True else FaultRecord.from_data(data)


def _encode(data: dict[str, Any]) -> str:
    """Return JSON without the empty fields that most jobs do not use."""
    return json.dumps({name: value for name, value in data.items() if value or name not in _MAY_LACK})


def _require_fields(data: Any, *names: str) -> None:
    if not isinstance(data, dict) or not data.keys() >= set(names):
        raise ValueError(f"fields are missing: {data!r:.100}")


def _list(data: object) -> list[Any]:
    if not isinstance(data, list):
        raise ValueError(f"not a list: {data!r:.100}")
    return data


def _endpoint(data: object) -> str:
    text = string(data)
    if text:
        address(text.encode())
    return text


def _vote(data: object) -> tuple[int, ...]:
    found = integers(data)
    if len(found) not in (0, 2):
        raise ValueError(f"not an iteration and a step: {found!r:.100}")
    return found


def _column(data: object) -> Column:
    runs = [(integer(count, 1, MAX_RANKS), string(key)) for count, key in map(_list, _list(data))]
    if sum(count for count, _ in runs) > MAX_RANKS:
        raise ValueError(f"keys of too many ranks: {data!r:.100}")
    return tuple(runs)


# Which rounds must be kept for late readers: their event, decision and rendezvous. Two kinds of members read a decision
# later than the others, who do not wait for them:
#
# * A member that leaves waits for the decision of the round in which it leaves, and the monitor process of a dead one
#   for the decision by which it is lost. It reads it before it marks the member as left, so that round is kept while
#   the call runs. If a sibling that found the member silent marks it first, nobody knows when it is read: it outlives
#   the call.
# * A member whose lease is not renewed for `heartbeat_timeout` is declared lost, but its process may be alive: its node
#   was stopped or disconnected. When it continues, it must find the decision that declared it lost; otherwise it would
#   make a decision of its own and continue alone. Nobody knows when that is, so those rounds outlive the call.
JOINING: Final = -2
"""The round before the first barrier: the ranks join, and its decision is the verdict on their generation."""


def kept_in_call(decision: RoundDecision) -> frozenset[int]:
    """Return the rounds that a decision requires to be kept while the call runs."""
    left = {decision.iteration} if decision.lost else frozenset[int]()
    return kept_after_call(decision) | left


def kept_after_call(decision: RoundDecision, released: Collection[InitialRank] = ()) -> frozenset[int]:
    """Return the rounds that a decision requires to be kept even when the call is completed.

    A silent member that is lost in a round has arrived in the previous one, whose decision it may not have read yet; it
    has read all earlier decisions. One that was silent, and that arrived itself or by its monitor process nevertheless,
    has read the previous one, too.

    Args:
        decision: the round's.
        released: members that others have marked as left.
    """
    arrived = {decision.iteration} if set(decision.lost).intersection(released) else frozenset[int]()
    silent = {decision.iteration - 1, decision.iteration} if decision.silent else frozenset[int]()
    return frozenset(arrived | silent)
