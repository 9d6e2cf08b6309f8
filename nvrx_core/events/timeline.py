"""The timeline of a job, from the event files of its ranks and of its launchers.

Command: `nvrx-timeline DIR`, or `python -m nvrx_core.events.timeline DIR`.

Clocks: events are ordered by the monotonic clock of their host. The offset of that clock from the wall clock is the
median over the host's events. A single process with a wrong wall clock therefore has no effect; only hosts whose wall
clocks differ are shifted against each other. The duration of a restart is that of its slowest rank; the phases are
those of that rank, and add up to the duration.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nvrx_core.events.cycles import Cycle, cycle_at, cycle_lines, cycles
from nvrx_core.events.fields import Event, clock_offsets, mapping, one_line, ranks, seconds, time_of, whole
from nvrx_core.events.phases import MARKS, PHASES, phases_from_marks
from nvrx_core.events.schema import GLOB, LAUNCHER, LAUNCHER_EVENTS, MAX_LINE, SCHEMA
from nvrx_core.process.standard_output import show

__all__ = ["Event", "Events", "Restart", "main", "read", "render", "restarts"]

_SHOWN: Final[Mapping[str, tuple[str, ...]]] = {
    "call_entered": ("world_size",), "fault": ("interruption", "message", "origin"), "left": ("reason",),
    "monitor_replaced": ("reason",), "straggler": ("ranks", "seconds"), "store_lost": ("endpoint",),
    "worker_failed": ("reason",), "rank_hung": ("reason",), "recovered": ("reason",), "cycle_stopped": ("reason",),
    "control_store_lost": ("reason",), "cycle_verdict": ("sentence",), "hang_verdict": ("sentence",),
    "straggler_found": ("sentence",), "straggler_over": ("sentence",),
    "restart_verdict": ("class", "error_type", "action", "confidence"),
}  # fmt: skip
"""The fields that the line of an event has; of a launcher's event all, unless named here."""
INDENT: Final = "\n" + " " * 15


@dataclass(frozen=True)
class Events:
    """The events of a directory, file by file in the order in which they were written.

    Attributes:
        records: the events, each with a field `call`: the index of the wrapper call to which it belongs on its rank.
        malformed: how many lines were skipped because they are not events of this schema.
    """

    records: tuple[Event, ...]
    malformed: int = 0

    def __iter__(self) -> Iterator[Event]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)


@dataclass(frozen=True)
class Restart:
    """One restart of the job.

    Attributes:
        ended_iteration: the iteration that a fault ended.
        iteration: the next iteration.
        cause: the first fault: initial_rank, rank, interruption, message, origin, host, pid.
        culprits: the initial ranks that are to blame; empty when all ranks stalled alike.
        lost: the initial ranks that no longer take part.
        slowest_rank: the initial rank that was the last to resume.
        phases: seconds by phase, on that rank.
        total: seconds from the fault until that rank resumed; the sum of the phases.
        ranks: the initial ranks that resumed.
    """

    ended_iteration: int
    iteration: int
    cause: Mapping[str, object]
    culprits: tuple[int, ...]
    lost: tuple[int, ...]
    slowest_rank: int
    phases: Mapping[str, float]
    total: float
    ranks: tuple[int, ...]


def read(directory: Path | str) -> Events:
    """Read the events of a directory; malformed lines are skipped and counted, unknown fields are kept.

    Raises:
        FileNotFoundError: when there is no such directory.
        NotADirectoryError: when it is a file.
    """
    folder = Path(directory)
    if not folder.exists():
        raise FileNotFoundError(f"no such directory: {folder}")
    if not folder.is_dir():
        raise NotADirectoryError(f"not a directory: {folder}")
    records: list[Event] = []
    malformed = 0
    for path in sorted(folder.glob(GLOB)):
        call = -1
        for line in _lines(path):
            event = _event(line)
            malformed += event is None
            if event is not None:
                call += event["event"] == "call_entered"
                records.append({"call": max(call, 0), **event})
    return Events(tuple(records), malformed)


def restarts(events: Iterable[Event]) -> tuple[Restart, ...]:
    """Return the restarts in process of a job, in the order in which the job resumed."""
    known = tuple(events)
    offsets = clock_offsets(known)
    placed = _placed(known, offsets, cycles(known, offsets))
    return tuple(restart for _, restart in sorted(placed, key=lambda item: item[0]))


def render(events: Iterable[Event], malformed: int = 0) -> str:
    """Return the timeline as text: one line per event, and for a restart its cause and phases in milliseconds."""
    known = tuple(events)
    offsets = clock_offsets(known)
    launched = cycles(known, offsets)
    told = [event for event in known if event["event"] not in ("restart", "cycle_started")]
    entries = [(time_of(event, offsets), _event_line(event)) for event in told]
    entries += [(cycle.started, INDENT.join(cycle_lines(cycle))) for cycle in launched]
    entries += [(at, _restart_lines(restart)) for at, restart in _placed(known, offsets, launched)]
    start = min((time for time, _ in entries), default=0.0)
    lines = [f"{time - start:+11.3f} s  {text}" for time, text in sorted(entries)]
    return "\n".join([*lines, *([f"{malformed} malformed lines skipped"] if malformed else [])])


def main(argv: Sequence[str] | None = None) -> int:
    """Print the timeline of a directory; return exit code 2 when there are no events."""
    parser = argparse.ArgumentParser("nvrx-timeline", description="Print what happened in a job.")
    parser.add_argument("directory", metavar="DIR", help="the job's events_dir (NVRX_EVENTS_DIR)")
    directory = parser.parse_args(argv).directory
    try:
        events = read(directory)
    except OSError as error:
        return _fail(f"{error}; name the directory that Wrapper(events_dir=...) or NVRX_EVENTS_DIR named")
    if not events:
        skipped = f" ({events.malformed} malformed lines)" if events.malformed else ""
        return _fail(f"no events in {directory}{skipped}; a job writes them when events_dir or NVRX_EVENTS_DIR is set")
    show(render(events, events.malformed))
    return 0


def _fail(message: str) -> int:
    print(f"timeline: {message}", file=sys.stderr)
    return 2


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while line := file.readline(MAX_LINE + 1):
            if line.strip():
                yield line


def _event(line: bytes) -> Event | None:
    """Return the event of a line, None when the line is malformed."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA or not isinstance(data.get("event"), str):
        return None
    are_whole = all(type(data.get(name)) is int for name in ("initial_rank", "iteration"))
    return data if are_whole and all(seconds(data.get(name)) is not None for name in ("wall", "monotonic")) else None


def _marks(event: Event) -> dict[str, float]:
    marks = mapping(event, "marks")
    return {name: at for name in MARKS if (at := seconds(marks.get(name))) is not None}


def _entered(event: Event, offsets: Mapping[object, float]) -> float:
    return time_of(event, offsets, _marks(event).get("entered"))


def _rounds(events: Iterable[Event], offsets: Mapping[object, float], launched: Sequence[Cycle]) -> list[list[Event]]:
    """Group the restart events by round; the calls of a rank are counted within a cycle of the launcher."""
    rounds: dict[tuple[int, int, int, int], list[Event]] = defaultdict(list)
    first_call: dict[tuple[int, int], int] = {}
    for event in events:
        cycle, call = cycle_at(launched, time_of(event, offsets)), whole(event, "call")
        first = first_call.setdefault((cycle, whole(event, "initial_rank")), call)
        if event["event"] == "restart":
            key = cycle, call - first, whole(event, "ended_iteration"), whole(event, "iteration")
            rounds[key].append(event)
    return list(rounds.values())


def _placed(
    events: Iterable[Event], offsets: Mapping[object, float], launched: Sequence[Cycle]
) -> list[tuple[float, Restart]]:
    """Return the restarts, each with the time at which its last rank resumed."""
    rounds = _rounds(events, offsets, launched)
    return [(max(_entered(event, offsets) for event in group), _restart(group, offsets)) for group in rounds]


def _restart(group: Sequence[Event], offsets: Mapping[object, float]) -> Restart:
    slowest = max(group, key=lambda event: _entered(event, offsets))
    phases = phases_from_marks(_marks(slowest))
    return Restart(
        ended_iteration=whole(slowest, "ended_iteration"),
        iteration=whole(slowest, "iteration"),
        cause=mapping(slowest, "cause"),
        culprits=ranks(slowest, "culprits"),
        lost=ranks(slowest, "lost"),
        slowest_rank=whole(slowest, "initial_rank"),
        phases=phases,
        total=math.fsum(phases.values()),
        ranks=tuple(sorted({whole(event, "initial_rank") for event in group})),
    )


def _event_line(event: Event) -> str:
    name = str(event["event"])
    shown = _SHOWN.get(name, LAUNCHER_EVENTS.get(name, ()))
    if event["initial_rank"] == LAUNCHER:
        who = f"launcher on {event.get('host')} (pid {event.get('pid')}) cycle {event['iteration']}"
    else:
        who = f"rank {event['initial_rank']:<4} iteration {event['iteration']:<3}"
    own = " ".join(f"{field}={one_line(event[field])}" for field in shown if event.get(field) not in (None, ""))
    return f"{who} {name} {own}".rstrip()


def _restart_lines(restart: Restart) -> str:
    cause = restart.cause
    where = f" at {cause['origin']}" if cause.get("origin") else ""
    process = f"rank {cause.get('initial_rank', '?')} ({cause.get('host', '?')} pid {cause.get('pid', '?')})"
    fault = f"{cause.get('interruption', 'unknown')} on {process}: {one_line(cause.get('message', ''))}{where}"
    head = f"restart {restart.ended_iteration} -> {restart.iteration}: {fault}"
    last = f"rank {restart.slowest_rank}, the last of {len(restart.ranks)}"
    total = f"the job: {1e3 * restart.total:.1f} ms until {last}, runs again"
    blame = f"culprits {list(restart.culprits) or 'none'}, lost {list(restart.lost) or 'none'}"
    phases = "  ".join(f"{name} {1e3 * restart.phases[name]:.1f}" for name in PHASES)
    return INDENT.join([head, f"{total}; {blame}", f"ms: {phases}"])


if __name__ == "__main__":
    sys.exit(main())
