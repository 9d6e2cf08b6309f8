"""What happened in a run, told by the lines its ranks wrote.

The journals tell of steps, and of injected faults; the wrapper's events tell of restarts. No clock and no files here.
All times are seconds of the one monotonic clock that the processes of a machine share.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from demo_parts.journal import Line
from demo_parts.schedule import PlannedFault

__all__ = ["Began", "Happening", "Injection", "Point", "Recovery", "RunHistory", "is_timeout"]

ENDED_BY = "process ended by "
"""How the wrapper begins to tell of a process that a signal has ended."""


@dataclass(frozen=True)
class Point:
    """One step: when it was done, and its loss."""

    at: float
    step: int
    loss: float
    iteration: int


@dataclass(frozen=True)
class Began:
    """All ranks have done their first step."""


@dataclass(frozen=True)
class Injection:
    """A fault of the schedule, as its target told of it a moment before."""

    at: float
    kind: str
    rank: int
    initial_rank: int
    step: int
    iteration: int
    pid: int

    def is_planned(self, fault: PlannedFault) -> bool:
        """Whether it is this fault of the schedule."""
        return (self.kind, self.rank, self.step) == (fault.kind, fault.rank, fault.step)


@dataclass(frozen=True)
class Recovery:
    """How a run went on after a fault. Durations are seconds from the fault, on the slowest rank.

    Attributes:
        injection: the fault, when it was one of the schedule.
        cause: what the wrapper says had happened, and to which initial rank; nothing without a wrapper.
        since: when the fault was injected; for a hang that a timeout ended, its last sign of life before.
        iteration: of the training that followed.
        noticed: until it knew of the fault; None without a wrapper.
        entered: until it was back in the training function; None without a wrapper.
        resumed: until it had done its first step.
        step: that step.
        reached: how many steps had been done before the fault.
        world_size: how many ranks train now.
        lost: the initial ranks of the processes that are lost.
        took_over: the initial ranks that have left the reserve, each with its rank.
    """

    injection: Injection | None
    cause: Mapping[str, object]
    since: float
    iteration: int
    noticed: float | None
    entered: float | None
    resumed: float
    step: int
    reached: int
    world_size: int
    lost: tuple[int, ...]
    took_over: Mapping[int, int]

    @property
    def name(self) -> str:
        """What the wrapper calls the fault: a signal that ended a process, an exception, or another interruption."""
        kind, message = str(self.cause.get("interruption", "fault")), str(self.cause.get("message", ""))
        if kind.endswith("EXCEPTION"):
            return message.partition(":")[0].rpartition(".")[2]
        return message.removeprefix(ENDED_BY) if message.startswith(ENDED_BY) else kind.replace("_", " ").lower()

    @property
    def repeated(self) -> int:
        """How many steps were done once more."""
        return max(0, self.reached - self.step)  # rank 0 may be interrupted between the last step and its line


def is_timeout(cause: Mapping[str, object]) -> bool:
    """Whether a hang was the cause, which a timeout ended."""
    return str(cause.get("interruption")).endswith("TIMEOUT")


Happening = Began | Injection | Recovery
"""What a viewer wants to hear of."""


@dataclass
class _Round:
    """What has been heard of one iteration: its restart events, and the first step of each of its ranks."""

    entries: list[Line] = field(default_factory=list)
    resumed: list[Line] = field(default_factory=list)

    def is_whole(self, *, restarted: bool) -> bool:
        steps = bool(self.resumed) and len(self.resumed) == self.resumed[0]["world_size"]
        events = bool(self.entries) and len(self.entries) == self.entries[0]["world_size"]
        return steps and (events or not restarted)

    @property
    def occurred(self) -> float:
        """When the fault occurred, as the wrapper knows it."""
        return min(float(entry["marks"]["occurred"]) for entry in self.entries)

    def last(self, mark: str) -> float:
        """When the slowest of the ranks that train had come to a mark of the restart."""
        return max(float(entry["marks"][mark]) for entry in self.entries if entry["active"])


@dataclass
class RunHistory:
    """A run so far.

    Attributes:
        ranks: how many ranks train at first.
        spares: how many processes wait in reserve at first.
        protected: whether the wrapper protects it.
        points: the steps, repeated ones included.
        places: the rank of each process that trains, by initial rank.
        lost: the initial ranks of the processes that are lost, and when.
        cut_off: the faults whose process the demo had to end, and when.
        finished: the initial ranks that came to the end.
        weights: the digest of the last weights, and `world_size`, the ranks that came to them.
        sample: what the model wrote at the end.
        over: when the run was over.
        silent: whether it was given up then, because nothing was heard of it any more.
    """

    ranks: int
    spares: int = 0
    protected: bool = True
    points: list[Point] = field(default_factory=list)
    injections: list[Injection] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)
    lost: dict[int, float] = field(default_factory=dict)
    cut_off: dict[Injection, float] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    weights: str = ""
    world_size: int = 0
    sample: str = ""
    over: float = 0.0
    silent: bool = False
    places: dict[int, int] = field(default_factory=dict)
    _rounds: defaultdict[int, _Round] = field(default_factory=lambda: defaultdict(_Round))

    def __post_init__(self) -> None:
        self.places = {rank: rank for rank in range(self.ranks)}
        self.world_size = self.ranks

    def read(self, lines: Iterable[Line]) -> Iterator[Happening]:
        """Takes in new lines."""
        for line in lines:
            match str(line["event"]):
                case "step":
                    self.points.append(Point(line["monotonic"], line["step"], line["loss"], line["iteration"]))
                case "fault_injected":
                    yield self._injected(line)
                case "resumed":
                    yield from self._heard(line, self._rounds[line["iteration"]].resumed)
                case "restart":
                    yield from self._heard(line, self._rounds[line["iteration"]].entries)
                case "trained":
                    self.weights, self.sample, self.world_size = line["weights"], line["sample"], line["world_size"]
                case "finished":
                    self.finished.add(line["initial_rank"])
                case _:
                    pass

    @property
    def reached(self) -> int:
        """How many steps have been done at least once."""
        return self._reached_before(max((point.iteration for point in self.points), default=0) + 1)

    @property
    def pending(self) -> Injection | None:
        """The last fault, while the run has not gone on after it."""
        answered = self.recoveries[-1].iteration if self.recoveries else 0
        return self.injections[-1] if self.injections and self.injections[-1].iteration >= answered else None

    @property
    def reserve(self) -> list[int]:
        """The initial ranks of the processes that wait."""
        return [rank for rank in range(self.ranks + self.spares) if rank not in self.places and rank not in self.lost]

    @property
    def kept_its_size(self) -> bool:
        """Whether as many ranks as at first have trained all the time."""
        return all(recovery.world_size == self.ranks for recovery in self.recoveries)

    def recovery_after(self, injection: Injection) -> Recovery | None:
        """How the run went on after a fault of the schedule."""
        return next((recovery for recovery in self.recoveries if recovery.iteration > injection.iteration), None)

    def _reached_before(self, iteration: int) -> int:
        return max((point.step + 1 for point in self.points if point.iteration < iteration), default=0)

    def _injected(self, line: Line) -> Injection:
        told = {name: line[name] for name in ("kind", "rank", "initial_rank", "step", "iteration", "pid")}
        self.injections.append(Injection(line["monotonic"], **told))
        return self.injections[-1]

    def _heard(self, line: Line, heard: list[Line]) -> Iterator[Began | Recovery]:
        """A restart is told of when its events and the first step of each rank are known."""
        heard.append(line)
        iteration, round_ = line["iteration"], self._rounds[line["iteration"]]
        if not round_.is_whole(restarted=self.protected and iteration > 0):
            return
        if iteration == 0:
            yield Began()
        elif round_.entries or self.pending is not None:  # else torchrun has started all anew, and nothing says why
            self.recoveries.append(self._recovery(iteration, round_))
            yield self.recoveries[-1]

    def _recovery(self, iteration: int, round_: _Round) -> Recovery:
        injection, cause = self.pending, round_.entries[0]["cause"] if round_.entries else {}
        since = injection.at if injection and not is_timeout(cause) else round_.occurred
        lost, took_over = self._regroup(round_.entries, since) if round_.entries else ((), {})
        return Recovery(
            injection=injection,
            cause=cause,
            since=since,
            iteration=iteration,
            noticed=round_.last("noticed") - since if round_.entries else None,
            entered=round_.last("entered") - since if round_.entries else None,
            resumed=max(line["monotonic"] for line in round_.resumed) - since,
            step=round_.resumed[0]["step"],
            reached=self._reached_before(iteration),
            world_size=len(round_.resumed),
            lost=lost,
            took_over=took_over,
        )

    def _regroup(self, entries: Iterable[Line], since: float) -> tuple[tuple[int, ...], dict[int, int]]:
        """Each process has its new rank; returns who is lost, and who has left the reserve."""
        ranks = {entry["initial_rank"]: entry["rank"] for entry in entries if entry["active"]}
        there = {entry["initial_rank"] for entry in entries}
        lost = tuple({*self.places, *self.reserve} - there)
        took_over = {initial: rank for initial, rank in ranks.items() if initial not in self.places}
        self.lost |= dict.fromkeys(lost, since)
        self.places = ranks
        return lost, took_over
