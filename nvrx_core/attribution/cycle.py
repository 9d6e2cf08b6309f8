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
from nvrx_core.attribution.worker_report import BY_SIGNAL, WorkerReport
from nvrx_core.fault.hang_verdict import HangVerdict

__all__ = ["LAUNCHER_FILE", "CycleReport", "FailureReport", "verdict_of_cycle"]

LAUNCHER_FILE: Final = "launcher"
"""The file that `Verdict.evidence` names for what a launcher has reported; its lines have the number 0."""
KERNEL_LOG: Final = "kernel log"
"""The same for the records of the kernels of nodes, in the order in which those have failed."""
NAMED, NAME = 4, 64
"""Nodes that a sentence names, and characters of each name."""
_RESTARTED: Final = re.compile(r"restart \d+ in [\d.]+ ms \(this rank\)")
"""The log line of a restart in process (`nvrx_core.inprocess.call.restart_trace`)."""


@dataclass(frozen=True)
class FailureReport:
    """A failure, as the log of a launcher has it.

    Attributes:
        host: the node, None where it is not known.
        text: a `WorkerReport`, or why a node is lost.
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
        is_at_limit: that signal came when the time of the job was over, as far as its scheduler has told.
        is_retried: the launchers may restart the workers; they do not where all of them could not be started, or refuse
            their arguments.
    """

    ranks: Mapping[int, str | None]
    failures: tuple[FailureReport, ...] = ()
    kernel: Mapping[str, tuple[str, ...]] | None = None
    events: tuple[str, ...] = ()
    logs: Mapping[tuple[int | None, str], tuple[str, ...]] | None = None
    hang: HangVerdict | None = None
    stopped_by: str = ""
    is_at_limit: bool = False
    is_retried: bool = True


def verdict_of_cycle(report: CycleReport) -> Verdict:
    """Return who was to blame for the end of a cycle, and why; one that ends by a fault is never `clean`.

    Args:
        report: what is known of the cycle.
    """
    found = _by_evidence(report)
    if report.is_retried or found.action is not Action.RESTART:
        return found
    sentence = re.sub("; restart[^;]*$", "; stop, and correct it first", found.sentence)
    return replace(found, action=Action.STOP, sentence=sentence)


def _by_evidence(report: CycleReport) -> Verdict:
    classifier = Classifier(report.ranks)
    is_stopped = all(_is_of_signal(each.text, report.stopped_by) for each in report.failures) and report.stopped_by
    if is_stopped:  # before what the workers have printed of the same signal
        _feed_launcher(classifier, report)
    for (rank, name), texts in (report.logs or {}).items():
        origin = Origin() if rank is None else Origin(rank=rank, host=report.ranks.get(rank))
        _feed(classifier, name, texts, origin)
    _feed(classifier, "events", report.events, Origin())
    first = [each.host for each in report.failures]
    kernel = dict(sorted((report.kernel or {}).items(), key=lambda each: [*first, each[0]].index(each[0])))
    for host, texts in kernel.items():
        _feed(classifier, KERNEL_LOG, texts, Origin(host=host))
    if not is_stopped:
        _feed_launcher(classifier, report)
    found = decide(classifier.findings(), classifier.seen)
    if found.failure == "clean" or not classifier.seen.lines:
        return _unknown(report)
    hang = "" if report.hang is None else _line_of(report.hang)
    if report.hang is not None and found.rank in report.hang.culprits and found.evidence[0].text == shown(hang):
        return replace(found, confidence=round(report.hang.confidence, 2))
    if found.failure == "operator_kill" and found.action is Action.STOP and found.evidence[0].file != LAUNCHER_FILE:
        sentence = found.sentence.replace("; stop, and correct it first", "; restart: only text says so")
        return replace(found, action=Action.RESTART, sentence=sentence)
    return _as_recorded(found, kernel) if found.action is Action.EXCLUDE_NODE else found


def _as_recorded(found: Verdict, kernel: Mapping[str, Sequence[str]]) -> Verdict:
    """Return a verdict that excludes its node only if the kernel of that node alone has such records."""
    recorded = {host for host, texts in kernel.items() if _excludes(host, texts)}
    if recorded == {found.host}:
        return found
    why = "; restart, and check the node: only text names it"
    if found.host in recorded:
        named = ", ".join(shown(each, NAME) for each in sorted(recorded)[:NAMED])
        more = f" and {len(recorded) - NAMED} more" if len(recorded) > NAMED else ""
        why = f"; restart, and check the nodes: the kernels of {named}{more} have such records"
    sentence = found.sentence.replace("; exclude the node", why)
    return replace(found, action=Action.RESTART, node_to_exclude=None, sentence=sentence)


def _excludes(host: str, texts: Sequence[str]) -> bool:
    """Whether the records of a node's kernel alone say that it is to be excluded."""
    of_kernel = Classifier()
    _feed(of_kernel, KERNEL_LOG, texts, Origin(host=host))
    return decide(of_kernel.findings(), of_kernel.seen).action is Action.EXCLUDE_NODE


def _unknown(report: CycleReport) -> Verdict:
    """Return the verdict of a cycle of which no line says why it has ended."""
    texts = [shown(each.text) for each in report.failures]
    evidence = tuple(Evidence(LAUNCHER_FILE, 0, text) for text in texts)
    host = report.failures[0].host if report.failures else None
    detail = f": {texts[0]}" if texts else ""
    sentence = f"the cause is unknown{detail}; restart"
    return Verdict("unknown", None, None, host, Action.RESTART, None, 0.0, evidence, sentence)


def _feed_launcher(classifier: Classifier, report: CycleReport) -> None:
    """Take what the launcher knows, in the order in which it has happened, without what its own signal has ended."""
    for failure in report.failures:
        if not report.stopped_by or not _is_of_signal(failure.text, report.stopped_by):
            _feed_failure(classifier, failure)
    lines = [] if report.hang is None else [_line_of(report.hang)]
    if report.stopped_by and report.is_at_limit:
        lines.append(f"Received {report.stopped_by} at the time limit (Slurm: TIMEOUT by SLURM_JOB_END_TIME)")
    elif report.stopped_by:
        lines.append(f"Received {report.stopped_by} death signal, shutting down workers")
    for text in lines:
        classifier.feed(Line(LAUNCHER_FILE, 0, text, text))


def _line_of(hang: HangVerdict) -> str:
    return f"hang: {hang.sentence}"


def _is_of_signal(text: str, signal: str) -> bool:
    """Whether a report is of what a signal has ended that was sent to all processes of the job: no cause of its own."""
    if (end := WorkerReport.parse(text)) is not None:
        return end.how.endswith(f"{BY_SIGNAL}{signal}") or end.error.startswith("KeyboardInterrupt")
    return "the launcher has received signal " in text


def _feed_failure(classifier: Classifier, failure: FailureReport) -> None:
    """Take a launcher's report: how a worker has ended, and its exception, which is a line of that worker."""
    text, host = failure.text, failure.host
    if (end := WorkerReport.parse(text)) is None:
        classifier.feed(Line(LAUNCHER_FILE, 0, text, text, Origin(host=host)))
        return
    origin, how = Origin(rank=end.rank, host=host), end.how + end.hung
    classifier.feed(Line(LAUNCHER_FILE, 0, how, how, origin))
    if end.error:  # the last line of its traceback
        for each in ("Traceback (most recent call last):", end.error):
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
