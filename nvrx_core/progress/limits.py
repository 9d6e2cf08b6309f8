"""The rules by which a monitored rank counts as hung, and the sample of its page that a hang detector gets. Pure.

Each rule that is in force at the moment is a `Limit`: since when it counts, and its timeout. The rank is overdue when
any limit is, whatever other sections are open. All times are stamped by the rank.

Signs of life are heartbeats; for a rank that has sent none, the opening and closing of sections; for one that has used
neither, executed bytecode, where something samples it. Before the first sign, the initial timeout is in force. A
section with a timeout of its own that is open suspends the heartbeat timeout of a rank that sends no heartbeats.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from nvrx_core.progress.stage import Stage

__all__ = [
    "MIN_SAMPLE_INTERVAL",
    "STEP",
    "WARMUP",
    "Limit",
    "LimitKind",
    "ProgressSample",
    "RankSample",
    "SectionSample",
    "earliest",
    "limits",
]

STEP: Final = "step"
"""The section of a training step; its first runs are the warm-up."""
WARMUP: Final = "warmup"
"""The section whose timeout is that of `step` during the warm-up."""
MIN_SAMPLE_INTERVAL: Final = 0.01
"""Seconds between two samples at least, however short the timeouts are."""


class LimitKind(enum.Enum):
    """What has not happened in time."""

    INITIAL = "no first heartbeat"
    HEARTBEAT = "no heartbeat"
    SECTION = "section not closed"
    OUT_OF_SECTION = "no section opened"
    PROGRESS = "no progress"


@dataclass(frozen=True)
class SectionSample:
    """One section of a rank; times in monotonic seconds.

    Attributes:
        name: its name.
        opened_at: when it was opened; None: it is closed.
        timeout: seconds; `inf` for none.
        count: how often it was opened.
    """

    name: str
    opened_at: float | None
    timeout: float
    count: int


@dataclass(frozen=True)
class RankSample:
    """What a rank has written on its progress page; times in monotonic seconds, timeouts in seconds, `inf` for none.

    Attributes:
        attached_at: when monitoring began.
        heartbeat_at: the last heartbeat; None: none was sent.
        automatic_at: when bytecode was last seen to be executed; None: nothing samples it.
        section_at: when a section was last opened or closed; None: never.
        initial_timeout, heartbeat_timeout, out_timeout: the timeouts in force.
        warmup_steps: how many runs of `step` are the warm-up.
        sections: all declared sections.
    """

    attached_at: float
    heartbeat_at: float | None = None
    automatic_at: float | None = None
    section_at: float | None = None
    initial_timeout: float = math.inf
    heartbeat_timeout: float = math.inf
    out_timeout: float = math.inf
    warmup_steps: int = 0
    sections: tuple[SectionSample, ...] = ()

    @property
    def max_sample_interval(self) -> float:
        """Seconds within which to take the next sample.

        No rule expires before that comes into force later. Half the shortest timeout: a pause of the machine that ends
        before the next sample, and is not noticed, costs the rank no more of its time.
        """
        timeouts = (section.timeout for section in self.sections)
        shortest = min(self.initial_timeout, self.heartbeat_timeout, self.out_timeout, *timeouts)
        return max(MIN_SAMPLE_INTERVAL, shortest / 2)


@dataclass(frozen=True)
class Limit:
    """A rule in force.

    Attributes:
        kind: what must happen.
        since: the moment from which it counts.
        timeout: seconds until it must have happened.
        section: the open section, or "".
    """

    kind: LimitKind
    since: float
    timeout: float
    section: str = ""

    @property
    def deadline(self) -> float:
        """When it has expired."""
        return self.since + self.timeout

    def reason(self, *, now: float) -> str:
        """Return a sentence for people."""
        if self.kind is LimitKind.PROGRESS:
            return f"no progress for {now - self.since:.3g} s (soft_timeout {self.timeout:g} s)"
        what = f"section {self.section!r} open" if self.kind is LimitKind.SECTION else self.kind.value
        return f"{what} for {now - self.since:.4g} s (timeout {self.timeout:g} s)"


class ProgressSample(NamedTuple):
    """One sample of the progress page; times in seconds.

    Attributes:
        iteration: the round.
        stage: the stage of the main thread.
        alive_at: the oldest sign of life in use.
        watchdog_alive_at: when the rank's watchdog thread last ran; `inf` when there is none.
        stopped: the process is stopped, as by SIGSTOP.
        protected: False while the user has switched hang protection off.
        noticed: the monitor thread has seen this round's event.
        interrupting: the round has ended, and the main thread is being interrupted.
        imported_at: when an import for which the interruption waits last added a module; `-inf`: none has.
        out_by: when a main thread that holds the GIL must have left the function after its round has ended; `inf` in
            an atomic section, which only the hard timeout ends.
        limit: the limit of a rank's heartbeats and sections that expires first; None for a rank that has none.
        max_sample_interval: seconds within which to take the next sample, as of `RankSample`.
    """

    iteration: int
    stage: Stage
    alive_at: float
    watchdog_alive_at: float = math.inf
    stopped: bool = False
    protected: bool = True
    noticed: bool = False
    interrupting: bool = False
    imported_at: float = -math.inf
    out_by: float = math.inf
    limit: Limit | None = None
    max_sample_interval: float = math.inf


def limits(sample: RankSample) -> Iterator[Limit]:
    """Yield the rules in force that have a timeout."""
    for limit in (_life(sample), _out_of_section(sample), *_sections(sample)):
        if limit is not None and limit.timeout < math.inf:
            yield limit


def earliest(sample: RankSample) -> Limit | None:
    """Return the rule in force that expires first."""
    return min(limits(sample), key=lambda limit: limit.deadline, default=None)


def _life(sample: RankSample) -> Limit | None:
    """The rule for signs of life."""
    if sample.heartbeat_at is not None:
        return Limit(LimitKind.HEARTBEAT, sample.heartbeat_at, sample.heartbeat_timeout)
    if sample.section_at is not None:
        bounded = any(section.opened_at is not None and section.timeout < math.inf for section in sample.sections)
        return None if bounded else Limit(LimitKind.HEARTBEAT, sample.section_at, sample.heartbeat_timeout)
    if sample.automatic_at is not None:
        return Limit(LimitKind.HEARTBEAT, sample.automatic_at, sample.heartbeat_timeout)
    return Limit(LimitKind.INITIAL, sample.attached_at, sample.initial_timeout)


def _out_of_section(sample: RankSample) -> Limit | None:
    """The rule for the time without an open section; before the first step it needs a section for the warm-up."""
    if any(section.opened_at is not None for section in sample.sections):
        return None
    counts = {section.name: section.count for section in sample.sections}
    if not counts or (counts.get(STEP) == 0 and WARMUP not in counts):
        return None
    since = sample.attached_at if sample.section_at is None else sample.section_at
    return Limit(LimitKind.OUT_OF_SECTION, since, sample.out_timeout)


def _sections(sample: RankSample) -> Iterator[Limit]:
    warmup = next((section.timeout for section in sample.sections if section.name == WARMUP), None)
    for section in sample.sections:
        if section.opened_at is None:
            continue
        is_warmup = section.name == STEP and section.count <= sample.warmup_steps and warmup is not None
        timeout = warmup if is_warmup and warmup is not None else section.timeout
        yield Limit(LimitKind.SECTION, section.opened_at, timeout, section.name)
