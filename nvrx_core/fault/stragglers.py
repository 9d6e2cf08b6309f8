"""Stragglers: ranks that are slower than their peers in the sections of their own work. Pure.

All ranks of a synchronous job have the same step time: the fast ones wait for the slow one in a collective. What tells
them apart is the time in sections in which a rank waits for nobody, such as the one in which it fetches a batch.

A `PaceSampler` reads the last runs of each rank of a node: their median, which a checkpoint of one rank does not move.
A sample is the median of what was read in five seconds. One `StragglerDetector` compares the samples of all nodes. It
names a rank that is slow in several samples in a row, and once more when that is over: its median is `factor` times
that of all ranks, the difference is a share of a step, and the ranks that are not named are clearly faster. It names
nobody where few ranks can be compared, or many are slow: then the job is uneven, or the machine is busy.

Invariants: to exchange ranks exchanges them in the news, and nothing else; ranks whose times are within the factor are
never named.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final, NamedTuple

from nvrx_core.parsing import integer, integers, parse_object, ranges, string

__all__ = ["NodePaces", "Pace", "PaceSampler", "SectionPaces", "StragglerDetector", "StragglerNews"]

WARM_UP: Final = 5
"""Runs of a section that belong to no sample: they may compile, or start the workers of a data loader."""
SAMPLE_TIME: Final = 5.0
"""Seconds that a sample covers at least: a rank that a busy machine holds up is a faster one soon after."""
READ_EVERY: Final = 1.0
"""Seconds between two readings."""
SAMPLES: Final = 4
"""Samples in a row in which a rank is slow before it is named; twice as many before it is named once more."""
SAMPLES_OVER: Final = 2
"""Samples in a row in which it is not."""
STEADY: Final = 2
"""Comparisons before which as many ranks had samples: ranks of one kind may be the first to have one."""
SHARE: Final = 0.1
"""Of the time from one run to the next, by which a slow rank is slower."""
MINORITY: Final = 0.25
"""Of the ranks, that may be slow; of fewer than four ranks, none may."""
GAP: Final = 1.25
"""Times as long as of any other rank a slow rank takes; of slow ranks without a gap below them only the slowest ones
are named, those above the last gap."""
ALIKE: Final = 1.25
"""Times as often as the others a rank may run a section to be compared: one that also evaluates runs it more often."""
DATA: Final = "data"
"""The section in which also a rank is named that has been slow from its first sample on, or all such ranks of one host.
Other work may be uneven by design, as stages of a pipeline are; and a stage may wait in it until its device has room
for more kernels."""
FROM_START: Final = 2.0
"""Times the factor by which that rank is slower."""
REAL_WORK: Final = 1e-4
"""Seconds; if the median is shorter, the others leave the loading of data to that rank."""
MAX_LISTED: Final = 32
"""Ranks of a node whose paces are known to the detector, the slowest ones."""
MAX_TEXT: Final = 96
MAX_HOST: Final = 64


class Pace(NamedTuple):
    """A sample of one section of one rank.

    Attributes:
        rank: the rank.
        runs: how many runs were over when the sample was made; it identifies the sample.
        seconds: the median of the last runs.
        period: seconds from one run to the next, on average since the last sample.
    """

    rank: int
    runs: int
    seconds: float
    period: float


@dataclass(frozen=True)
class SectionPaces:
    """The samples of one section on one node.

    Attributes:
        ranks: how many ranks there are.
        seconds: the median of their medians.
        period: the median of their periods.
        slowest: the samples of the slowest ranks, at most `MAX_LISTED`.
    """

    ranks: int
    seconds: float
    period: float
    slowest: tuple[Pace, ...]

    @classmethod
    def of(cls, paces: Sequence[Pace]) -> SectionPaces:
        """Summarize the samples of a node's ranks, of one at least."""
        slowest = tuple(sorted(paces, key=lambda each: each.seconds, reverse=True)[:MAX_LISTED])
        seconds = median(each.seconds for each in paces)
        return cls(len(paces), seconds, median(each.period for each in paces), slowest)


@dataclass(frozen=True)
class NodePaces:
    """The samples of one node, about 30 bytes for each rank and section on the wire.

    Attributes:
        cycle: the cycle in which they were made.
        host: the host name.
        sections: the samples by the name of the section.
    """

    cycle: int
    host: str
    sections: Mapping[str, SectionPaces]

    def encode(self) -> str:
        """Return the samples as JSON."""
        sections = {
            name: [
                each.ranks, _microseconds(each.seconds), _microseconds(each.period),
                [part for rank, runs, seconds, period in each.slowest
                 for part in (rank, runs, _microseconds(seconds), _microseconds(period))],
            ]
            for name, each in self.sections.items()
        }  # fmt: skip
        data = {"cycle": self.cycle, "host": self.host[:MAX_HOST], "sections": sections}
        return json.dumps(data, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str | bytes) -> NodePaces:
        """Return the samples that `encode` wrote.

        Raises:
            ValueError: when the text is malformed.
        """
        try:
            data = parse_object(text)
            sections = {_name(name, MAX_TEXT): _section(*each) for name, each in data["sections"].items()}
            return cls(integer(data["cycle"], -1), _name(data["host"], MAX_HOST), sections)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"no paces of a node: {text[:100]!r}") from error


def _name(value: Any, longest: int) -> str:
    """Return a name that a line of a log may have, else raise ValueError."""
    name = string(value)
    if len(name) > longest or not name.isprintable():
        raise ValueError(f"no name: {name!r:.100}")
    return name


def _section(ranks: Any, seconds: Any, period: Any, slowest: Any) -> SectionPaces:
    parts = integers(slowest, 0)
    paces = tuple(
        Pace(rank, runs, microseconds / 1e6, between / 1e6)
        for rank, runs, microseconds, between in zip(*[iter(parts)] * 4, strict=True)
    )
    return SectionPaces(integer(ranks, max(len(paces), 1)), integer(seconds, 0) / 1e6, integer(period, 0) / 1e6, paces)


def _microseconds(seconds: float) -> int:
    return round(1e6 * seconds)


@dataclass
class _OpenSample:
    """What a sample has read so far, and the runs that were over when it began, and when it was last read."""

    began_with: int
    began_at: float
    runs: int
    medians: list[float] = field(default_factory=list)


class PaceSampler:
    """Makes the samples of one node in one cycle.

    Args:
        steps: runs that a sample covers at least; its median is that of the last so many.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._open = dict[tuple[str, int], _OpenSample]()
        self._paces = dict[tuple[str, int], Pace]()

    def observe(self, section: str, ranks: Iterable[tuple[int, int, Sequence[float]]], *, now: float) -> None:
        """Note a reading of one section of all ranks of the node; the samples of ranks without one are forgotten.

        Args:
            section: the section.
            ranks: rank, completed runs, fewer than before if the rank has begun anew, and the seconds of the last
                `steps` of them, fewer if some have not ended in order.
            now: monotonic seconds.
        """
        found = set[int]()
        for rank, runs, durations in ranks:
            found.add(rank)
            self._observe((section, rank), runs, durations, now)
        for samples in self._open, self._paces:
            for key in [key for key in samples if key[0] == section and key[1] not in found]:
                del samples[key]

    def _observe(self, key: tuple[str, int], runs: int, durations: Sequence[float], now: float) -> None:
        sample = self._open.get(key)
        if sample is None or runs < sample.began_with:
            self._paces.pop(key, None)
            self._open.pop(key, None)
            if runs >= WARM_UP:
                self._open[key] = _OpenSample(runs, now, runs)
            return
        if runs > sample.runs and durations:
            sample.runs = runs
            sample.medians.append(median(durations))
        number, seconds = runs - sample.began_with, now - sample.began_at
        if number >= self._steps and seconds >= SAMPLE_TIME and sample.medians:
            self._paces[key] = Pace(key[1], runs, median(sample.medians), seconds / number)
            self._open[key] = _OpenSample(runs, now, runs)

    def sections(self) -> dict[str, SectionPaces]:
        """Return the last samples, by section."""
        found = defaultdict[str, list[Pace]](list)
        for (section, _), pace in self._paces.items():
            found[section].append(pace)
        return {section: SectionPaces.of(paces) for section, paces in found.items()}


class _Typical(NamedTuple):
    """The medians of all ranks in one section, in seconds."""

    seconds: float
    period: float


_Samples = Sequence[tuple[str, SectionPaces]]
"""The samples of one section, by the host of each node."""


class SlowSection(NamedTuple):
    """How slow a rank is in one section.

    Attributes:
        section: the section.
        seconds: the median of its last runs.
        peers: the median of all ranks.
        period: seconds from one run to the next.
        runs: for how many runs.
        from_start: it has never been as fast as the others.
    """

    section: str
    seconds: float
    peers: float
    period: float
    runs: int
    from_start: bool = False

    @property
    def factor(self) -> float:
        """How many times as long as its peers the rank takes."""
        return self.seconds / max(self.peers, 1e-6)

    def __str__(self) -> str:
        return f"{self.section} {_text(self.seconds)} (peers {_text(self.peers)}) of a step of {_text(self.period)}"


@dataclass(frozen=True)
class StragglerNews:
    """The news that ranks of a host have become stragglers, or that this is over.

    Attributes:
        has_begun: False if it is over.
        ranks: the ranks.
        host: their host.
        findings: the sections in which they are slow, or were, of the slowest of these ranks.
    """

    has_begun: bool
    ranks: tuple[int, ...]
    host: str
    findings: tuple[SlowSection, ...]

    @property
    def sentence(self) -> str:
        """The sentence for people."""
        who = f"rank{'s' * (len(self.ranks) > 1)} {ranges(self.ranks)} ({self.host or 'unknown host'})"
        verb = "are" if len(self.ranks) > 1 else "is"
        slowest = max(self.findings, key=lambda each: each.factor)
        sections = "; ".join(map(str, self.findings))
        if not self.has_begun:
            return f"{who} {verb} about as fast as the others again, after {slowest.runs} steps: {sections}"
        times = f"{slowest.factor:.2g}" if slowest.factor < 100 else "over 100"
        start = " since the first ones" if slowest.from_start else ""
        return f"{who} {verb} {times} times as slow as the others for {slowest.runs} steps{start}: {sections}"


@dataclass
class _Record:
    """What the detector knows of one section of one rank."""

    runs: int = -1
    is_uneven: bool = False
    slow: int = 0
    fast: int = 0
    since: int = 0
    named: int = 0
    is_straggler: bool = False


@dataclass
class StragglerDetector:
    """Compares the samples of all nodes of a job.

    Args:
        factor: times as slow as the median of all ranks a straggler is.
        steps: runs that a sample covers at least.
    """

    factor: float
    steps: int
    _cycle: int = -1
    _world_size: int = 0
    _records: dict[tuple[str, int], _Record] = field(default_factory=dict)
    _steady: dict[str, tuple[int, int]] = field(default_factory=dict)
    _even: set[tuple[str, int]] = field(default_factory=set)

    def begin_cycle(self, cycle: int, world_size: int) -> None:
        """Forget the samples so far; which ranks do even work stays known as long as there are as many."""
        if world_size != self._world_size:
            self._even.clear()
        self._cycle, self._world_size, self._records, self._steady = cycle, world_size, {}, {}

    def evaluate(self, nodes: Iterable[NodePaces]) -> list[StragglerNews]:
        """Return what has changed: who has become a straggler, the slowest first, then for whom this is over.

        Args:
            nodes: the last samples of all nodes; those of another cycle do not count.
        """
        present = [each for each in nodes if each.cycle == self._cycle]
        news = defaultdict[tuple[bool, int, str], list[SlowSection]](list)
        samples = {
            section: [(each.host, each.sections[section]) for each in present if section in each.sections]
            for section in sorted({name for each in present for name in each.sections})
        }
        typical = {section: _medians([each for _, each in here]) for section, here in samples.items()}
        for section, here in samples.items():
            slow = self._slow_ranks(here, typical[section])
            if section != DATA:
                slow &= _are_busier(slow, samples, typical)
            for has_begun, pace, host, finding in self._evaluate_section(section, here, slow, typical[section]):
                news[has_begun, pace.rank, host].append(finding)
        return _together(news)

    def _evaluate_section(
        self, section: str, nodes: _Samples, slow: frozenset[int], typical: _Typical
    ) -> Iterator[tuple[bool, Pace, str, SlowSection]]:
        ranks = sum(each.ranks for _, each in nodes)
        before, since = self._steady.get(section, (0, 0))
        self._steady[section] = ranks, since + 1 if before == ranks else 0
        if before != ranks or since < STEADY - 1:
            return
        even = typical.seconds * (1 + self.factor) / 2
        from_start = self._slow_from_start(section, nodes, slow, typical)
        for host, pace in _comparable(nodes, typical.period):
            record = self._records.get((section, pace.rank))
            if record is None or pace.runs < record.runs:  # a rank that has begun anew counts its runs from 0
                before_that = _Record() if record is None else record
                record = self._records[section, pace.rank] = _Record(
                    is_uneven=(section, pace.rank) not in self._even,
                    named=before_that.named,
                    is_straggler=before_that.is_straggler,
                )
            if pace.runs == record.runs:
                continue
            record.runs = pace.runs
            is_even = pace.seconds <= even
            if is_even and record.is_uneven:
                record.is_uneven = False
                self._even.add((section, pace.rank))
            is_slow = pace.rank in from_start if record.is_uneven else pace.rank in slow
            change = self._note(record, is_slow=is_slow, is_even=is_even)
            if change is not None:
                runs = pace.runs - record.since
                yield (
                    change,
                    pace,
                    host,
                    SlowSection(section, pace.seconds, typical.seconds, pace.period, runs, record.is_uneven),
                )

    def _slow_ranks(self, nodes: _Samples, typical: _Typical) -> frozenset[int]:
        """Return the ranks that are slow, none if that may have another reason."""
        least = max(self.factor * typical.seconds, typical.seconds + SHARE * typical.period)
        ranks = sum(each.ranks for _, each in nodes)
        paces = sorted((pace for _, pace in _comparable(nodes, typical.period)), key=lambda each: -each.seconds)
        times = [pace.seconds for pace in paces]
        slow = sum(seconds >= least and seconds > 0 for seconds in times)
        if slow > MINORITY * ranks:
            return frozenset()
        steps_down = zip(times[:slow], [*times[1:], 0.0], strict=False)
        named = max((number for number, (it, after) in enumerate(steps_down, 1) if it >= GAP * after), default=0)
        return frozenset(pace.rank for pace in paces[:named])

    def _slow_from_start(
        self, section: str, nodes: _Samples, slow: frozenset[int], typical: _Typical
    ) -> frozenset[int]:
        """Return those of the slow ranks that have never been as fast as the others, and are to be named.

        Where one rank of each group loads for all of it, these ranks are slow on many hosts: that is the storage.
        """
        if section != DATA or typical.seconds < REAL_WORK:
            return frozenset()
        least = FROM_START * self.factor * typical.seconds
        found = {
            pace.rank: host
            for host, pace in _comparable(nodes, typical.period)
            if pace.rank in slow and (section, pace.rank) not in self._even and pace.seconds >= least
        }
        is_one_of_several_hosts = len(set(found.values())) == 1 < len({host for host, _ in nodes})
        return frozenset(found) if len(found) == 1 or is_one_of_several_hosts else frozenset()

    def _note(self, record: _Record, *, is_slow: bool, is_even: bool) -> bool | None:
        """Count a sample; return whether the rank has become a straggler, or no longer is one, None for no change."""
        record.slow = record.slow + 1 if is_slow else 0
        record.fast = record.fast + 1 if is_even else 0
        if record.slow == 1 and not record.is_straggler:
            record.since = max(record.runs - self.steps, 0)
        if not record.is_straggler and record.slow >= SAMPLES << record.named:
            record.is_straggler, record.named = True, record.named + 1
            return True
        if record.is_straggler and record.fast >= SAMPLES_OVER:
            record.is_straggler, record.slow = False, 0
            return False
        return None


def _comparable(nodes: _Samples, period: float) -> list[tuple[str, Pace]]:
    """Return host and sample of the ranks that run a section about as often as most ranks."""
    least, most = period / ALIKE, period * ALIKE
    return [(host, pace) for host, each in nodes for pace in each.slowest if least <= pace.period <= most]


def _are_busier(
    ranks: frozenset[int], samples: Mapping[str, _Samples], typical: Mapping[str, _Typical]
) -> frozenset[int]:
    """Return those of some ranks that are slower than others in all sections together.

    A section of the user's may have a collective after all, where a rank waits while most ranks load their data.
    """
    busy = dict.fromkeys(ranks, 0.0)
    for nodes in samples.values():
        for _, each in nodes if ranks else ():
            for pace in each.slowest:
                if pace.rank in busy and pace.period:
                    busy[pace.rank] += pace.seconds / pace.period
    others = sum(each.seconds / each.period for each in typical.values() if each.period)
    return frozenset(rank for rank, share in busy.items() if share >= others + SHARE)


def _medians(nodes: Sequence[SectionPaces]) -> _Typical:
    """Return the medians of seconds and periods: of all ranks if all are listed, else of the nodes."""
    if all(len(each.slowest) == each.ranks for each in nodes):
        paces = [pace for each in nodes for pace in each.slowest]
        return _Typical(median(each.seconds for each in paces), median(each.period for each in paces))
    return _Typical(median(each.seconds for each in nodes), median(each.period for each in nodes))


def _together(found: Mapping[tuple[bool, int, str], list[SlowSection]]) -> list[StragglerNews]:
    """Return one news for the ranks of a host that are slow in the same sections."""
    groups = defaultdict[tuple[bool, str, tuple[str, ...]], list[int]](list)
    for (has_begun, rank, host), findings in sorted(found.items()):
        groups[has_begun, host, tuple(each.section for each in findings)].append(rank)
    news = [
        StragglerNews(
            has_begun,
            tuple(ranks),
            host,
            tuple(max((found[has_begun, rank, host] for rank in ranks), key=lambda each: max(f.factor for f in each))),
        )
        for (has_begun, host, _), ranks in groups.items()
    ]
    return sorted(news, key=lambda each: (not each.has_begun, -max(f.factor for f in each.findings), each.ranks))


def _text(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{1000 * seconds:.3g} ms"
