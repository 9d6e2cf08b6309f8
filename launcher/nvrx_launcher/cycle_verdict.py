"""The verdict of each cycle that a fault has ended: one line of the log, and an event.

The launcher that runs the coordinator gives it, for all nodes, by what they have reported; without a coordinator each
launcher gives its own. What is known is collected in the event loop. The ends of logs are read, and the verdict is
made, in a thread, after the workers of the next cycle are started: no restart waits for it. Only the last line of the
job does, within bounds.
"""

from __future__ import annotations

import logging
import math
import os
import re
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from nvrx_core.attribution.worker_report import HUNG, WorkerReport
from nvrx_core.events.schema import file_name
from nvrx_core.parsing import count_in
from nvrx_core.process.helper_thread import HelperThread
from nvrx_core.process.kernel_log import NewRecords
from nvrx_core.process.signals import signal_name
from nvrx_launcher.exit_codes import FAILED
from nvrx_launcher.history import History
from nvrx_launcher.log_service import LogService
from nvrx_launcher.rendezvous.coordination import Coordination
from nvrx_launcher.rendezvous.failure_reports import CycleFailures
from nvrx_launcher.rendezvous.messages import NODES_WAIT, Decision, DecisionKind
from nvrx_launcher.rendezvous.parameters import NOT_RETRIED
from nvrx_launcher.workers.environment import Placement
from nvrx_launcher.workers.output import WorkerOutput

if TYPE_CHECKING:
    from nvrx_core.attribution import verdict as attribution
    from nvrx_core.fault.hang_verdict import HangVerdict

__all__ = ["CycleEvidence", "CycleVerdicts", "Workers", "time_limit"]

log = logging.getLogger("nvrx_launcher")
NEXT_CYCLE_TIMEOUT: Final = 1.0
"""Seconds for which a verdict waits for the next cycle; then it is given without."""
SILENT_TIMEOUT: Final = 10.0
"""The same, while a node says nothing: its loss, which is noticed late, may be what its peers have noticed first."""
END_TIMEOUT: Final = 10.0
"""Seconds that the end of the job waits for logs that cannot be read."""
SIGNALLED_TIMEOUT: Final = 1.0
"""The same, of a launcher that was sent a signal; none that was sent another one waits."""
SAME_SIGNAL: Final = 1.0
"""Seconds before a signal to the launcher in which a cycle may have ended by the same signal to others of the job."""
BEFORE_LIMIT, AFTER_LIMIT = 180.0, 120.0
"""Seconds around the end of the job's time in which a signal is that of the scheduler: Slurm looks at the time of jobs
at intervals, and sends the signal of `--signal` up to a minute too early (sbatch(1))."""
HANG_TIMEOUT: Final = 30.0
"""Seconds from the verdict on a hang to the end of the cycle; later, that was for it only if its end says so."""
STOP: Final = "stop"
"""The action of a verdict whose failure a restart would repeat."""
MAX_THREADS: Final = 8
"""Verdicts that are made at a time: a file system that does not answer holds them up. Further cycles have none."""
MAX_OUTPUT: Final = 1 << 15
"""Bytes at the end of each log file of a worker that are looked at."""
MAX_CYCLE_LOG: Final = 1 << 19
"""Bytes at the end of the log of all workers that are looked at."""
MAX_RECORDS: Final = 1 << 10
"""Records of the kernel on Xids and killed processes, the last ones, that are kept of a cycle."""
INITIAL_NAMESPACE: Final = "pid:[4026531836]"
"""The namespace whose pids the kernel's log has (PROC_PID_INIT_INO)."""
NO_STOP: Final = ("KeyboardInterrupt", "CANCELLED")
"""In the report on a worker that was ended from outside, whatever else it says."""
LEFT: Final = "the launcher has received signal"
"""Why a node leaves a job that goes on without it."""
LOST_STORE: Final = "RendezvousConnectionError"
"""The name of torch's exception for a store that is lost, which says that another node is the cause."""
_PID: Final = re.compile(r"\bpid (\d+)\)")
_RECORD: Final = re.compile(r"NVRM: Xid(?P<error> \([^)]*\): \d+\b)?|[Kk]illed process (?P<pid>\d+)\b")
"""A record of the kernel on an error of a GPU, which names GPU and error, or on a process that it has killed."""


class Workers(Protocol):
    """The workers of this node (`WorkerGroup`)."""

    placement: Placement | None

    def output(self) -> Mapping[int, WorkerOutput]:
        """Return where their output can be read, by rank."""


@dataclass(frozen=True)
class CycleEvidence:
    """What a launcher knows of a cycle that a fault has ended.

    Attributes:
        cycle: its number.
        began: when it has begun, wall seconds.
        ranks: the nodes of all ranks, None where one is not known.
        failures: node and text of each failure, the first one first.
        output: that of the workers of this node, by rank.
        log: the file with the output of all workers; "" for none.
        hang: the verdict on a hang that has ended it; None for none.
        kernel: what the kernels of nodes have recorded since then, by host.
        stopped_by: the signal to this launcher that has ended it, as SIGTERM; "" for none.
        is_at_limit: that signal came at the end of the job's time.
        begins_at: where the output of this cycle begins in it.
        events: the folder of the event files; None for none.
        is_retried: the workers may be restarted.
    """

    cycle: int
    began: float
    ranks: Mapping[int, str | None]
    failures: tuple[tuple[str | None, str], ...]
    output: Mapping[int, WorkerOutput]
    log: str
    begins_at: int
    events: str | None
    hang: HangVerdict | None = None
    kernel: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    stopped_by: str = ""
    is_at_limit: bool = False
    is_retried: bool = True


@dataclass(frozen=True)
class _CycleEnd:
    """The end of the cycle that runs: what has ended it first counts.

    Attributes:
        reason: that of the decision; "": a signal to this launcher has.
        at: when, monotonic seconds.
        is_here: the verdict is this launcher's, which ran the coordinator then.
        gives_up_at: until when the verdict may wait for nodes that are silent.
        stopped_by: the signal to this launcher that has ended it; "" for none.
    """

    reason: str
    at: float
    is_here: bool
    gives_up_at: float = math.inf
    stopped_by: str = ""


class CycleVerdicts:
    """Gives the verdicts of a launcher.

    Args:
        history: gets the events.
        nodes: what the nodes have reported.
        workers: those of this node.
        cycle_log: the log of all workers.
        host: this node.
        events: the folder of the event files; None for none.
        time_limit: when the scheduler ends the job, wall seconds.
        ends_job: the job ends with this launcher; else another one takes over.

    Attributes:
        deadline: when `tick` is due, monotonic seconds.
    """

    def __init__(
        self, history: History, nodes: Coordination, workers: Workers, *, cycle_log: LogService, host: str,
        events: str | None, time_limit: float = math.inf, ends_job: bool = True,
    ) -> None:  # fmt: skip
        self._history, self._nodes, self._workers = history, nodes, workers
        self._cycle_log, self._host, self._events, self._time_limit = cycle_log, host, events, time_limit
        self._ends_job = ends_job
        self._running: Decision | None = None
        self._began, self._failures = 0.0, dict[int, str]()
        self._end: _CycleEnd | None = None
        self._hang: HangVerdict | None = None
        self._kernel, self._recorded = NewRecords(), deque[str](maxlen=MAX_RECORDS)
        self._hang_judged_at, self._lost = 0.0, dict[int, str]()
        self._signal, self.deadline = "", math.inf
        self._is_urgent = False  # a second signal has come
        self._orphaned = False  # the coordinator is lost, and nobody takes over
        self._collected = list[CycleEvidence]()
        self._threads = list[HelperThread]()
        self._stops = set[int]()

    def decided(self, decision: Decision, *, now: float) -> None:
        """Handle a decision for all nodes, before it is carried out; call `make` afterwards."""
        match decision.kind:
            case DecisionKind.RUN:
                self._collect()
                self._running, self._began = decision, time.time()
                self._kernel.skip()
                self._recorded.clear()
                self._failures.clear()
                self._lost.clear()
                self._hang = None
            case DecisionKind.STOP:
                self._ended(decision, now, now + NEXT_CYCLE_TIMEOUT)
            case DecisionKind.LOST:
                self._lost[decision.node] = decision.reason
                self._take_over(now)
                if self._end is not None and self._end.is_here and not self._silent():
                    self.deadline = now
            case DecisionKind.END:
                if decision.code == FAILED:
                    self._ended(decision, now, now)
                self._collect()
                self._running = None
            case _:
                pass

    def failed(self, rank: int, report: str) -> None:
        """Record that a worker of this node has failed."""
        self._failures[rank] = report

    def hang_judged(self, cycle: int, verdict: HangVerdict) -> None:
        """Take the verdict on a hang in a cycle."""
        if self._running is not None and self._running.cycle == cycle:
            self._hang, self._hang_judged_at = verdict, time.monotonic()

    def recovered(self) -> None:
        """Record that a worker of this node that was about to be ended as hung has gone on: no rank holds it up."""
        self._hang = None

    def goes_on_without(self, rank: int) -> None:
        """Record that the job goes on, in process, without a worker that has failed."""
        self._failures.pop(rank, None)

    def stopped(self, signum: int, *, now: float) -> None:
        """Handle a signal to this launcher, which ends the cycle that runs; call `make` afterwards.

        Its verdict is made at once: what the workers print from now on, they print because of the signal.
        """
        if self._signal:
            self._is_urgent = True
            return
        self._signal = signal_name(signum)
        if self._running is None:
            return
        end = self._end or _CycleEnd("", now, self._has_reports())
        self._end = replace(end, stopped_by=self._signal) if now < end.at + SAME_SIGNAL else end
        self._collect()

    def coordinator_lost(self, coordinator: int, reason: str, *, node: int) -> None:
        """Handle that the coordinator is lost with the store in which a successor would be elected; `finish` follows.

        The first of the other nodes of the cycle gives the verdict, by what it knows. It names no node: it may itself
        be the one that is cut off.

        Args:
            coordinator: the node of the coordinator, -1 where there is none.
            reason: why it is lost.
            node: this node.
        """
        running, others = self._running, set[int]()
        if running is not None:
            others = {member.node for member in running.members} - {coordinator}
        if coordinator < 0 or running is None or self._has_reports() or node != min(others, default=-1):
            return
        end = self._end or _CycleEnd(f": {LOST_STORE}: {reason}", -math.inf, is_here=True)
        self._end, self._orphaned = replace(end, is_here=True), True

    def records(self) -> tuple[str, ...]:
        """Return what the kernel of this node has recorded in the cycle: Xids, and that it has killed a worker.

        Of each error of a GPU it is the last record: one that is lost has many that say that its work has ended.
        Other processes that it kills for want of memory are not the job's; where pids are not those of the kernel's
        log, none can be told to be.
        """
        self._recorded += filter(_RECORD.search, self._kernel.texts())
        own = set[str]()
        with suppress(OSError):
            if os.readlink("/proc/self/ns/pid") == INITIAL_NAMESPACE:
                own.update(*map(_PID.findall, self._failures.values()))
        last = dict[str, str]()
        for text in self._recorded:
            found = _RECORD.search(text)
            if found is not None and found["pid"] in (None, *own):
                key = found["error"] or text
                last.pop(key, None)
                last[key] = text
        return tuple(last.values())

    def close(self) -> None:
        """Close the kernel's log."""
        self._kernel.close()

    def says_stop(self, cycle: int) -> bool:
        """Return whether the verdict of a cycle is there, and says that a restart would fail again.

        Only what launchers and rank monitors have reported counts: not what a worker has printed.
        """
        return cycle in self._stops

    def tick(self, *, now: float) -> None:
        """Make a verdict that the next cycle, or a node that is silent, has kept waiting."""
        if now < self.deadline:
            return
        if self._end is not None and now < self._end.gives_up_at and self._silent():
            self.deadline = self._end.gives_up_at
            return
        self._collect()
        self.make()

    def make(self) -> None:
        """Make the verdicts for which everything is collected, each in a thread."""
        collected, self._collected = self._collected, []
        self._threads = [each for each in self._threads if each.is_alive()]
        for evidence in collected:
            failed = partial(log.warning, "there is no verdict of cycle %d: %s", evidence.cycle)
            if len(self._threads) >= MAX_THREADS:
                failed(f"those of {MAX_THREADS} cycles before it are not made yet")
                continue
            thread = HelperThread(partial(self._give, evidence), name="nvrx-verdict", failed=failed)
            self._threads.append(thread)
            thread.start()

    def finish(self) -> None:
        """Make what is left, and wait until it is said, within bounds: after a signal the launcher has little time."""
        self._collect()
        self.make()
        timeout = 0.0 if self._is_urgent else SIGNALLED_TIMEOUT if self._signal else END_TIMEOUT
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            when = "before a second signal" if self._is_urgent else f"within {timeout:g} s, in which its logs are read"
            log.warning("the verdict of a cycle was not made %s", when)

    def _ended(self, decision: Decision, now: float, due: float) -> None:
        """Handle the end of the cycle that runs, once; that more nodes join is no fault."""
        is_fault = not self._signal and not decision.reason.endswith(NODES_WAIT)
        if is_fault and self._running is not None and decision.cycle == self._running.cycle:
            self._end = self._end or _CycleEnd(decision.reason, now, self._has_reports(), due + SILENT_TIMEOUT)
            self.deadline = due if self._end.is_here else math.inf

    def _has_reports(self) -> bool:
        return self._running is not None and self._nodes.failures(self._running.cycle) is not None

    def _take_over(self, now: float) -> None:
        """Give the verdict in the place of a launcher that is lost, with the coordinator, since a cycle has ended.

        One that has left in order has given it.
        """
        if self._end is not None and not self._end.is_here and self._has_reports():
            self.deadline = now + NEXT_CYCLE_TIMEOUT
            self._end = replace(self._end, is_here=True, gives_up_at=self.deadline + SILENT_TIMEOUT)

    def _silent(self) -> set[int]:
        """Return the nodes of the cycle that neither say that they have stopped nor are lost."""
        reported = None if self._running is None else self._nodes.failures(self._running.cycle)
        if self._running is None or reported is None:
            return set()
        return {member.node for member in self._running.members} - reported.stopped - self._lost.keys()

    def _collect(self) -> None:
        """Collect what is known of the cycle that has ended, if there is one that has no verdict yet."""
        running, end = self._running, self._end
        if running is None or end is None:
            return
        self._running, self._end, self.deadline = None, None, math.inf
        reported = CycleFailures({}) if self._orphaned else self._nodes.failures(running.cycle)
        if reported is None or not end.is_here:
            return
        place = self._workers.placement
        is_here = place is not None and place.cycle == running.cycle
        hosts = {member.node: reported.hosts.get(member.node) for member in running.members}
        ranks = {
            member.first_rank + number: hosts[member.node]
            for member in running.members
            for number in range(member.workers)
        }
        kernel = {self._host: self.records()} if is_here else {}
        for node in hosts.keys() & reported.records.keys():
            host = hosts[node] or f"node {node}"
            kernel[host] = tuple(dict.fromkeys([*kernel.get(host, ()), *reported.records[node]]))
        output = self._workers.output() if is_here else {}
        own = self._failures.values() if is_here else ()
        failures = _failures(end.reason, reported, self._host, own, lost=self._lost) if end.reason else ()
        is_at_limit = -BEFORE_LIMIT < time.time() - self._time_limit < AFTER_LIMIT
        stopped_by = end.stopped_by
        if stopped_by and not self._ends_job and not is_at_limit:
            failures, stopped_by = (*failures, (self._host, f"{LEFT} {stopped_by}")), ""
        is_fresh = end.at < self._hang_judged_at + HANG_TIMEOUT
        ended_by_hang = is_fresh or any(HUNG in text for _, text in failures)
        self._collected.append(
            CycleEvidence(
                running.cycle, self._began, ranks | dict.fromkeys(output, self._host), failures,
                output, self._cycle_log.path if is_here else "", self._cycle_log.begins_at, self._events,
                self._hang if ended_by_hang else None, kernel, stopped_by, is_at_limit,
                is_retried=not end.reason.endswith(NOT_RETRIED),
            )
        )  # fmt: skip

    def _give(self, evidence: CycleEvidence) -> None:
        """Read the logs, make the verdict and say it; in a thread."""
        found = judged(evidence)
        cause = "unknown cause" if found.failure == "unknown" else found.failure
        who = f"node {found.host}" if found.host else "no rank named"
        if found.rank is not None:
            who = f"rank {found.rank}" + (f" on {found.host}" if found.host else "")
        first = next(iter(found.evidence), None)
        see = f"; see {first.file}:{first.line}" if first is not None and os.path.isabs(first.file) else ""
        if found.action.value == STOP and says_stop_by_reports(evidence, found.failure):
            self._stops.add(evidence.cycle)
        self._history.judged(evidence.cycle, found.sentence, found.as_json())
        log.warning(
            "verdict of cycle %d: %s, %s; action %s, confidence %.2f%s", evidence.cycle, cause, who, found.action.value,
            found.confidence, see, extra={} if found.rank is None else {"rank": found.rank},
        )  # fmt: skip


def time_limit(environ: Mapping[str, str]) -> float:
    """Return when Slurm ends the job, wall seconds; `inf` where that is not known."""
    found = count_in(environ.get("SLURM_JOB_END_TIME", ""))
    return math.inf if found < 0 else float(found)


def _failures(
    reason: str, reported: CycleFailures, host: str, own: Iterable[str], *, lost: Mapping[int, str]
) -> tuple[tuple[str | None, str], ...]:  # fmt: skip
    """Return node and text of each failure, in order; what the coordinator has decided by is first if nobody says it.

    Args:
        reason: that of the decision, `<node>: <text>`; of no node, where that is "".
        reported: what the nodes have reported.
        host: this node.
        own: what this launcher has logged, of which it has reported the first one only.
        lost: why each node that is lost is.
    """
    found: list[tuple[str | None, str]] = [(reported.hosts.get(node), text) for node, text in reported.reports]
    texts = {text for _, text in found}
    found += [(host, text) for text in own if text not in texts]
    found += [(reported.hosts.get(node), why) for node, why in lost.items() if why not in reason]
    if not any(text in reason for _, text in found):
        who, _, text = reason.partition(": ")
        found.insert(0, (who or None, text) if text else (None, reason))
    return tuple(found)


def says_stop_by_reports(evidence: CycleEvidence, failure: str) -> bool:
    """Return whether the first report of the launchers alone, without a log, names this class, and says to stop.

    It counts where a worker has failed with an exit code, by the exception that it has ended with: not by one that it
    has printed before, nor by what another rank or node has failed with since.
    """
    from nvrx_core.attribution.cycle import CycleReport, FailureReport, verdict_of_cycle

    host, text = next(iter(evidence.failures), (None, ""))
    end = WorkerReport.parse(text)
    if end is None or end.code is None or end.is_printed or end.hung or any(each in text for each in NO_STOP):
        return False
    found = verdict_of_cycle(CycleReport(evidence.ranks, (FailureReport(host, text),), hang=evidence.hang))
    return found.action.value == STOP and found.failure == failure


def judged(evidence: CycleEvidence) -> attribution.Verdict:
    """Return the verdict of a cycle; reads the ends of its logs."""
    from nvrx_core.attribution.cycle import CycleReport, FailureReport, verdict_of_cycle
    from nvrx_core.attribution.reading import last_lines, open_faults

    logs, events = dict[tuple[int | None, str], tuple[str, ...]](), list[str]()
    whole = _end(evidence.log, MAX_CYCLE_LOG, evidence.begins_at)
    logs[None, _name(evidence.log, whole, MAX_CYCLE_LOG)] = last_lines(whole, MAX_CYCLE_LOG)
    for rank, output in evidence.output.items():
        tail = output.tail.rstrip()
        if tail.rpartition(b"\n")[2] not in whole:  # not everything is written yet
            logs[rank, f"output of rank {rank}"] = last_lines(output.tail, MAX_OUTPUT)
        for file in output.files:
            end = _end(file, MAX_OUTPUT)
            logs[rank, _name(file, end, MAX_OUTPUT)] = last_lines(end, MAX_OUTPUT)
        if evidence.events is not None:
            events += open_faults(Path(evidence.events, file_name(rank)), evidence.began)
    failures = tuple(FailureReport(host, text) for host, text in evidence.failures)
    report = CycleReport(
        evidence.ranks, failures, evidence.kernel, events=tuple(events), logs=logs, hang=evidence.hang,
        stopped_by=evidence.stopped_by, is_at_limit=evidence.is_at_limit, is_retried=evidence.is_retried,
    )  # fmt: skip
    return verdict_of_cycle(report)


def _name(file: str, end: bytes, size: int) -> str:
    """Return the name of what was read of a file; the numbers of its lines are those of the file if that is all."""
    return file if len(end) < size else f"the end of {file}"


def _end(file: str, size: int, begin: int = 0) -> bytes:
    """Return the last bytes of a file, not those before `begin`; b"" of one that cannot be read."""
    try:
        with open(file, "rb") as stream:
            stream.seek(max(begin, stream.seek(0, os.SEEK_END) - size))
            return stream.read(size)
    except OSError:
        return b""
