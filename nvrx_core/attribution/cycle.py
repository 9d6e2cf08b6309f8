"""The verdict of a cycle from what a launcher knows of it: exit codes, events, the ends of logs. Pure.

The launcher's knowledge becomes lines like those that a log has of it, so that one cascade decides. What the launcher
has seen itself counts more than text that anybody may have printed: only such a verdict names a node to exclude.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from nvrx_core.attribution.cascade import decide
from nvrx_core.attribution.classification import Classifier
from nvrx_core.attribution.origin import Line, Origin, parse
from nvrx_core.attribution.verdict import Action, Verdict

__all__ = ["CycleReport", "RankEnd", "verdict_of_cycle"]


@dataclass(frozen=True)
class RankEnd:
    """How a worker has ended.

    Attributes:
        rank: its global rank.
        host: its node.
        pid: its process.
        code: its exit code, or the negative number of the signal that has ended it.
        is_first: it is the first failure of the cycle, as the coordinator has it.
        out_of_memory: the OOM killer was active in its cgroup.
        hung: why its rank monitor has ended it, "" if it has not.
    """

    rank: int
    host: str
    pid: int
    code: int
    is_first: bool = False
    out_of_memory: bool = False
    hung: str = ""


@dataclass(frozen=True)
class CycleReport:
    """What a launcher knows of a cycle that has ended.

    Attributes:
        ranks: the hosts of all ranks of the cycle.
        ends: of workers that have failed, in the order in which the launcher has learned of them. Those that it has
            ended itself are left out.
        kernel: lines of the kernel's log of this cycle, by host; empty where it cannot be read.
        events: lines of event files of this cycle.
        logs: the last lines of each worker's output, by rank and name of the file.
        stopped_by: the signal that has ended the launcher, as SIGTERM; "" for none.
    """

    ranks: Mapping[int, str]
    ends: tuple[RankEnd, ...] = ()
    kernel: Mapping[str, tuple[str, ...]] | None = None
    events: tuple[str, ...] = ()
    logs: Mapping[tuple[int, str], tuple[str, ...]] | None = None
    stopped_by: str = ""


def verdict_of_cycle(report: CycleReport) -> Verdict:
    """Return who was to blame for the end of a cycle, and why; `Verdict.evidence` has line 0 for the launcher's own.

    Args:
        report: what is known of the cycle.
    """
    classifier = Classifier()
    classifier.seen.ranks.update(report.ranks)
    for (rank, name), texts in (report.logs or {}).items():
        _feed(classifier, name, texts, Origin(rank=rank, host=report.ranks.get(rank)))
    _feed(classifier, "events", report.events, Origin())
    of_kernel = Classifier()
    for host, texts in (report.kernel or {}).items():
        for each in (classifier, of_kernel):
            _feed(each, "kernel log", texts, Origin(host=host))
    for end in sorted(report.ends, key=lambda end: not end.is_first):
        text, number = _in_words(end), end.rank
        classifier.feed(Line("launcher", 0, text, text, Origin(rank=number, host=end.host)))
    if report.stopped_by:
        text = f"Received {report.stopped_by} death signal, shutting down workers"
        classifier.feed(Line("launcher", 0, text, text))
    found = decide(classifier.findings(), classifier.seen)
    if found.action is Action.EXCLUDE_NODE and decide(of_kernel.findings(), of_kernel.seen).host != found.host:
        sentence = found.sentence.replace("; exclude the node", "; restart, and check the node: only text names it")
        return replace(found, action=Action.RESTART, node_to_exclude=None, sentence=sentence)
    return found


def _in_words(end: RankEnd) -> str:
    """Return the end of a worker as the launcher's log has it."""
    how = f"was ended by {_signal(-end.code)}" if end.code < 0 else f"has failed with exit code {end.code}"
    memory = ", and the kernel's OOM killer was active in its cgroup" if end.out_of_memory else ""
    hung = f", hung: {end.hung}" if end.hung else ""
    return f"rank {end.rank} (local rank ?, pid {end.pid}) {how}{memory}{hung}"


def _signal(number: int) -> str:
    names = {1: "SIGHUP", 2: "SIGINT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV"}
    return {**names, 15: "SIGTERM"}.get(number, f"signal {number}")


def _feed(classifier: Classifier, name: str, texts: Iterable[str], origin: Origin) -> None:
    for number, text in enumerate(texts, 1):
        for line in parse(name, number, text, origin):
            classifier.feed(line)
