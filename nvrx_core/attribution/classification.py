"""What the lines of a log say: findings, each with the rank, the host and the time that it is about. Pure.

A traceback counts by its last line: the frames quote source code. An exception of which no rule knows the text is
`user_exception`. A failure that a log reports and the job goes on after, such as a retried upload, is no finding.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from nvrx_core.attribution.origin import GLOG, Line, seconds_of_year
from nvrx_core.attribution.rules import CLASSES, IGNORED_EXCEPTIONS, Kind, Rule
from nvrx_core.attribution.verdict import Action, Evidence, shown

__all__ = ["WITHOUT_DIGITS", "Classifier", "Finding", "Seen", "ending"]

MAX_FINDINGS: Final = 64
"""Findings that are kept of a rank in a file: the first ones."""
MAX_SEARCHED: Final = 1_000
"""Characters of a line in which rules are searched: the time of a pattern grows faster than the line."""
MAX_STREAMS: Final = 1 << 16
MAX_TRACEBACK: Final = 400
"""Lines of a traceback."""
MAX_STEPS: Final = 64
MAX_KINDS_OF_STEPS: Final = 256
AFTER: Final = 60
"""Lines of each rank, after one that says something, that are looked at."""
LONGEST_AFTER: Final = 1 << 13
MAX_AFTER: Final = 1 << 17
"""All lines together that are looked at since some rank may have survived a failure."""
WITHOUT_DIGITS: Final = str.maketrans("", "", "0123456789")
RECOVERED_AFTER: Final = 3
"""Steps that a rank must have made after a failure that it has logged, for that to count as handled."""
SURVIVED_AFTER: Final = 20
"""The same of any text of a failure: a job does not go on for so long after one that ends it."""
ENDS_WITHIN: Final = 3
"""Steps after which an exit code that a text names was not that of the job."""
LONGEST_DUMP: Final = 80
"""Lines in which a failed rank may number what is none of its steps."""
NOTICED_WITHIN: Final = 200
"""Lines that a file may have yet after the end of a process: its launcher ends the others."""

_TRACEBACK: Final = re.compile(r"Traceback \(most recent call last\):?\s*$")
_RAISED: Final = re.compile(
    r"(?:(?:[A-Za-z_]\w*\.)*(?P<type>_*[A-Z]\w*)|(?:[A-Za-z_]\w*\.)+(?P<small>[a-z]\w*))(?:: (?P<message>.*)|:?$)"
)
_OF_A_GROUP: Final = re.compile(r"\s*(?:[+|] |\+-)")
"""What is before each line of the tracebacks of an exception group."""
_IN_ORDER: Final = re.compile(r"SystemExit(?:: (?:0|None))?$")
"""The end of a process that has not failed."""
_NAMED_ERROR: Final = re.compile(
    r"(?:^|(?<=\s)|(?<=[\[(:]))(?:[A-Za-z_]\w*\.)*(?P<type>[A-Z]\w*(?:Error|Exception|Interrupt"
    r"|Failure|InjectedFault))(?:: (?P<message>.*)|\s*$)"
)
_OF_ERRORS: Final = ("Error", "Exception", "Interrupt", "Failure", "InjectedFault")
_IN_PROCESS: Final = re.compile(
    r"\b(?:BASE_)?EXCEPTION(?: \([^)]*\))? on rank (?P<rank>\d+) \(initial rank \d+,"
    r" (?P<host>[\w.-]+) pid \d+\): (?P<message>.*)"
)
_CHAINED: Final = ("During handling of the above exception", "The above exception was the direct cause")
_IGNORED: Final = "Exception ignored "
"""What Python writes before an exception in a finalizer or at exit, which ends nothing."""
_FRAME: Final = re.compile(r"\s|[│╭╰┃|]|\^|\.\.\. \d+ ")
_STEP: Final = re.compile(r"(?i)\b(?:global_?)?(?:step|iter(?:ation)?|batch|epoch|it)\b[\s=:#\[('\"]{0,4}(?P<step>\d+)")
_OF_A_STEP: Final = re.compile(
    r"(?i)loss|\blr\b|learning.rate|grad|it/s|s/it|/s\b|\d ?m?s\b|elapsed|\beta\b|\bacc|perplexity|ppl"
)
"""What the line of a training step says, too; the dump of a failed rank may number its batches."""
_LEADING: Final = re.compile(r"\{|\W*$|(?:\W*\b(?:train|valid|eval|test|epoch)[a-z]*\b){1,3}\W*$", re.IGNORECASE)
"""What is before the word `step`, or the like, in lines that are of steps only."""
_FINISHED: Final = re.compile(
    r"(?i)\b(?:training|train|job|run|all workers)\b.{0,40}\b(?:finished"
    r"|completed?|done|succeeded|successful|exit(?:ed)? (?:with )?(?:exit )?(?:code|status)[ :=]{1,2}0\b)"
    r"|\bfinished (?:after|training)|ends with code 0\b"
    r"|max_(?:epochs|steps)=.* reached|'train_runtime'"
)
_CYCLE: Final = re.compile(r"\[ft_launcher[^\]]*\] (?:INFO )?cycle (?P<cycle>\d+): ")
_RESTARTED: Final = re.compile(r"will restart worker group|Restarting worker group|restart(?:ing)? the worker group")
_HANG: Final = "hang"
"""The name of the class."""
_GOES_ON: Final = re.compile(
    r"rank (?P<rank>\d+) (?:\(pid \d+\) )?(?:goes on|has gone on|has exited in order), and is not ended"
)
"""What a monitor, and its launcher, say of a rank that was about to be ended as hung."""
_VERDICT: Final = "hang: "
"""Before the sentence of the verdict on a hang, which all launchers of a job write."""
_QUIET: Final = frozenset({GLOG, "INFO", "DEBUG", "WARNING", "WARN", "TRACE", "NOTICE"})
_LOUD: Final = frozenset({"WARNING", "WARN", "ERROR", "CRITICAL"})
_OF_AN_ERROR: Final = frozenset({"ERROR", "CRITICAL", "FATAL"})
_FATAL: Final = ("Fatal", "FATAL", "terminate called")
_VOID_LATER: Final = frozenset({Kind.CAUSE, Kind.EXCEPTION, Kind.COLLECTIVE, Kind.STALLED, Kind.CONSEQUENCE})
"""What a rank says of a failure that it may have survived."""
_REPORTS: Final = frozenset({Kind.MACHINE, Kind.SCHEDULER, Kind.ENDED})
"""What the kernel, the scheduler or a launcher says of the job."""
_SAYS_NOT_WHY: Final = frozenset({Kind.ENDED, Kind.SYMPTOM, Kind.NOTE})
_SUMMARY_FIELD: Final = re.compile(r"\s+(?P<name>time|host|rank|exitcode)\s+: (?P<value>.*)")
_SUMMARY_RANK: Final = re.compile(r"(?P<rank>\d+) \(local_rank: (?P<local>\d+)\)")
_MENTIONED_RANK: Final = re.compile(
    r"\[(?:(?!PG (?:ID )?[1-9])[^\]]{0,120} )?Rank (?P<rank>\d+)\]"
    r"|(?:^|Error: )Rank (?P<rank2>\d+): |\bon rank (?P<rank3>\d+)\b"
)
_HANDLED: Final = re.compile(
    r"(?i)\b(?:retry|retrying|retries|ignored|ignoring|skipping|skipped|falling back|fallback|will"
    r" continue|continuing|Exception ignored)\b|\busing \S+ instead\b"
)
_HANDLED_REPORT: Final = re.compile(
    r"(?i)[,;:] (?:retry(?:ing)?|ignor(?:ed|ing)|falling back|will continue|continuing|skipping$)\b(?![/'\"])"
)
"""The same of what a launcher, or a scheduler, says: a command that it quotes may have such words, too."""
_OF_A_SERVICE: Final = re.compile(r"(?:requests|urllib3|aiohttp|httpx|httpcore|botocore|huggingface_hub)\.")
"""The exception of a client of some service: a connection that it has lost was to no rank."""
_KEY: Final = re.compile(r"KeyError: ['\"]")
"""An exception whose text is a key, whatever that says."""
_SIGNALS: Final = {
    "SIGKILL": 9, "SIGSEGV": 11, "SIGBUS": 7, "SIGILL": 4, "SIGFPE": 8, "SIGABRT": 6, "SIGTERM": 15, "SIGINT": 2,
    "SIGHUP": 1, "Aborted": 6,
}  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """What a line says of a failure.

    Attributes:
        failure: the name of the class.
        kind: how much it says.
        line: where; its origin has rank, host and time, by the line's text where that names them.
        order: the number of the finding, in the order in which the lines were read.
        error_type: the name of the exception, None for none.
        action: instead of that of the class.
        pid: the process that the line is about.
        is_root: torchrun calls it the first observed failure.
        group: the process group of NCCL that the numbers are of, "" for none.
        work: the number of the last collective that the rank has enqueued.
        timed_out: the number of the collective that has timed out.
        is_raised: the line is an exception, or has the level of an error; else anybody may have printed its text.
        is_survived: steps were made after it, which need not be the rank's.
    """

    failure: str
    kind: Kind
    line: Line
    order: int
    error_type: str | None = None
    action: Action | None = None
    pid: int | None = None
    is_root: bool = False
    group: str = ""
    work: int | None = None
    timed_out: int | None = None
    is_raised: bool = False
    is_survived: bool = False

    @property
    def evidence(self) -> Evidence:
        """The line, as it may be shown."""
        return Evidence(self.line.file, self.line.number, shown(self.line.whole))


def ending(code: int) -> tuple[str, Kind, Action | None]:
    """Return what an exit code says: class, kind and action; a negative one is a signal, as is one above 128."""
    signal = -code if code < 0 else code - 128 if 128 < code < 160 else 0
    if signal in {4, 7, 8, 11}:
        return "segmentation_fault", Kind.ENDED, None
    if signal == 9:
        return "operator_kill", Kind.ENDED, Action.RESTART
    if signal in {1, 2, 15}:
        return "operator_kill", Kind.SCHEDULER, Action.RESTART
    return "unknown", Kind.ENDED, None


@dataclass
class Seen:
    """What all lines together say, apart from the findings.

    Attributes:
        ranks: those that have written a line, with their host, None where it is not known.
        lines: how many lines there were.
        ranks_of_locals: the rank of a local rank, where lines have both; None where it is that of several.
        locals: the local ranks that have written a line without a rank, with their host.
        steps: by host, when it has reported a step.
        last: by file, the time of its latest line.
        streams: by file, how many ranks have written into it.
        finished: files of which a line says that the job has, and none after it reports a step.
    """

    ranks: dict[int, str | None] = field(default_factory=dict)
    lines: int = 0
    ranks_of_locals: dict[int, int | None] = field(default_factory=dict)
    locals: dict[int, str | None] = field(default_factory=dict)
    steps: dict[str, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    last: dict[str, float] = field(default_factory=dict)
    streams: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    finished: set[str] = field(default_factory=set)

    def add(self, rank: int | None, local: int | None, host: str | None) -> None:
        """Take where a line is from."""
        known, number = (self.locals, local) if rank is None else (self.ranks, rank)
        if number is not None and known.get(number) is None and len(known) < MAX_STREAMS:
            known[number] = host
        if rank is not None and local is not None and self.ranks_of_locals.setdefault(local, rank) != rank:
            self.ranks_of_locals[local] = None

    def hosts(self) -> Mapping[int, str | None]:
        """Return the host of each rank; a local rank of which no line has the rank is taken for one."""
        of_locals = ((self.ranks_of_locals.get(local, local), host) for local, host in self.locals.items())
        found = {rank: host for rank, host in of_locals if rank is not None}
        return {**found, **{rank: host or found.get(rank) for rank, host in self.ranks.items()}}

    def clock_offsets(self) -> Mapping[str, float]:
        """Return by how much each host's clock is ahead of the first one's.

        A step ends on all hosts at about the same time, so that the median over the steps which two hosts report is
        the difference of their clocks. Hosts with fewer than three steps in common with the first have none.
        """
        hosts = list(self.steps)
        offsets = dict[str, float]()
        for host in hosts[1:]:
            mine, reference = self.steps[host], self.steps[hosts[0]]
            differences = [mine[step] - reference[step] for step in mine.keys() & reference.keys()]
            if len(differences) >= 3:
                offsets[host] = statistics.median(differences)
        return offsets


@dataclass
class _Stream:
    """The lines of one rank in one file, or those whose rank is not known.

    Attributes:
        is_of_no_rank: the lines have no prefix, and may be of any.
        traceback: the first line of the last traceback.
        in_traceback: lines since the last traceback began, 0 outside of one.
        in_message: the lines before this one are the end of a traceback, and what its message has in further lines.
        chained: the next exception belongs to the failure before it.
        ignored: whether the next exception is one that Python has ignored; None: the one before this line was.
        was_logged: the last traceback follows a log message, as by `logging.exception`.
        was_retried: that message says that it is tried again, or is not needed.
        last_level: the level of the last line that was none of a traceback.
        last_text: its text.
        findings: of the stream.
        survived: exceptions after which steps were made, if by the rank: lines of several ranks may have no prefix, and
            not all that is numbered is a step.
        steps: that lines have reported since the last failure, each by all its numbers.
        is_unsure: some of those lines had not been seen before it, and need not be of steps.
        time: the last time.
        last: the number of the last line.
        in_group: the lines are of the tracebacks of an exception group.
        summary: the fields of torchrun's summary, so far.
        in_root_cause: they are those of the first observed failure.
    """

    is_of_no_rank: bool = False
    traceback: Line | None = None
    in_traceback: int = 0
    in_message: bool = False
    chained: bool = False
    ignored: bool | None = False
    was_logged: bool = False
    was_retried: bool = False
    last_level: str = ""
    last_text: str = ""
    findings: list[Finding] = field(default_factory=list)
    survived: list[Finding] = field(default_factory=list)
    steps: set[tuple[str, ...]] = field(default_factory=set)
    is_unsure: bool = False
    time: float | None = None
    last: int = 0
    in_group: bool = False
    summary: dict[str, str] = field(default_factory=dict)
    in_root_cause: bool = False


class Classifier:
    """Turns lines into findings.

    Args:
        ranks: those of the job and their hosts, where they are known: a text that names another one names none of them.

    Attributes:
        seen: what the lines say, apart from the findings.
    """

    def __init__(self, ranks: Mapping[int, str | None] | None = None) -> None:
        self.seen = Seen()
        self.seen.ranks.update(ranks or {})
        self._ranks = frozenset(ranks or ())
        self._streams: dict[tuple[str, int | None, int | None], _Stream] = {}
        self._cycles: dict[str, int] = {}
        self._order = 0
        self._void = set[str]()
        self._kinds_of_steps = set[str]()
        self._unknown_kinds: dict[str, tuple[int, int]] = {}
        self._news = 0
        self._until: dict[str, int] = {}
        self._budget = MAX_AFTER

    def feed(self, line: Line) -> int:
        """Take a line.

        Returns:
            How many lines of its file must be taken after it, though they are like others; 0 where neither it nor what
            surrounds it says anything: then a line like it need not be taken.
        """
        self.seen.lines += 1
        if line.origin.rank is not None and self._is_foreign(line.origin.rank):
            line = replace(line, origin=replace(line.origin, rank=None))
        key = (line.file, line.origin.rank, line.origin.local)
        stream = self._streams.get(key)
        is_new = stream is None
        if stream is None:
            if len(self._streams) >= MAX_STREAMS:
                return 0
            stream = self._streams[key] = _Stream(is_of_no_rank=key[1:] == (None, None))
            self.seen.streams[line.file] += 1
        stream.last = line.number
        ranks, news = self.seen.streams[line.file], self._news
        if not self._says_something(stream, self._in_cycle(line)):
            return ranks + AFTER if is_new else 0
        is_open = stream.in_traceback or news != self._news
        until = max(line.number + AFTER, self._until.get(line.file, 0))
        wanted = line.number + (min(ranks * AFTER, LONGEST_AFTER) if is_open else ranks + AFTER)
        more = min(max(0, wanted - until), self._budget)
        self._budget -= more
        self._until[line.file] = until + more
        return until + more - line.number

    def _is_foreign(self, rank: int) -> bool:
        return bool(self._ranks) and rank not in self._ranks

    def _says_something(self, stream: _Stream, line: Line) -> bool:
        origin = line.origin
        self.seen.add(origin.rank, origin.local, origin.host)
        if origin.time is not None:
            stream.time = origin.time
            self.seen.last[line.file] = max(origin.time, self.seen.last.get(line.file, 0.0))
        elif stream.time is not None:
            line = replace(line, origin=replace(origin, time=stream.time))
        if "and is not ended" in line.text and (match := _GOES_ON.search(line.text)):
            self._goes_on(line.file, int(match["rank"]))
            return True
        if stream.in_group and (match := _OF_A_GROUP.match(line.text)):
            line = replace(line, text=line.text[match.end() :])
        else:
            stream.in_group = "Exception Group Traceback" in line.text
        return (
            self._of_ignored(stream, line.text)
            or self._of_summary(stream, line)
            or self._of_traceback(stream, line)
            or self._of_text(stream, line)
        )

    def findings(self) -> Iterator[Finding]:
        """Yield the findings that no later line of their rank has shown to be handled, in order."""
        found = [
            each
            for stream in self._streams.values()
            for each in stream.findings
            if (each.failure != _HANG or _sentence(each) not in self._void)
            and (not _is_mere_text(each) or stream.last - each.line.number <= NOTICED_WITHIN)
        ]
        if any(_is_exit_code(each) for each in found) and all(each.kind in _SAYS_NOT_WHY for each in found):
            for stream in self._streams.values():
                late = [each for each in stream.survived if stream.last - each.line.number <= NOTICED_WITHIN]
                found += [replace(each, kind=Kind.EXCEPTION, action=Action.RESTART, is_survived=True) for each in late]
        yield from sorted(found, key=lambda finding: finding.order)
        for stream in self._streams.values():
            if stream.in_traceback and stream.traceback is not None and not stream.ignored:  # the log has not its end
                yield Finding("unknown", Kind.SYMPTOM, stream.traceback, self._order + 1, is_raised=True)

    def _in_cycle(self, line: Line) -> Line:
        if "cycle " in line.whole and (match := _CYCLE.search(line.whole)):
            self._cycles[line.file] = int(match["cycle"])
        elif "estart" in line.text and _RESTARTED.search(line.text):
            self._cycles[line.file] = self._cycles.get(line.file, 0) + 1
        cycle = line.origin.cycle if line.origin.cycle is not None else self._cycles.get(line.file)
        return line if cycle == line.origin.cycle else replace(line, origin=replace(line.origin, cycle=cycle))

    def _of_summary(self, stream: _Stream, line: Line) -> bool:
        """Take a line of the summary that torchrun prints of the workers that have failed."""
        if line.text.startswith("Root Cause (first observed failure)"):
            stream.in_root_cause = True
            return True
        if line.text.startswith(("Failures:", "Other Failures:")):
            stream.in_root_cause = False
            return True
        if not line.text.startswith(" ") or not (match := _SUMMARY_FIELD.match(line.text)):
            return False
        name, value = match["name"], match["value"].strip()
        stream.summary = {name: value} if name == "time" else {**stream.summary, name: value}
        if name != "exitcode" or not (code := re.match(r"(-?\d+)(?: \(pid: (\d+)\))?", value)):
            return True
        origin = line.origin
        if ranks := _SUMMARY_RANK.match(stream.summary.get("rank", "")):
            rank, local = int(ranks["rank"]), int(ranks["local"])
            host = stream.summary.get("host", "")
            known = host if re.fullmatch(r"[\w.-]{1,253}", host) and host != "localhost" else origin.host
            origin = replace(origin, rank=rank, local=local, host=known)
            self.seen.add(rank, local, known)
        if moment := re.match(r"\d{4}-(\d\d)-(\d\d)_(\d\d:\d\d:\d\d)", stream.summary.get("time", "")):
            origin = replace(origin, time=seconds_of_year(int(moment[1]), int(moment[2]), moment[3]))
        failure, kind, action = ending(int(code[1]))
        if kind is Kind.SCHEDULER:  # torchrun itself has sent SIGTERM to all but the first
            if not stream.in_root_cause:
                return True
            kind = Kind.ENDED
        told = replace(line, origin=origin)
        pid = int(code[2]) if code[2] else None
        self._add(stream, Finding(failure, kind, told, 0, None, action, pid, stream.in_root_cause))
        return True

    def _of_ignored(self, stream: _Stream, text: str) -> bool:
        """Take the beginning and the end of an exception that Python has ignored, with those that it is chained to."""
        if text.startswith(_IGNORED) or (stream.ignored is None and text.startswith(_CHAINED)):
            stream.in_traceback, stream.ignored = 0, True
            return True
        if not stream.ignored:
            stream.ignored = False
            return False
        if _TRACEBACK.search(text) or (stream.in_traceback and _FRAME.match(text)):
            stream.ignored = not (
                stream.in_traceback and _TRACEBACK.search(text)
            )  # the end of the first one is missing
            return False
        stream.in_traceback, stream.ignored = 0, None
        return _RAISED.match(text) is not None

    def _of_traceback(self, stream: _Stream, line: Line) -> bool:
        text = line.text
        if _TRACEBACK.search(text):
            stream.traceback = line
            stream.was_logged = stream.last_level in _LOUD
            stream.was_retried = stream.was_logged and bool(_HANDLED.search(stream.last_text))
            stream.in_traceback = 1
            return True
        if text.startswith(_CHAINED):
            stream.chained = True
            return True
        if not stream.in_traceback:
            return False
        stream.in_traceback += 1
        if _FRAME.match(text) and stream.in_traceback < MAX_TRACEBACK:
            return True
        stream.in_traceback = 0
        if raised := _RAISED.match(text):
            self._raised(stream, line, raised["type"] or raised["small"])
            return True
        if stream.traceback is not None and not stream.was_logged:
            self._add(stream, Finding("unknown", Kind.SYMPTOM, stream.traceback, 0, is_raised=True))
        return False

    def _of_text(self, stream: _Stream, line: Line) -> bool:
        text, level = line.text, line.origin.level
        stream.in_message &= text[:1] in ("", " ", "\t")
        if not stream.in_traceback and not _FRAME.match(text):
            stream.last_level, stream.last_text = level, text
        goes_on = False
        if steps := list(_STEP.finditer(text)):
            goes_on = self._progress(stream, line, steps)
        if "NCCL INFO " in text:
            return False
        if "EXCEPTION" in text and (in_process := _IN_PROCESS.search(text)):
            origin = replace(line.origin, rank=int(in_process["rank"]), host=in_process["host"])
            raised = _RAISED.match(in_process["message"])
            told = replace(line, text=in_process["message"], origin=origin)
            self._raised(stream, told, raised["type"] if raised else "")
            return True
        failure, rule, match = _rule_of(text)
        is_quiet = level in _QUIET or "Warning: " in text
        if rule is None:
            named = None if is_quiet else _named_error(text)
            if named and (named.start() == 0 or level) and not _HANDLED.search(text):
                self._raised(stream, line, named["type"])
                return True
            if not named and _FINISHED.search(text):
                self.seen.finished.add(line.file)
                self._handled(stream, line.origin.cycle, has_finished=True)
            return named is not None or goes_on
        handled = _HANDLED_REPORT if rule.kind in _REPORTS else _HANDLED
        if (is_quiet and not rule.is_of_any_level) or (rule.kind is not Kind.MACHINE and handled.search(text)):
            return True
        named = _named_error(text)
        stream.was_logged, stream.was_retried = level in _LOUD, False
        is_error = level in _OF_AN_ERROR or text.startswith(_FATAL) or stream.in_message
        is_raised = is_error or (named is not None and named.start() == 0)
        self._matched(stream, line, (failure, rule, match), named["type"] if named else None, is_raised=is_raised)
        return True

    def _raised(self, stream: _Stream, line: Line, error_type: str) -> None:
        """Take the last line of a traceback, or one like it."""
        stream.in_message = True
        failure, rule, match = _rule_of(line.text)
        is_of_service = rule is not None and rule.kind is Kind.CONSEQUENCE and _OF_A_SERVICE.match(line.text)
        if is_of_service or _KEY.match(line.text):
            failure, rule, match = "", None, False
        if error_type in IGNORED_EXCEPTIONS and failure not in {"operator_kill", "data_loader"}:
            self._failed_somehow(stream, line, (failure, rule, match))
            return
        if stream.chained and stream.findings:
            stream.chained = False
            before = stream.findings[-1]
            is_exact = rule is not None and rule.kind < Kind.EXCEPTION
            if (
                before.kind is not Kind.EXCEPTION
                or not before.error_type
                or (before.kind is Kind.EXCEPTION and rule and not is_exact)
            ):
                return
            stream.findings.pop()
        stream.chained = False
        if rule is None or rule.kind is Kind.NOTE:
            self._add(stream, Finding("user_exception", Kind.EXCEPTION, line, 0, error_type or None, is_raised=True))
        else:
            self._matched(stream, line, (failure, rule, match), error_type or None, is_raised=True)

    def _failed_somehow(
        self, stream: _Stream, line: Line, found: tuple[str, Rule | None, re.Match[str] | bool]
    ) -> None:
        """Take an exception by which a process says that another one has failed, or by which it ends."""
        failure, rule, match = found
        if rule is not None and rule.kind is Kind.ENDED:
            self._matched(stream, line, (failure, rule, match), None, is_raised=True)
        elif not _IN_ORDER.match(line.text):
            self._add(stream, Finding("unknown", Kind.SYMPTOM, line, 0, is_raised=True))

    def _matched(
        self, stream: _Stream, line: Line, found: tuple[str, Rule, re.Match[str] | bool], error_type: str | None, *,
        is_raised: bool,
    ) -> None:  # fmt: skip
        failure, rule, match = found
        groups = match.groupdict() if isinstance(match, re.Match) else {}
        origin, kind, action = line.origin, rule.kind, rule.action
        rank = groups.get("rank") or groups.get("local")
        is_raised |= rank is not None  # a report on a rank
        if rank is None and (named := _MENTIONED_RANK.search(line.text)):
            of_group = named["rank"] if origin.rank is None else None
            rank = of_group or named["rank2"] or named["rank3"]
            rank = None if rank is not None and self._is_foreign(int(rank)) else rank
        if rank is not None:
            origin = (
                replace(origin, rank=int(rank))
                if not groups.get("local")
                else replace(origin, rank=None, local=int(rank))
            )
        if host := groups.get("host"):
            origin = replace(origin, host=host)
        if rule.kind in (Kind.ENDED, Kind.SYMPTOM) and failure == "unknown":
            code = groups.get("code")
            signal = _SIGNALS.get(groups.get("signal") or "", 0)
            number = int(code) if code else -signal
            if number == 0 and code:
                return
            failure, kind, action = ending(number)
            if kind is Kind.SCHEDULER and "rank" in groups and "was ended by" not in line.text:
                return
            kind = rule.kind
        numbers = {name: int(groups[name]) for name in ("pid", "work", "timed_out") if groups.get(name)}
        told = replace(line, origin=origin)
        is_root = rule.kind is Kind.ENDED and "failed (exitcode" in line.text
        self._add(
            stream,
            Finding(
                failure, kind, told, 0, error_type, action, numbers.get("pid"), is_root, groups.get("pg") or "",
                numbers.get("work"), numbers.get("timed_out"), is_raised,
            ),
        )  # fmt: skip

    def _add(self, stream: _Stream, finding: Finding) -> None:
        if len(stream.findings) < MAX_FINDINGS:
            self._order += 1
            stream.findings.append(replace(finding, order=self._order))
            if _may_be_survived(finding):
                stream.steps.clear()
                stream.is_unsure = False
                self._news += 1

    def _progress(self, stream: _Stream, line: Line, named: Sequence[re.Match[str]]) -> bool:
        """Take a line that reports a step: after several of them, what was said of a failure was not the end.

        What is of no rank may be of any: each rank of the file that makes steps goes on after it.

        Returns:
            Whether it takes more of them to know.
        """
        origin = line.origin
        self.seen.finished.discard(line.file)
        kind = line.text[: named[0].start("step")].translate(WITHOUT_DIGITS)
        of_no_rank = self._streams.get((line.file, None, None), stream)
        streams = [stream, of_no_rank] if of_no_rank is not stream else [stream]
        unsettled = [each for each in streams if _has_open_end(each, origin.cycle)]
        step, host, time = int(named[0]["step"]), origin.host, origin.time
        if not unsettled and len(self._kinds_of_steps) < MAX_KINDS_OF_STEPS:
            self._kinds_of_steps.add(kind)
        goes_on = False
        is_sure = kind in self._kinds_of_steps or _OF_A_STEP.search(line.text) is not None
        if is_sure or _LEADING.match(line.text[: named[0].start()]):
            for each in unsettled:
                each.is_unsure |= not is_sure
                goes_on |= self._after_failure(each, origin.cycle, tuple(match["step"] for match in named))
        elif unsettled:
            goes_on = self._learns(kind, step)
        if host is not None and time is not None and (host in self.seen.steps or len(self.seen.steps) < MAX_FINDINGS):
            steps = self.seen.steps[host]
            steps.setdefault(step, time)
            if len(steps) > MAX_STEPS:
                del steps[next(iter(steps))]
        return goes_on

    def _learns(self, kind: str, number: int) -> bool:
        """Take the number in a line of which it is not known whether it is that of a step; return whether it is new.

        It is one if more of them come than a dump has.
        """
        last, count = self._unknown_kinds.get(kind, (-1, 0))
        if number == last or (count == 0 and len(self._unknown_kinds) >= MAX_KINDS_OF_STEPS):
            return False
        self._unknown_kinds[kind] = number, count + 1
        self._news += 1
        if count + 1 >= LONGEST_DUMP:
            self._kinds_of_steps.add(kind)
            del self._unknown_kinds[kind]
        return True

    def _after_failure(self, stream: _Stream, cycle: int | None, numbers: tuple[str, ...]) -> bool:
        """Take a step that follows a failure; return whether it is a new one, and it takes more of them to know."""
        goes_on = len(stream.steps) < SURVIVED_AFTER and numbers not in stream.steps
        if goes_on:
            stream.steps.add(numbers)
            self._news += 1
        enough = 1 if stream.was_retried else RECOVERED_AFTER if stream.was_logged else SURVIVED_AFTER
        if len(stream.steps) >= enough:
            if enough == SURVIVED_AFTER and (stream.is_of_no_rank or stream.is_unsure):
                raised = [each for each in stream.findings if each.is_raised and each.error_type]
                stream.survived += raised[: MAX_FINDINGS - len(stream.survived)]
            self._handled(stream, cycle)
        elif len(stream.steps) >= ENDS_WITHIN:
            stream.findings = [each for each in stream.findings if not _is_mere_text(each)]
        return goes_on

    def _goes_on(self, file: str, rank: int) -> None:
        """Forget what a file has said of a hang of a rank that goes on, and in all files the verdict on that hang."""
        for (name, _, _), stream in self._streams.items():
            hangs = [each for each in stream.findings if each.failure == _HANG] if name == file else []
            over = [each for each in hangs if _VERDICT in each.line.text or each.line.origin.rank == rank]
            stream.findings = [each for each in stream.findings if each not in over]
            self._void |= {_sentence(each) for each in over} - {""}

    def _handled(self, stream: _Stream, cycle: int | None, *, has_finished: bool = False) -> None:
        """Forget what the job has gone on after in the same cycle, unless nvrx reports a restart in process.

        A loss that is not a number is forgotten only when the job has finished.
        """
        stream.findings = [
            each
            for each in stream.findings
            if each.kind in _REPORTS
            or each.line.origin.cycle != cycle
            or " (initial rank " in each.line.whole
            or (each.failure == "nan_loss" and each.kind is Kind.SYMPTOM and not has_finished)
        ]


def _may_be_survived(finding: Finding) -> bool:
    """Whether a rank that goes on has survived what was said; a loss that is not a number stays."""
    return finding.kind in _VOID_LATER or (finding.kind is Kind.SYMPTOM and finding.failure != "nan_loss")


def _is_mere_text(finding: Finding) -> bool:
    """Whether some text, which need not be of the job's launcher, names an exit code, or an error of a program."""
    return finding.kind is Kind.SYMPTOM and finding.failure != "nan_loss" and not finding.is_raised


def _is_exit_code(finding: Finding) -> bool:
    """Whether a launcher reports the exit code of a process: Python's, after an exception."""
    return finding.kind is Kind.ENDED and finding.failure == "unknown" and "xit" in finding.line.text


def _has_open_end(stream: _Stream, cycle: int | None) -> bool:
    """Whether a stream has a failure of this cycle that its rank may have survived."""
    return any(_may_be_survived(each) and each.line.origin.cycle == cycle for each in stream.findings)


def _sentence(finding: Finding) -> str:
    """Return the verdict on a hang that a line has, "" for none."""
    return finding.line.text.partition(_VERDICT)[2]


def _named_error(text: str) -> re.Match[str] | None:
    """Return the name of an exception in a text; most texts have no part of one."""
    return _NAMED_ERROR.search(text) if any(part in text for part in _OF_ERRORS) else None


_SHARED: Final = (
    "rror", "tion", "ted ", "mory", "iled", "atch", "not ", "vice", " is ", "meou", "kill", "ble ", " be ", "sign",
    "_STA", " out", "xcee", "was ", "vali", "type", "lure", "lled", "UE T", "t en", "sion", "ress", "loss", "ing ",
    "file", "cess", "_ERR",
)  # fmt: skip
"""Parts that many texts of rules have: a line without one is not searched for those."""


def _grouped() -> dict[str, list[tuple[int, str, Rule, str]]]:
    """Return the rules, each with its number, text and class, by a part that their texts have in common."""
    groups = defaultdict[str, list[tuple[int, str, Rule, str]]](list)
    rules = [(rule, each.name) for each in CLASSES for rule in each.rules]
    for number, (rule, failure) in enumerate(rules):
        part = next((part for part in _SHARED if part in rule.text), rule.text)
        groups[part].append((number, rule.text, rule, failure))
    return dict(groups)


_GROUPS: Final = tuple(_grouped().items())


def _rule_of(text: str) -> tuple[str, Rule | None, re.Match[str] | bool]:
    """Return the first rule that a text matches, with its class and the match."""
    if len(text) > MAX_SEARCHED:  # a launcher's line ends in the exit code, after the whole command
        text = f"{text[: MAX_SEARCHED * 3 // 4]} {text[-MAX_SEARCHED // 4 :]}"
    possible = [rule for part, rules in _GROUPS if part in text for rule in rules if rule[1] in text]
    for _, _, rule, failure in sorted(possible, key=lambda each: each[0]):
        if match := rule.search(text):
            return failure, rule, match
    return "", None, False
