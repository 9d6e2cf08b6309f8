"""The verdict on a hang, from the reports of all ranks: who is to blame, and what the others wait for. Pure.

A rank waits for those that have not begun the collective that it waits in, for the peer of its send or receive, or for
those that have not begun a rendezvous. Ranks that others wait for, and that wait for nobody themselves, are to blame.
If there is no such rank, nobody is named: ranks that wait for each other, or all alike, cannot be told apart.

Invariants, whatever the reports say: to exchange ranks exchanges them in the verdict, and nothing else; a report that
is missing never makes another rank a culprit.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Self

from nvrx_core.collective import RENDEZVOUS, Collective
from nvrx_core.fault.blame import MAX_AHEAD
from nvrx_core.fault.hang_report import EXITED, EXITING, HangReport, RankCondition, Waiting
from nvrx_core.fault.stack_text import Frame
from nvrx_core.parsing import number, parse_object, parse_ranges, ranges, string

__all__ = ["HangOutcome", "HangVerdict", "judge", "whereabouts", "with_peers_stalled"]

MAX_NAMED: Final = 4
"""Ranks, or groups of waiting ranks, that the sentence describes one by one."""
MAX_RUNS: Final = 8
"""Runs of ranks that a part of the sentence names."""
MAX_SENTENCE: Final = 8000
"""Characters."""
_CANNOT_MOVE: Final = (RankCondition.STOPPED, RankCondition.HOLDS_GIL)
_OUT: Final = (RankCondition.COMPLETED, RankCondition.RESERVE)


class HangOutcome(enum.Enum):
    """What the reports say."""

    CULPRITS = "culprits"
    NO_REPORT = "no report"
    """The others wait for ranks that have not reported."""
    MISMATCH = "mismatch"
    """The ranks of a group call different collectives."""
    EACH_OTHER = "wait for each other"
    ALL_JOINED = "all have joined"
    """All ranks of a collective have begun it, and it does not end."""
    ALIKE = "alike"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class HangVerdict:
    """The verdict.

    Attributes:
        outcome: what the reports say.
        culprits: the ranks to blame, by their rank in the iteration; empty unless the outcome is `CULPRITS`,
            `NO_REPORT` or `MISMATCH`.
        missing: the ranks without a report.
        confidence: 0 to 1, by the kind of the evidence.
        sentence: the verdict in one line.
    """

    outcome: HangOutcome
    culprits: tuple[int, ...]
    missing: tuple[int, ...]
    confidence: float
    sentence: str

    def event_fields(self) -> dict[str, object]:
        """Return the fields of an event `hang_verdict`."""
        return {
            "outcome": self.outcome.value, "ranks": self.culprits, "missing": self.missing,
            "confidence": self.confidence, "sentence": self.sentence,
        }  # fmt: skip

    def encode(self) -> str:
        """Return the verdict as JSON."""
        of_ranks = {"culprits": ranges(self.culprits), "missing": ranges(self.missing)}
        return json.dumps({**vars(self), **of_ranks, "outcome": self.outcome.value}, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str | bytes) -> Self:
        """Return the verdict that `encode` wrote.

        Raises:
            ValueError: when the text is malformed.
        """
        data = parse_object(text)
        sentence = string(data.get("sentence"))
        if not sentence.isprintable() or len(sentence) > MAX_SENTENCE:
            raise ValueError(f"no sentence: {sentence!r:.100}")
        culprits, missing = (tuple(sorted(parse_ranges(data.get(which)))) for which in ("culprits", "missing"))
        return cls(HangOutcome(data.get("outcome")), culprits, missing, float(number(data.get("confidence"))), sentence)


class _Awaited(NamedTuple):
    """The ranks that a rank waits for: those known to be behind, and those of which it is not known.

    Those that are behind are in sets, none of them empty, which thousands of waiting ranks share.
    """

    behind: tuple[frozenset[int], ...] = ()
    unreported: frozenset[int] = frozenset()


def with_peers_stalled(reports: Mapping[int, HangReport]) -> dict[int, HangReport]:
    """Return reports of which those count as stalled, too, that are silent for half as long as an overdue rank.

    The limits of ranks are their own: a rank that the others wait for may have given its last sign of life later.
    """
    least = min((each.silent for each in reports.values() if each.stalled), default=0.0) / 2
    return {
        rank: replace(each, stalled=True) if 0 < least <= each.silent and not each.stalled else each
        for rank, each in reports.items()
    }


def judge(reports: Mapping[int, HangReport], ranks: Collection[int], *, may_name_missing: bool = True) -> HangVerdict:
    """Return the verdict on a hang.

    Args:
        reports: those that have come in time, by rank.
        ranks: all ranks of the iteration.
        may_name_missing: a rank without a report would have one if it could answer.
    """
    return _Case(reports, ranks, may_name_missing=may_name_missing).verdict()


class _Case:
    """One hang.

    Attributes:
        missing: the ranks without a report.
        awaited: for each rank that waits for others, whom it waits for.
        elsewhere: the ranks that run the function, or have returned from it, and wait for nobody.
    """

    def __init__(self, reports: Mapping[int, HangReport], ranks: Collection[int], *, may_name_missing: bool) -> None:
        self._may_name_missing = may_name_missing
        unknown = RankCondition.UNKNOWN
        self.reports = {rank: each for rank, each in sorted(reports.items()) if each.condition is not unknown}
        self._reasons = {rank: each.wait for rank, each in reports.items() if each.condition is unknown}
        self.missing = frozenset((set(ranks) | self._reasons.keys()) - self.reports.keys())
        self.awaited = dict[int, _Awaited]()
        self._joined = dict[tuple[Collective, int], _Awaited]()
        self._counted = dict[tuple[str, int], frozenset[int]]()
        self._begun = dict[str, dict[int, int]]()
        for rank, report in self.reports.items():
            for group, begun in (report.begun or {}).items():
                self._begun.setdefault(group, {})[rank] = begun
        self.elsewhere = set[int]()
        for rank, report in self.reports.items():
            found = self._awaited_by(report)
            if report.waiting is Waiting.WAITS or found.behind:
                self.awaited[rank] = found
            elif report.condition is not RankCondition.RESERVE and not (self.missing and _may_wait(report)):
                self.elsewhere.add(rank)

    def verdict(self) -> HangVerdict:
        """Return the verdict: the first rule that has one."""
        behind = self.elsewhere & set[int]().union(*self._behind())
        stuck = {rank for rank in behind if self._is_stuck(rank)}
        for certain in (self._present(stuck), stuck):  # who has returned may have joined before
            if blamed := {rank for rank in certain if not _may_wait(self.reports[rank])} or certain:
                sure = not any(_may_wait(self.reports[rank]) for rank in blamed)
                return self._culprits(blamed, 0.95 if sure and self._present(blamed) else 0.6)
        if behind and not self.missing:  # they are at work
            return self._culprits(behind, 0.5)
        if self.missing:
            return self._incomplete()
        if self.awaited:
            return self._waiting()
        return self._apart()

    def _awaited_by(self, report: HangReport) -> _Awaited:
        """Return whom a rank waits for, by its own report and the counts of the others."""
        if report.waiting is Waiting.ELSEWHERE or report.condition in _CANNOT_MOVE:
            return _Awaited()
        found = report.collective
        if found is None:
            counts = (self._behind_in_count(group, begun) for group, begun in (report.begun or {}).items())
            return _Awaited(tuple(filter(None, counts)), self.missing)
        if found.peers:
            return _awaited(found.peers - self.missing, found.peers & self.missing)
        rendezvous = report.rendezvous if found.operation == RENDEZVOUS else 0
        if (found, rendezvous) not in self._joined:  # thousands of ranks wait in one collective
            self._joined[found, rendezvous] = self._not_joined(found, rendezvous)
        return self._joined[found, rendezvous]

    def _not_joined(self, found: Collective, rendezvous: int) -> _Awaited:
        """Return the ranks that have not begun what a rank waits in, a collective or this rendezvous."""
        reports = self.reports
        if rendezvous:
            return _awaited((rank for rank, each in reports.items() if each.rendezvous < rendezvous), self.missing)
        members = found.ranks or self._begun.get(found.group, {}).keys()
        known = members & reports.keys() or reports.keys()
        return _awaited(
            (rank for rank in known if _has_not_joined(reports[rank], found)), frozenset(self.missing - known)
        )

    def _behind_in_count(self, group: str, begun: int) -> frozenset[int]:
        """Return the ranks that have begun fewer collectives of a group that both are members of."""
        if (group, begun) not in self._counted:
            counts = self._begun[group].items()
            self._counted[group, begun] = frozenset(rank for rank, its in counts if 0 < begun - its <= MAX_AHEAD)
        return self._counted[group, begun]

    def _behind(self) -> set[frozenset[int]]:
        """Return the sets of ranks that others wait for."""
        return {ranks for found in self.awaited.values() for ranks in found.behind}

    def _is_stuck(self, rank: int) -> bool:
        report = self.reports[rank]
        return report.stalled or report.condition in (*_CANNOT_MOVE, RankCondition.COMPLETED)

    def _culprits(self, blamed: Collection[int], confidence: float) -> HangVerdict:
        whose = "it" if len(blamed) == 1 else "them"
        parts = [_stands(self.reports[rank]) for rank in sorted(blamed)[:MAX_NAMED]]
        if len(blamed) > MAX_NAMED:
            parts.append(f"{_named(sorted(blamed)[MAX_NAMED:])} likewise")
        return self._say(HangOutcome.CULPRITS, blamed, confidence, [*parts, *self._waits(f" for {whose}")])

    def _incomplete(self) -> HangVerdict:
        """Nobody is named for what a rank without a report may have done, but that rank itself."""
        unreported = frozenset[int]().union(
            *(
                each.unreported
                for each in set(self.awaited.values())
                if all(self.elsewhere.isdisjoint(ranks) for ranks in each.behind)
            )
        )
        if len(unreported) == 1 and self._may_name_missing:
            (rank,) = unreported
            parts = [f"rank {rank} has not joined the others, or they wait for each other", *self._waits("")]
            return self._say(HangOutcome.NO_REPORT, unreported, 0.6, parts)
        return self._say(HangOutcome.UNKNOWN, (), 0.0, ["who is to blame is not known", *self._places()])

    def _waiting(self) -> HangVerdict:
        """All reports are there, and nobody whom others wait for is anywhere else."""
        if (odd := self._mismatch()) is not None:
            return odd
        if not self._behind():
            waited = [self.reports[rank].collective for rank in self.awaited]
            apart = {
                rank
                for rank in self._present(self.elsewhere)
                if self._is_stuck(rank)
                and not _may_wait(self.reports[rank])
                and any(each is None or not each.ranks or rank in each.ranks for each in waited)
            }
            if apart:
                return self._culprits(apart, 0.6)  # torch does not count all that ranks wait in
            return self._say(HangOutcome.ALL_JOINED, (), 0.0, [
                "no rank is behind: all have begun what they wait in", *self._waits(""), *self._places(self.elsewhere)
            ])  # fmt: skip
        return self._say(HangOutcome.EACH_OTHER, (), 0.0, ["the ranks wait for each other", *self._waits("")])

    def _mismatch(self) -> HangVerdict | None:
        """Return the verdict on ranks that call different collectives with one number in one group; None for others."""
        called = dict[tuple[str, int], dict[str, set[int]]]()
        for rank in self.awaited:
            found = self.reports[rank].collective
            if found is not None and found.number and not found.peers:
                called.setdefault((found.group, found.number), {}).setdefault(found.operation, set()).add(rank)
        for (_, count), by_operation in sorted(called.items()):
            if len(by_operation) > 1:
                most = max(by_operation.values(), key=len)
                odd = {rank for group in by_operation.values() if group is not most for rank in group}
                blamed = odd if len(most) > len(odd) else set[int]()
                parts = [f"the ranks call different collectives, as number {count} of one group", *self._waits("")]
                return self._say(HangOutcome.MISMATCH, blamed, 0.8 if blamed else 0.0, parts)
        return None

    def _apart(self) -> HangVerdict:
        """No rank waits for another one."""
        present = [rank for rank in self.elsewhere if not self._has_completed(rank)]
        stuck = {rank for rank in present if self._is_stuck(rank)}
        if stuck and len(stuck) < len(self.elsewhere):
            return self._culprits(stuck, 0.7)
        least = min((self.reports[rank].step for rank in stuck), default=-1)
        slowest = {rank for rank in stuck if self.reports[rank].step == least}
        if least >= 0 and 0 < len(slowest) < len(stuck):  # of a rank that reports no steps it is not known
            return self._culprits(slowest, 0.7)
        if len(self.elsewhere) == 1 and stuck:
            return self._culprits(stuck, 0.7)
        places = {self.reports[rank].place for rank in present}
        is_alike = len(places) == 1 and not any(  # a thread that is not looked at may be in a collective
            self._behind_in_count(group, begun)
            for rank in present
            for group, begun in (self.reports[rank].begun or {}).items()
        )
        outcome = HangOutcome.ALIKE if is_alike else HangOutcome.UNKNOWN
        first = "all ranks are alike, none is to blame" if is_alike else "who is to blame is not known"
        return self._say(outcome, (), 0.0, [first, *self._places()])

    def _present(self, ranks: Collection[int]) -> set[int]:
        return {rank for rank in ranks if not self._has_completed(rank)}

    def _has_completed(self, rank: int) -> bool:
        return self.reports[rank].condition in _OUT

    def _say(self, outcome: HangOutcome, blamed: Collection[int], confidence: float, parts: list[str]) -> HangVerdict:
        missing = tuple(sorted(self.missing))
        by_reason = dict[str, list[int]]()
        for rank in missing:
            by_reason.setdefault(self._reasons.get(rank, ""), []).append(rank)
        for reason, some in list(by_reason.items())[:MAX_NAMED]:
            parts.append(f"no report of {_named(some)}{f' ({reason})' if reason else ' in time'}")
        sentence = "".join(each if each.isprintable() else "?" for each in "; ".join(parts))  # reports are not trusted
        return HangVerdict(outcome, tuple(sorted(blamed)), missing, confidence, sentence[:MAX_SENTENCE])

    def _waits(self, whom: str) -> list[str]:
        """Return what the waiting ranks wait in, a part for each operation."""
        groups = dict[str, set[int]]()
        for rank in self.awaited:
            found = self.reports[rank].collective or self._uncalled(rank)
            peers = f" from {_named(found.peers)}" if found is not None and found.peers and not whom else ""
            groups.setdefault(f"{whom}{_operation(found)}{peers}", set()).add(rank)
        parts = [
            f"{_named(ranks)} wait{'s' * (len(ranks) == 1)}{text}"
            for text, ranks in sorted(groups.items(), key=lambda group: min(group[1]))
        ]
        return parts[:MAX_NAMED] + (["and so on"] if len(parts) > MAX_NAMED else [])

    def _uncalled(self, rank: int) -> Collective | None:
        """Return the collective in which a rank waits by the counts alone, None if it cannot be told."""
        for index, (group, begun) in enumerate((self.reports[rank].begun or {}).items()):
            if self._behind_in_count(group, begun):
                return Collective("collective", group, group if index else "", begun)
        return None

    def _places(self, ranks: Collection[int] | None = None) -> list[str]:
        """Return where ranks are, those at one place together."""
        groups = dict[str, set[int]]()
        for rank in self.reports if ranks is None else sorted(ranks):
            report = self.reports[rank]
            if not self._has_completed(rank):
                groups.setdefault(f"{_place(report)}{_wait(report)}", set()).add(rank)
        parts = [f"{_named(found)} {text}" for text, found in groups.items()]
        return parts[:MAX_NAMED] + (["and so on"] if len(parts) > MAX_NAMED else [])


def _awaited(behind: Iterable[int], unreported: frozenset[int]) -> _Awaited:
    ranks = frozenset(behind)
    return _Awaited((ranks,) if ranks else (), unreported)


def _may_wait(report: HangReport) -> bool:
    return report.waiting is Waiting.MAY_WAIT


def _has_not_joined(other: HangReport, found: Collective) -> bool:
    """Whether a rank has not begun a collective that others wait in, or cannot go on with it."""
    begun = (other.begun or {}).get(found.group)
    if other.condition is RankCondition.STOPPED:
        return True
    if begun is None or not found.number:
        return other.waiting is Waiting.ELSEWHERE
    return begun < found.number


def _named(ranks: Collection[int]) -> str:
    runs = ranges(ranks).split(", ")
    text = ", ".join(runs[:MAX_RUNS])
    if len(runs) > MAX_RUNS:
        text += f" and {len(set(ranks)) - len(parse_ranges(text)):,} more"
    return f"rank{'s' * (len(ranks) > 1)} {text}"


def _at(frame: Frame) -> str:
    return f"{frame.file.rpartition('/')[2]}:{frame.line} in {frame.function}"


def _place(report: HangReport) -> str:
    if report.wait == EXITING:
        return f"at {EXITING}"
    return "at an unknown place" if report.place is None else f"at {_at(report.place)}"


def _operation(found: Collective | None) -> str:
    if found is None:
        return " in a collective"
    if found.operation == RENDEZVOUS:
        return " in the creation of a process group"
    number = f" #{found.number}" if found.number else ""
    default = " of the default group" if found.group and not found.peers else ""
    group = f" of group {found.label}" if found.label else default
    return f" in {found.operation}{number}{group}"


def _wait(report: HangReport) -> str:
    match report.condition:
        case RankCondition.STOPPED:
            return ", its process is stopped"
        case RankCondition.HOLDS_GIL:
            return ", in a call that holds the GIL"
        case RankCondition.RUNS:
            return ", running"
        case _:
            return f", waiting for {report.wait}" if report.wait not in ("", EXITING) else ""


def whereabouts(report: HangReport) -> str:
    """Return where a rank's main thread is, since when, and what it waits for."""
    inner = "" if report.inner is None else f" (in {_at(report.inner)})"
    section = f", section {report.section!r} open for {report.section_seconds:.3g} s" if report.section else ""
    dead = [f"{name} pid {pid}" for pid, name in report.children]
    children = f", with dead child processes: {', '.join(dead)}" if dead else ""
    since = f" for {report.silent:.3g} s" if report.stalled else f", with signs of life until {report.silent:.2g} s ago"
    return f"{_place(report)}{inner}{since}{_wait(report)}{section}{children}"


def _stands(report: HangReport) -> str:
    initial = "" if report.rank == report.initial_rank else f"initial rank {report.initial_rank}, "
    who = f"rank {report.rank} ({initial}{report.host or 'unknown host'})"
    if report.condition is RankCondition.COMPLETED:
        return f"{who} has {EXITED if report.wait == EXITED else 'returned from the function'}"
    return f"{who} {'stands' if report.stalled else 'is'} {whereabouts(report)}"
