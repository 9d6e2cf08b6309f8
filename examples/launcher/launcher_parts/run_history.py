"""What happened in a run, told by the lines that its ranks and launchers wrote. No clock and no files here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from demo_parts.journal import Line

from launcher_parts.plan import RANKS

__all__ = ["Injection", "Recovery", "RunHistory"]


@dataclass(frozen=True)
class Injection:
    """A fault, as its target told of it a moment before."""

    at: float
    kind: str
    rank: int
    step: int
    pid: int


@dataclass(frozen=True)
class Recovery:
    """How a run went on after a fault. Durations are seconds from the fault.

    Attributes:
        injection: the fault.
        resumed: until the slowest rank had done its first step.
        step: that step.
        started: until the last of the new processes ran, before it has imported torch; None: it was in process.
        processes: how many processes were started for it; 0: the restart was in process.
        standbys: how many of these were standby workers, which had imported torch.
        ended: how many workers were lost, or ended for a hang, before that.
    """

    injection: Injection
    started: float | None
    resumed: float
    step: int
    processes: int
    standbys: int
    ended: int


@dataclass
class RunHistory:
    """A run so far.

    Attributes:
        reached: how many steps have been done at least once.
        loss: of the last step.
        weights: the digest of the last weights.
        first, last: when the first and the last step was done.
        cut_off: the faults whose process the demo had to end.
        was_ended: the demo has ended the run, for its time was over.
    """

    reached: int = 0
    loss: float = 0.0
    weights: str = ""
    first: float = 0.0
    last: float = 0.0
    injections: list[Injection] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)
    cut_off: set[Injection] = field(default_factory=set)
    was_ended: bool = False
    _resumed: dict[int, Line] = field(default_factory=dict)
    _started: list[Line] = field(default_factory=list)
    _ended: int = 0

    @property
    def began(self) -> bool:
        """Whether a step was done."""
        return self.first > 0

    @property
    def pending(self) -> Injection | None:
        """The last fault, while the run has not gone on after it."""
        return self.injections[-1] if len(self.injections) > len(self.recoveries) else None

    def recovery_after(self, kind: str) -> Recovery | None:
        """How the run went on after a fault."""
        return next((recovery for recovery in self.recoveries if recovery.injection.kind == kind), None)

    def read(self, lines: Iterable[Line]) -> Iterator[Injection | Recovery]:
        """Take in new lines."""
        for line in lines:
            match line["event"]:
                case "step":
                    self._step(line)
                case "started":
                    self._started.append(line)
                case "worker_failed":
                    self._ended += 1
                case "fault_injected":
                    yield self._injected(line)
                case "resumed" if self.pending is not None and line["monotonic"] > self.pending.at:
                    self._resumed[line["initial_rank"]] = line
                    if len(self._resumed) == RANKS:
                        yield self._recovered(self.pending)
                case "trained":
                    self.weights = line["weights"]
                case _:
                    pass

    def _step(self, line: Line) -> None:
        self.first, self.last = self.first or line["monotonic"], line["monotonic"]
        self.reached, self.loss = max(self.reached, line["step"] + 1), line["loss"]

    def _injected(self, line: Line) -> Injection:
        injection = Injection(line["monotonic"], line["kind"], line["rank"], line["step"], line["pid"])
        self.injections.append(injection)
        self._resumed, self._started, self._ended = {}, [], 0
        return injection

    def _recovered(self, injection: Injection) -> Recovery:
        lines = self._resumed.values()
        resumed, step = max(line["monotonic"] for line in lines) - injection.at, min(line["step"] for line in lines)
        started = max((line["monotonic"] for line in self._started), default=None)
        standbys = sum(line["was_standby"] for line in self._started)
        after = None if started is None else started - injection.at
        self.recoveries.append(Recovery(injection, after, resumed, step, len(self._started), standbys, self._ended))
        return self.recoveries[-1]
