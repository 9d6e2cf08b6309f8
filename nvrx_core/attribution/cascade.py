"""The first fault among its consequences: from findings to one verdict. Pure.

When a rank fails, the others report lost connections and collectives that time out, and the launcher and the scheduler
end them. The order of what may be the cause: what the kernel or the driver has recorded; what ended the job from
outside, unless it had failed before; the first rank that says why it fails, or that a signal has ended; a rank that has
ended without a word; what a communication library says; and last a rank that others have lost or waited for. The
earlier of two is told by their lines in one file, else by time, with the hosts' clocks aligned (`Seen.clock_offsets`).
Where the lines do not say which rank it was, the verdict names none: a wrong name is worse.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from nvrx_core.attribution.classification import Finding, Seen
from nvrx_core.attribution.rules import ABSTAINS, BY_NAME, Kind
from nvrx_core.attribution.verdict import Action, Verdict, shown

__all__ = ["decide"]

MAX_EVIDENCE: Final = 5
LONGEST_DETAIL: Final = 160
_CONFIDENCE: Final[Mapping[Kind, float]] = {
    Kind.MACHINE: 0.95, Kind.CAUSE: 0.95, Kind.SCHEDULER: 0.9, Kind.EXCEPTION: 0.85, Kind.ENDED: 0.8,
    Kind.COLLECTIVE: 0.7, Kind.STALLED: 0.7, Kind.CONSEQUENCE: 0.4,
    Kind.SYMPTOM: 0.5,
}  # fmt: skip
_ADVICE: Final = {
    Action.RESTART: "restart", Action.EXCLUDE_NODE: "exclude the node", Action.STOP: "stop, and correct it first",
}  # fmt: skip
_OF_OTHERS: Final = (Kind.COLLECTIVE, Kind.STALLED, Kind.CONSEQUENCE)
_WAITS_FOR_OTHERS: Final = re.compile(
    r"distributed_c10d|_engine_run_backward|all_?reduce|all_?gather|reduce_scatter|broadcast|barrier|wait_tensor|/distributed/"
)
"""Frames, in the stack of a hung rank that its monitor reports, of a collective or of what waits for one."""
_OF_ALL_REPORTS: Final = re.compile(rf"\bhang: (?P<named>rank \d+ (?:\(|has not joined))|\b{ABSTAINS}")
_OF_A_GPU: Final = frozenset({"cuda_error", "gpu_lost", "ecc_error", "nccl_error"})
_GPU_IS_BROKEN: Final = frozenset({"gpu_lost", "ecc_error"})
_BEFORE: Final = 3_600.0
_AFTER: Final = 600.0
"""Seconds from a record of the kernel to a failure of the job, and the reverse, that may belong together."""
_AT_ONCE: Final = 300.0
"""The same where the failure does not say what the record says."""
_SAME_DAY: Final = 54_000.0
"""The same where nothing else has failed: the record may be in another time zone."""
_ZONES: Final = 1_800.0
_BY_TWO_CLOCKS: Final = 60.0
"""Seconds from a record to what the job says of it, apart from a difference of whole half hours."""
_YEAR: Final = 366 * 86_400.0
_AGREES: Final[Mapping[str, tuple[frozenset[str], re.Pattern[str]]]] = {
    "host_out_of_memory": (
        frozenset({"operator_kill"}),
        re.compile(
            r"DataLoader worker \(.*(?:killed by signal: Killed|exited unexpectedly)"
            r"|process pool was terminated abruptly"
        ),
    ),
    "segmentation_fault": (
        frozenset({"segmentation_fault"}), re.compile(r"DataLoader worker \(.*killed by signal: Segmentation fault")
    ),
    **dict.fromkeys(
        ("gpu_lost", "ecc_error", "cuda_error"),
        (_OF_A_GPU, re.compile(r"\bNVML_SUCCESS == |INTERNAL ASSERT FAILED|CUDA driver error: (?!out of memory)")),
    ),
}  # fmt: skip
"""What a job says of itself when the kernel has recorded this: classes, and texts that say how a process has ended."""
_OF_A_STRANGER: Final = re.compile(r"\bname='?(?!'?<unknown>|python|pt_)|[Pp]rocess \d+ \((?!python|pt_)")
"""A record of a program that is not known to be one of training."""
_OF_CUDA: Final = re.compile(r"(?i)unhandled ?cuda ?error")
_SIGNALLED_LAUNCHER: Final = re.compile("death signal, shutting down|got signal: |has received signal")
"""What a launcher says that a signal ends."""


@dataclass(frozen=True)
class _Culprit:
    """The finding that decides, and the rank that it is about."""

    finding: Finding
    rank: int | None
    failure: str
    confidence: float
    everywhere: bool = False


def decide(findings: Iterable[Finding], seen: Seen) -> Verdict:
    """Return the verdict.

    Args:
        findings: what the lines say of failures.
        seen: what they say apart from that.
    """
    found = _with_ranks(findings, seen)
    found = _of_last_cycle(found)
    notes = [each for each in found if each.kind is Kind.NOTE]
    failures = _without_records_of_others([each for each in found if each.kind is not Kind.NOTE], seen)
    failures = _without_text_of_survivors(failures)
    if not failures:  # the log of a rank that others have told of a timeout
        told = [each for each in notes if "timeout" in each.line.text or "timed out" in each.line.text]
        failures = [replace(each, kind=Kind.STALLED) for each in told]
    if not failures:
        return _without_failure(seen)
    culprit = _Cascade(failures, notes, seen).culprit()
    return _verdict(culprit, failures, seen)


def _with_ranks(findings: Iterable[Finding], seen: Seen) -> list[Finding]:
    """Name the rank of what is said of a local rank, or of a process."""
    found, by_pid = list[Finding](), dict[int, int]()
    for each in findings:
        origin = each.line.origin
        if origin.rank is None and origin.local is not None:
            rank = seen.ranks_of_locals.get(origin.local, origin.local)
            found.append(replace(each, line=replace(each.line, origin=replace(origin, rank=rank))))
        else:
            found.append(each)
        if each.pid is not None and (known := found[-1].line.origin.rank) is not None:
            by_pid.setdefault(each.pid, known)
    return [
        replace(each, line=replace(each.line, origin=replace(each.line.origin, rank=by_pid[each.pid])))
        if each.line.origin.rank is None and each.pid in by_pid
        else each
        for each in found
    ]


def _of_last_cycle(found: Sequence[Finding]) -> list[Finding]:
    cycles = [
        each.line.origin.cycle for each in found if each.line.origin.cycle is not None and each.kind is not Kind.NOTE
    ]
    last = max(cycles, default=None)
    return [each for each in found if each.line.origin.cycle in (None, last)] if last is not None else list(found)


def _without_records_of_others(failures: Sequence[Finding], seen: Seen) -> list[Finding]:
    """Leave out what the kernel has recorded of other programs, or long before this job has failed.

    A record is of this job if it names a process of the job, or if the job says the like at about the same time. One
    that a GPU is broken counts, too, if something has failed right after it. Where the clocks are of two time zones,
    the last record of a file counts, if the job says the same thing at the same minute of an hour, or of half an hour.
    """
    of_job = [each for each in failures if not _is_record(each)]
    own = [each for each in of_job if each.kind in (Kind.CAUSE, Kind.EXCEPTION)]
    pids = {each.pid for each in of_job} - {None}
    last = dict[tuple[str, str], float]()
    for each in failures:
        if _is_record(each) and (time := each.line.origin.time) is not None:
            key = each.line.file, each.failure
            last[key] = max(time, last.get(key, time))

    def is_of_job(each: Finding) -> bool:
        origin = each.line.origin
        if not _is_record(each) or origin.rank is not None or each.pid in pids:
            return True
        is_broken = each.failure in _GPU_IS_BROKEN
        times = [other.line.origin.time for other in of_job]
        times += [time for file, time in seen.last.items() if file != each.line.file]
        apart = [_apart(origin.time, time) for time in times if time is not None and origin.time is not None]
        alike = _AGREES.get(each.failure)
        agreeing = [other for other in of_job if alike is not None and _says(other, alike)]
        before, after = (_BEFORE, _AFTER) if own else (_SAME_DAY, _SAME_DAY)
        is_near = not apart or any(-before <= seconds <= after for seconds in apart)
        if agreeing and apart and not is_near:
            is_last = origin.time == last.get((each.line.file, each.failure))
            return is_last and any(_is_by_another_clock(each, other) for other in agreeing)
        is_of_kernel = each.pid is not None or "invoked" in each.line.text or each.failure in _OF_A_GPU
        if is_of_kernel and not of_job and seen.finished:
            return False
        if not is_near or agreeing or alike is None or not own or not is_of_kernel:
            return is_near
        return is_broken and any(abs(seconds) <= _AT_ONCE for seconds in apart)

    return [each for each in failures if is_of_job(each)]


def _is_record(finding: Finding) -> bool:
    """Whether the kernel has recorded it, or the scheduler's daemon; the driver records errors of programs, too."""
    return finding.kind is Kind.MACHINE or (finding.kind is Kind.SYMPTOM and finding.failure in _AGREES)


def _says(failure: Finding, alike: tuple[frozenset[str], re.Pattern[str]]) -> bool:
    """Whether a failure is of one of these classes, or has one of these texts."""
    classes, text = alike
    return failure.failure in classes or text.search(failure.line.text) is not None


def _apart(one: float, other: float) -> float:
    """Return the seconds from a time of a year to another one, which may be that of the next year, or of the last."""
    return (one - other + _YEAR / 2) % _YEAR - _YEAR / 2


def _is_by_another_clock(record: Finding, failure: Finding) -> bool:
    """Whether a failure that agrees with a record is at its time but for the difference of two time zones."""
    one, other = record.line.origin.time, failure.line.origin.time
    if one is None or other is None or record.failure == "segmentation_fault":
        return False
    if (failure.pid is not None and record.pid is not None) or _OF_A_STRANGER.search(record.line.text):
        return False  # each names its process, and not the same one
    if failure.kind is Kind.SCHEDULER or "device-side assert" in failure.line.text:
        return False  # it was another signal, or the program's mistake
    remainder = (_apart(one, other) + _ZONES / 2) % _ZONES - _ZONES / 2
    return abs(_apart(one, other)) <= _SAME_DAY and abs(remainder) <= _BY_TWO_CLOCKS


def _without_text_of_survivors(failures: Sequence[Finding]) -> list[Finding]:
    """Leave out what a rank has merely printed of a failure, while a launcher reports that others have ended.

    A launcher does not report the ranks that it has ended itself. The text of one of them, or of one that has lost
    another rank since, is no failure: a sample, an allocation that it has tried again, what it does on a preemption.
    Where those that have ended have lost another rank, it may be this one, and its text says why.
    """
    ends = [each for each in failures if each.kind is Kind.ENDED and _rank(each) is not None]
    of_launcher = [each for each in ends if each.line.number == 0]
    ended, reported = {_rank(each) for each in ends}, {_rank(each) for each in of_launcher}
    waited = {_rank(each) for each in failures if each.kind in (Kind.STALLED, Kind.CONSEQUENCE)}

    def is_of_survivor(each: Finding) -> bool:
        rank = _rank(each)
        if each.line.number == 0 or (rank is None and each.failure != "hang"):
            return False
        if each.kind is Kind.SCHEDULER:
            return bool(reported - waited) and rank not in reported
        if each.failure == "hang" and each.kind is Kind.CAUSE:  # launchers and monitors say it with a level
            is_printed = each.line.text.startswith("hang: ") and each.line.origin.level not in ("ERROR", "CRITICAL")
            return bool(of_launcher) and is_printed
        is_text = each.kind is Kind.CAUSE and not each.is_raised
        return is_text and bool(ended - waited) and (rank not in ended or rank in waited)

    return [each for each in failures if not ends or not is_of_survivor(each)]


class _Cascade:
    """The findings of a cycle, of which one is the cause."""

    def __init__(self, failures: Sequence[Finding], notes: Sequence[Finding], seen: Seen) -> None:
        self._failures, self._notes, self._hosts = failures, notes, seen.hosts()
        self._offsets, self._streams = seen.clock_offsets(), seen.streams
        self._by_kind: dict[Kind, list[Finding]] = defaultdict(list)
        for each in failures:
            self._by_kind[each.kind].append(each)

    def culprit(self) -> _Culprit:
        """Return the cause."""
        own = self._own()
        ended = [each for each in self._by_kind[Kind.ENDED] if each.failure != "unknown"]
        for found in (
            self._of_machine(), self._from_outside(own), self._of_rank(own, ended), self._explained(), self._silent(),
        ):  # fmt: skip
            if found is not None:
                return found
        if collective := self._by_kind[Kind.COLLECTIVE]:
            ranks = {_rank(each) for each in collective}
            ranks -= {None} if len(self._hosts) == 1 else set()
            return self._named(self._first(collective), ranks.pop() if len(ranks) == 1 else None)
        if stalled := self._by_kind[Kind.STALLED]:
            return self._stalled(stalled)
        if lost := self._by_kind[Kind.CONSEQUENCE]:
            return self._named(self._first(lost), self._only_other(lost))
        others = [each for each in self._failures if each.kind not in (Kind.SCHEDULER, Kind.SYMPTOM)]
        return self._named(self._first(others or self._failures))

    def _named(self, finding: Finding, rank: int | None = None, failure: str = "", *, factor: float = 1.0) -> _Culprit:
        rank = _rank(finding) if rank is None and finding.kind not in _OF_OTHERS else rank
        confidence = _CONFIDENCE[finding.kind] * factor * (0.5 if finding.is_survived else 1.0)
        return _Culprit(finding, rank, failure or finding.failure, round(confidence, 2))

    def _own(self) -> list[Finding]:
        """Return what ranks say of their own failure, without what follows on the same rank.

        It follows a lost connection, or a signal that the rank says to have received.
        """
        before: dict[int | None, Finding] = {}
        symptoms = (each for each in self._failures if each.kind in (Kind.SCHEDULER, Kind.STALLED, Kind.CONSEQUENCE))
        for each in sorted(symptoms, key=lambda finding: finding.order):
            before.setdefault(_rank(each), each)
        own = [*self._by_kind[Kind.CAUSE], *self._by_kind[Kind.EXCEPTION]]

        def follows(each: Finding) -> bool:
            rank = _rank(each)
            return rank is not None and rank in before and self._is_before(before[rank], each)

        return [each for each in own if not follows(each)]

    def _of_machine(self) -> _Culprit | None:
        if not (recorded := self._by_kind[Kind.MACHINE]):
            return None
        first = self._first(recorded)
        alike = [each for each in recorded if each.failure == first.failure]
        rank = next((_rank(each) for each in alike if _rank(each) is not None), None)
        host = next((each.line.origin.host for each in alike if each.line.origin.host), None)
        if host and first.line.origin.host is None:
            first = replace(first, line=replace(first.line, origin=replace(first.line.origin, host=host)))
        if rank is None:
            alike_of_job = _AGREES.get(first.failure)
            told = [each for each in self._failures if each.kind in (Kind.CAUSE, Kind.EXCEPTION, Kind.ENDED)]
            related = {_rank(each) for each in told if alike_of_job and _says(each, alike_of_job)} - {None}
            rank = related.pop() if len(related) == 1 else None
        return self._named(first, rank)

    def _from_outside(self, own: Sequence[Finding]) -> _Culprit | None:
        """Return what ended the job from outside, None where it had failed before."""
        if not (told := self._by_kind[Kind.SCHEDULER]):
            return None
        exact = [each for each in told if each.failure != "operator_kill"]
        first = self._first(exact or [each for each in told if "CANCELLED" in each.line.text] or told)
        is_cancelled = "CANCELLED" in first.line.text
        for each in self._failures:
            is_own = each.kind is Kind.CAUSE and each in own
            if is_own and not any(self._is_before(end, each, unknown=False) for end in told):
                return None
            has_failed = each in own or each.kind in (Kind.ENDED, Kind.STALLED)
            has_lost = each.kind is Kind.CONSEQUENCE and not exact
            if (has_failed or has_lost) and all(self._has_failed_before(each, end) for end in told):
                return None
        ranks = {_rank(each) for each in told if each.failure == first.failure} - {None}
        is_to_launcher = first.line.number == 0 and _rank(first) is None  # a rank prints that it was sent it, too
        is_of_job = is_cancelled or is_to_launcher or len(ranks) != 1
        return _Culprit(first, None if is_of_job else ranks.pop(), first.failure, _CONFIDENCE[Kind.SCHEDULER])

    def _has_failed_before(self, failure: Finding, end: Finding) -> bool:
        """Whether a failure is earlier than an end from outside.

        Launchers end the other ranks when one has failed, and a rank may print that it was sent a signal: where the
        order is not known, only what the scheduler says goes before a failure. A lost connection must be the earlier.
        The exit code of the rank that says so is no failure before it; torchrun reports one after it has ended the
        others.
        """
        if failure.failure == "unknown" and _rank(failure) is not None and _rank(failure) == _rank(end):
            return False
        is_printed = end.failure == "operator_kill" and "CANCELLED" not in end.line.text
        if is_printed and failure.is_root and not _SIGNALLED_LAUNCHER.search(end.line.text):
            return True
        return self._is_before(failure, end, unknown=is_printed and failure.kind is not Kind.CONSEQUENCE)

    def _of_rank(self, own: Sequence[Finding], ended: Sequence[Finding]) -> _Culprit | None:
        """Return the first rank that has failed by itself."""
        root = self._root()
        of_root = [each for each in own if root is not None and _rank(each) == _rank(root) and _rank(root) is not None]
        if root is not None and root in ended and not of_root:
            return self._of_signal(root, own)
        candidates = of_root or own
        if not candidates:
            return self._of_signal(self._first(ended), own) if ended else None
        first = self._first(candidates)
        if first.failure == "hang":
            return self._hung(first, [each for each in own if each.failure == "hang"])
        exact = [each for each in own if _rank(each) == _rank(first) and each.kind is Kind.CAUSE]
        if first.kind is Kind.EXCEPTION and exact and self._is_near(first, exact[0]):
            first = exact[0]
        alike = {_rank(each) for each in own if (each.failure, each.error_type) == (first.failure, first.error_type)}
        if None not in alike and len(alike) > 1 and alike == set(self._hosts):
            return replace(self._named(first), rank=None, everywhere=True)
        named = {_rank(each) for each in self._failures if each.failure == first.failure} - {None}
        if _rank(first) is None and len(named) == 1:
            return self._named(first, named.pop())
        rivals = {_rank(each) for each in own} - {_rank(first)}
        return self._named(first, factor=0.8 if rivals and not of_root else 1.0)

    def _hung(self, first: Finding, hung: Sequence[Finding]) -> _Culprit:
        """Of several ranks that rank monitors have ended, the culprit is the only one that did not wait for others.

        The line that a wrapped call writes on a hang is a verdict already, from the reports of all ranks.
        """
        given = [(each, found) for each in hung if (found := _OF_ALL_REPORTS.search(each.line.text))]
        if given:
            last, found = given[-1]
            return self._named(last) if found["named"] else replace(self._named(last), rank=None)
        ranks = {_rank(each) for each in hung}
        alone = [each for each in hung if not _WAITS_FOR_OTHERS.search(each.line.text)]
        is_alone = alone or len(self._hosts) == 1 or " behind rank " in first.line.text
        if len(ranks) == 1 and is_alone:  # else others hang alike, whose reports the end of the cycle has overtaken
            return self._named(first)
        if len({_rank(each) for each in alone}) == 1:
            return self._named(alone[0], factor=0.9)
        return replace(self._named(first, factor=0.6), rank=None, everywhere=ranks == set(self._hosts))

    def _is_near(self, one: Finding, other: Finding) -> bool:
        """Whether two lines are of one report of a rank."""
        apart = abs(one.line.number - other.line.number)
        return one.line.file == other.line.file and apart < 40 * self._streams.get(one.line.file, 1)

    def _of_signal(self, finding: Finding, own: Sequence[Finding]) -> _Culprit:
        """A kill may have been the kernel's, or anybody's: the logs do not say."""
        return self._named(finding, factor=0.6 if finding.failure == "operator_kill" or own else 1.1)

    def _root(self) -> Finding | None:
        """Return the first end of a process that a launcher has reported."""
        ends = [each for each in self._by_kind[Kind.ENDED] if _rank(each) is not None]
        return self._first([each for each in ends if each.is_root] or ends) if ends else None

    def _explained(self) -> _Culprit | None:
        """Return what explains that a rank has ended without a word.

        It is an error of a program that the driver has recorded of a process of the job, or of which NCCL says the
        like; or, while no rank speaks of others, a worker of a data loader that was sent a signal.
        """
        symptoms = self._by_kind[Kind.SYMPTOM]
        pids = {each.pid for each in self._failures if not _is_record(each)} - {None}
        like_it = [each for each in self._by_kind[Kind.COLLECTIVE] if _OF_CUDA.search(each.line.text)]
        recorded = [each for each in symptoms if _is_record(each) and (each.pid in pids or like_it)]
        if recorded:
            ranks = {_rank(each) for each in like_it}
            return self._named(self._first(recorded), ranks.pop() if len(ranks) == 1 else None, factor=1.5)
        workers = [each for each in symptoms if each.failure == "data_loader"]
        speaks_of_others = any(each.kind in _OF_OTHERS for each in self._failures)
        return self._named(self._first(workers)) if workers and not speaks_of_others else None

    def _silent(self) -> _Culprit | None:
        """Return a rank that has ended without saying anything, None where it may have spoken of others."""
        spoken = [each for each in self._failures if each.kind in _OF_OTHERS]
        ranks = {_rank(each) for each in spoken}
        if None in ranks:
            return None
        ends = [each for each in self._by_kind[Kind.ENDED] if _rank(each) is not None and _rank(each) not in ranks]
        return self._named(self._first(ends), factor=0.5) if ends else None

    def _stalled(self, stalled: Sequence[Finding]) -> _Culprit:
        of_nccl = [each for each in stalled if each.failure == "nccl_timeout"]
        first = self._first(of_nccl or stalled)
        behind = self._behind(stalled)
        if len(behind) == 1:
            return self._named(first, behind.pop(), factor=1.2)
        rank = self._only_other(stalled)
        if rank is None:  # those whose connection was closed by one that had timed out have waited, too
            rank = self._only_other([*stalled, *self._by_kind[Kind.CONSEQUENCE]])
        return self._named(first, rank)

    def _behind(self, stalled: Sequence[Finding]) -> set[int]:
        """Return the ranks that have not begun the collective of a process group for which others of it waited.

        Numbers of different groups say nothing about each other. A rank that is behind in one group and waited in
        another one is no culprit. Lines that do not name their group are of the only one that others name.
        """
        told = [each for each in (*self._notes, *stalled) if each.work is not None or each.timed_out is not None]
        named = {each.group for each in told} - {""}
        only = next(iter(named)) if len(named) == 1 else ""
        begun, waited = defaultdict[str, dict[int, int]](dict), defaultdict[str, dict[int, int]](dict)
        reached = dict[str, int]()
        for each in told:
            group, rank = each.group or only, _rank(each)
            if each.timed_out is not None:
                reached[group] = max(each.timed_out, reached.get(group, each.timed_out))
            if rank is not None and each.work is not None:
                begun[group][rank] = min(each.work, begun[group].get(rank, each.work))
            elif rank is not None and each.timed_out is not None:
                waited[group].setdefault(rank, each.timed_out)
        behind = dict[str, int]()
        for group, numbers in begun.items():
            least = reached.get(group, reached.get(""))
            if (lowest := _lowest(numbers)) is not None and (least is None or numbers[lowest] < least):
                behind[group] = lowest
        if {rank for numbers in waited.values() for rank in numbers} == set(self._hosts):
            comparable = waited.keys() - begun.keys() - ({""} if named else set())
            behind |= {group: low for group in comparable if (low := _lowest(waited[group])) is not None}
        waits = {rank for group, numbers in waited.items() for rank in numbers if behind.get(group) != rank}
        return {*behind.values()} - waits

    def _only_other(self, told: Iterable[Finding]) -> int | None:
        """Return the one rank that does not say what all others say."""
        others = set(self._hosts) - {_rank(each) for each in told}
        return others.pop() if len(others) == 1 and len(self._hosts) > 1 else None

    def _first(self, findings: Sequence[Finding]) -> Finding:
        first = findings[0]
        for each in findings[1:]:
            if self._is_before(each, first):
                first = each
        return first

    def _is_before(self, one: Finding, other: Finding, *, unknown: bool | None = None) -> bool:
        """Whether a finding is earlier than another one.

        Args:
            one: the finding.
            other: the other one.
            unknown: the answer where lines and clocks do not say it; None: by kind, then by the order of reading.
        """
        if one.line.file == other.line.file:
            return one.order < other.order
        mine, theirs = self._time(one), self._time(other)
        if mine is not None and theirs is not None and mine != theirs:
            return mine < theirs
        return (one.kind, one.order) < (other.kind, other.order) if unknown is None else unknown

    def _time(self, finding: Finding) -> float | None:
        origin = finding.line.origin
        return None if origin.time is None else origin.time - self._offsets.get(origin.host or "", 0.0)


def _lowest(numbers: Mapping[int, int]) -> int | None:
    """Return the rank whose number is lower than that of all others, None where there is none."""
    lowest = [rank for rank, number in numbers.items() if number == min(numbers.values())]
    return lowest[0] if len(lowest) == 1 and len(numbers) > 1 else None


def _rank(finding: Finding) -> int | None:
    return finding.line.origin.rank


def _without_failure(seen: Seen) -> Verdict:
    if not seen.lines:
        sentence = "unknown: the logs have no lines"
        return Verdict("unknown", None, None, None, Action.RESTART, None, 0.0, (), sentence)
    sentence = f"clean: no failure was found in {seen.lines} lines"
    return Verdict("clean", None, None, None, Action.NONE, None, 0.9, (), sentence)


def _verdict(culprit: _Culprit, failures: Sequence[Finding], seen: Seen) -> Verdict:
    finding, rank = culprit.finding, culprit.rank
    entry = BY_NAME[culprit.failure]
    action = finding.action or entry.action
    is_about_itself = finding.kind not in _OF_OTHERS
    has_lost_another = finding.kind in (Kind.STALLED, Kind.CONSEQUENCE)  # and may be on another host
    host = finding.line.origin.host if is_about_itself or (rank is None and not has_lost_another) else None
    if rank is None and _rank(finding) is not None and len({*seen.hosts().values()} - {None}) > 1:
        host = None  # the finding is of one of several ranks that may be the culprit
    if host is None and rank is not None:
        host = seen.hosts().get(rank) or next(
            (f.line.origin.host for f in failures if _rank(f) == rank and f.line.origin.host), None
        )
    others = [each for each in failures if each is not finding]
    of_rank = [each for each in others if rank is not None and _rank(each) == rank and each.kind < Kind.COLLECTIVE]
    rest = [each for each in others if each not in of_rank]
    evidence = tuple(dict.fromkeys(each.evidence for each in [finding, *of_rank, *rest]))[:MAX_EVIDENCE]
    affected = len({_rank(each) for each in rest} - {rank, None})
    where = f" on {host}" if host else ""
    who = (
        "every rank"
        if culprit.everywhere
        else f"rank {rank}{where}"
        if rank is not None
        else f"a rank{where}"
        if is_about_itself and finding.kind is not Kind.SCHEDULER
        else "the job"
    )
    detail = shown(finding.line.text)
    detail = detail if len(detail) <= LONGEST_DETAIL else f"{detail[: LONGEST_DETAIL - 3]}..."
    follow = (
        f"; {affected} other rank{'s' if affected > 1 else ''} failed in consequence"
        if affected and not culprit.everywhere
        else ""
    )
    confidence = min(0.99, culprit.confidence)
    return Verdict(
        culprit.failure, finding.error_type, rank, host, action,
        host if action is Action.EXCLUDE_NODE else None, round(confidence, 2), evidence,
        f"{who} {entry.sentence}: {detail}{follow}; {_ADVICE[action]}",
    )  # fmt: skip
