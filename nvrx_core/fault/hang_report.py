"""What one rank knows of a hang: where its main thread is, and what it waits for. Pure.

Each rank makes its report when the hang is announced, before its function is interrupted; its monitor process makes it
where the rank's threads do not run. `hang_verdict` judges by the reports of all ranks. On the wire a report is one JSON
object of at most `MAX_BYTES`, without a line break. Unknown fields are ignored.
"""

from __future__ import annotations

import enum
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from nvrx_core.collective import Collective
from nvrx_core.fault.stack_text import Frame
from nvrx_core.parsing import integer, number, parse_ranges, ranges, string

__all__ = [
    "EXITED",
    "EXITING",
    "MAX_BYTES",
    "MAX_CHILDREN",
    "HangReport",
    "RankCondition",
    "Waiting",
]

MAX_BYTES: Final = 4096
MAX_TEXT: Final = 300
MAX_GROUPS: Final = 33
"""Groups whose collectives a report has: the default one, and as many others as a rank counts."""
MAX_CHILDREN: Final = 4
EXITED: Final = "exited"
"""What a completed rank waits for whose process has exited."""
EXITING: Final = "the end of its interpreter"
"""What a rank waits for whose process is about to exit in order."""


class Waiting(enum.Enum):
    """Whether the main thread waits for other ranks, by what its own process shows."""

    WAITS = "waits"
    """It is inside a collective, a send or receive, or a rendezvous."""
    MAY_WAIT = "may wait"
    """It is inside torch, which may wait for others: the counts of collectives tell."""
    ELSEWHERE = "elsewhere"
    """It is anywhere else."""


class RankCondition(enum.Enum):
    """The condition of the rank's process and main thread."""

    BLOCKED = "blocked"
    RUNS = "runs"
    """It executes code: the rank may be slow, or loop."""
    HOLDS_GIL = "holds the GIL"
    """No thread of the process runs, as a call holds the interpreter's lock."""
    STOPPED = "stopped"
    """The process is stopped by a signal."""
    COMPLETED = "completed"
    """It has returned from the function; of a rank without one, its process has exited."""
    RESERVE = "reserve"
    """It does not run the function."""
    UNKNOWN = "unknown"
    """It has no report; `wait` says why."""


@dataclass(frozen=True, kw_only=True)
class HangReport:
    """The report of one rank.

    Attributes:
        rank: its rank in the iteration.
        initial_rank: its identity in the job.
        host: the host name.
        pid: its process.
        condition: that of process and main thread.
        waiting: whether it waits for other ranks.
        place: the user's innermost frame; None if it is not known.
        inner: the innermost frame, where that is another one.
        wait: what the kernel says the main thread waits for, as "a lock"; "" for nothing.
        silent: seconds since the last sign of life.
        stalled: it has been silent for long enough to count as stalled, or was reported.
        collective: the operation that it waits in; None for none.
        begun: the collectives that it has begun, by the name of the group, the default one first.
        rendezvous: how many rendezvous it has begun.
        step: the step that it has reported, -1 for none.
        section: the open section, "" for none.
        section_seconds: for how long it has been open.
        children: child processes that are dead and were not reaped, pid and name.
    """

    rank: int
    initial_rank: int
    host: str = ""
    pid: int = 0
    condition: RankCondition = RankCondition.BLOCKED
    waiting: Waiting = Waiting.ELSEWHERE
    place: Frame | None = None
    inner: Frame | None = None
    wait: str = ""
    silent: float = 0.0
    stalled: bool = True
    collective: Collective | None = None
    begun: Mapping[str, int] | None = None
    rendezvous: int = 0
    step: int = -1
    section: str = ""
    section_seconds: float = 0.0
    children: tuple[tuple[int, str], ...] = ()

    def encode(self) -> str:
        """Return the report as JSON of at most `MAX_BYTES`; what is long is cut, and the least important left out."""
        for short in (self, self._without_groups()):
            if len(text := short._to_json()) <= MAX_BYTES:
                return text
        return replace(self._without_groups(), inner=None, children=(), section="", begun={})._to_json()

    def placed(self, initial_rank: int, host: str) -> Self:
        """Return the report of a rank of this identity; where there is none, it is taken for its rank, too."""
        rank = initial_rank if self.condition is RankCondition.UNKNOWN else self.rank
        return replace(self, rank=rank, initial_rank=initial_rank, host=host)

    def _without_groups(self) -> Self:
        """Return the report without the members of a large group, which the others' reports tell."""
        if self.collective is None:
            return self
        own = {name: begun for name, begun in (self.begun or {}).items() if name == self.collective.group}
        return replace(self, collective=replace(self.collective, ranks=frozenset()), begun=own)

    def _to_json(self) -> str:
        data = {name: _cut(value) for name, value in vars(self).items() if value is not None}
        data |= {"condition": self.condition.value, "waiting": self.waiting.value}
        data |= {name: [_cut(frame.file, from_end=True), frame.line, _cut(frame.function)]
                 for name in ("place", "inner") if (frame := getattr(self, name)) is not None}  # fmt: skip
        if (found := self.collective) is not None:
            data["collective"] = [
                _cut(found.operation), _cut(found.group), _cut(found.label), found.number, ranges(found.ranks),
                ranges(found.peers),
            ]  # fmt: skip
        data["begun"] = {name[:MAX_TEXT]: begun for name, begun in list((self.begun or {}).items())[:MAX_GROUPS]}
        data["children"] = [[pid, _cut(name)] for pid, name in self.children[:MAX_CHILDREN]]
        return json.dumps(data, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str | bytes) -> HangReport:
        """Return the report that `encode` wrote.

        Raises:
            ValueError: when the text is malformed.
        """
        try:
            return cls._from_data(json.loads(text))
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ValueError(f"not a report of a hang: {text!r:.100}") from error

    @classmethod
    def _from_data(cls, data: Mapping[str, Any]) -> HangReport:
        collective = None
        if (found := data.get("collective")) is not None:
            operation, group, label, count, members, peers = found
            collective = Collective(
                string(operation),
                string(group),
                string(label),
                integer(count, 0),
                _ranks(string(members)),
                _ranks(string(peers)),
            )
        return cls(
            rank=integer(data["rank"], 0), initial_rank=integer(data["initial_rank"], 0),
            host=string(data.get("host", "")), pid=integer(data.get("pid", 0), 0),
            condition=RankCondition(data["condition"]), waiting=Waiting(data["waiting"]),
            place=_frame(data.get("place")), inner=_frame(data.get("inner")), wait=string(data.get("wait", "")),
            silent=number(data.get("silent", 0.0)), stalled=data.get("stalled") is True, collective=collective,
            begun={string(name): integer(begun, 0) for name, begun in data.get("begun", {}).items()},
            rendezvous=integer(data.get("rendezvous", 0), 0), step=integer(data.get("step", -1), -1),
            section=string(data.get("section", "")), section_seconds=number(data.get("section_seconds", 0.0)),
            children=tuple((integer(pid, 0), string(name)) for pid, name in data.get("children", ())),
        )  # fmt: skip


def _cut(value: Any, *, from_end: bool = False) -> Any:
    if not isinstance(value, str):
        return value
    return value[-MAX_TEXT:] if from_end else value[:MAX_TEXT]


@functools.lru_cache(maxsize=64)
def _ranks(text: str) -> frozenset[int]:
    """Return the ranks of a text; the reports of a large group share one set."""
    return parse_ranges(text)


def _frame(data: Any) -> Frame | None:
    if data is None:
        return None
    file, line, function = data
    return Frame(string(file), integer(line, 0), string(function))
