"""The verdict of a cycle from what launchers know of it: their reports of failures, events, the ends of logs. Pure.

The launchers' knowledge becomes lines like those that a log has of it, so that one cascade decides. What a launcher
has seen itself counts more than text that anybody may have printed: only such a verdict names a node to exclude.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from nvrx_core.attribution.cascade import decide
from nvrx_core.attribution.classification import WITHOUT_DIGITS, Classifier
from nvrx_core.attribution.origin import Line, Origin, parse
from nvrx_core.attribution.verdict import Action, Evidence, Verdict, shown
from nvrx_core.fault.hang_verdict import HangVerdict

__all__ = ["LAUNCHER_FILE", "CycleReport", "FailureReport", "verdict_of_cycle"]

LAUNCHER_FILE: Final = "launcher"
"""The file that `Verdict.evidence` names for what a launcher has reported; its lines have the number 0."""
_END: Final = re.compile(
    r"(?P<how>rank (?P<rank>\d{1,7}) \([^)]*\) (?:was ended by [\w+]+(?: \d+)?|has failed with exit code \d+)"
    r"(?:, and the kernel's OOM killer was active in its cgroup)?)"
    r"(?:(?:: |; it printed last: )(?P<error>.*?))??(?P<hung>, hung: .*)?$"
)

_RESTARTED: Final = re.compile(r"restart \d+ in [\d.]+ ms \(this rank\)")
"""The log line of a restart in process (`nvrx_core.inprocess.call.restart_trace`)."""


@dataclass(frozen=True)
class FailureReport:
    """A failure, as the log of a launcher has it.

    Attributes:
        host: the node, None where it is not known.
        text: as in `rank 3 (local rank 1, pid 4720) was ended by SIGSEGV`, with the signal's name; then the exception
            (after `: `, or after `; it printed last: ` where only its output has one), and why its rank monitor has
            ended it, where there are any. Or why a node is lost.
    """

    host: str | None
    text: str


@dataclass(frozen=True)
class CycleReport:
    """What launchers know of a cycle that has ended.

    Attributes:
        ranks: the hosts of all ranks of the cycle, None where one is not known.
        failures: in the order in which the coordinator has learned of them. Workers that launchers have ended
            themselves, for the failure of others, are left out.
        kernel: lines of the kernel's log of this cycle, by host; empty where it cannot be read.
        events: lines of the ranks' event files: faults of this cycle that no restart in process has followed.
        logs: the last lines of the workers' output, by rank and name of the file; None is the rank of a file in which
            each line has its own.
        hang: the verdict on a hang, which launchers have given by the reports of all ranks; None for none.
        stopped_by: the signal that has ended the launcher, as SIGTERM; "" for none.
    """

    ranks: Mapping[int, str | None]
    failures: tuple[FailureReport, ...] = ()
    kernel: Mapping[str, tuple[str, ...]] | None = None
    events: tuple[str, ...] = ()
    logs: Mapping[tuple[int | None, str], tuple[str, ...]] | None = None
    hang: HangVerdict | None = None
    stopped_by: str = ""


def verdict_of_cycle(report: CycleReport) -> Verdict:
    """Return who was to blame for the end of a cycle, and why; one that ends by a fault is never `clean`.

    Args:
        report: what is known of the cycle.
    """
    classifier = Classifier()
    classifier.seen.ranks.update(report.ranks)
    for (rank, name), texts in (report.logs or {}).items():
        origin = Origin() if rank is None else Origin(rank=rank, host=report.ranks.get(rank))
        _feed(classifier, name, texts, origin)
    _feed(classifier, "events", report.events, Origin())
    of_kernel = Classifier()
    for host, texts in (report.kernel or {}).items():
        for each in (classifier, of_kernel):
            _feed(each, "kernel log", texts, Origin(host=host))
    for failure in report.failures:
        _feed_failure(classifier, failure)
    hang = "" if report.hang is None else f"hang: {report.hang.sentence}"
    if hang:
        classifier.feed(Line(LAUNCHER_FILE, 0, hang, hang))
    if report.stopped_by:
        text = f"Received {report.stopped_by} death signal, shutting down workers"
        classifier.feed(Line(LAUNCHER_FILE, 0, text, text))
    found = decide(classifier.findings(), classifier.seen)
    if found.failure == "clean" or not classifier.seen.lines:
        return _unknown(report)
    if report.hang is not None and found.rank in report.hang.culprits and found.evidence[0].text == shown(hang):
        return replace(found, confidence=round(report.hang.confidence, 2))
    if found.failure == "operator_kill" and found.action is Action.STOP and found.evidence[0].file != LAUNCHER_FILE:
        sentence = found.sentence.replace("; stop, and correct it first", "; restart: only text says so")
        return replace(found, action=Action.RESTART, sentence=sentence)
    of_record = decide(of_kernel.findings(), of_kernel.seen).host
    if found.action is Action.EXCLUDE_NODE and (of_record is None or of_record != found.host):
        sentence = found.sentence.replace("; exclude the node", "; restart, and check the node: only text names it")
        return replace(found, action=Action.RESTART, node_to_exclude=None, sentence=sentence)
    return found


def _unknown(report: CycleReport) -> Verdict:
    """Return the verdict of a cycle of which no line says why it has ended."""
    texts = [shown(each.text) for each in report.failures]
    evidence = tuple(Evidence(LAUNCHER_FILE, 0, text) for text in texts)
    host = report.failures[0].host if report.failures else None
    detail = f": {texts[0]}" if texts else ""
    sentence = f"the cause is unknown{detail}; restart"
    return Verdict("unknown", None, None, host, Action.RESTART, None, 0.0, evidence, sentence)


def _feed_failure(classifier: Classifier, failure: FailureReport) -> None:
    """Take a launcher's report: how a worker has ended, and its exception, which is a line of that worker."""
    text, host = failure.text, failure.host
    if (end := _END.match(text)) is None:
        classifier.feed(Line(LAUNCHER_FILE, 0, text, text, Origin(host=host)))
        return
    origin = Origin(rank=int(end["rank"]), host=host)
    how = end["how"] + (end["hung"] or "")
    classifier.feed(Line(LAUNCHER_FILE, 0, how, how, origin))
    if end["error"]:  # the last line of its traceback
        for each in ("Traceback (most recent call last):", end["error"]):
            classifier.feed(Line(LAUNCHER_FILE, 0, each, text, origin))


def _feed(classifier: Classifier, name: str, texts: Sequence[str], origin: Origin) -> None:
    """Take the lines of a log that follow the last restart in process: what is before it was not the end.

    Lines that are alike but for their digits are looked at once, unless what is shortly before them says something.
    """
    first = max((index for index, text in enumerate(texts, 1) if _RESTARTED.search(text)), default=0)
    boring, until = set[str](), 0
    for number, text in enumerate(texts[first:], first + 1):
        pattern = text.translate(WITHOUT_DIGITS)
        if pattern in boring and number > until:
            continue
        after = max((classifier.feed(line) for line in parse(name, number, text, origin)), default=0)
        if after:
            until = number + after
        else:
            boring.add(pattern)
