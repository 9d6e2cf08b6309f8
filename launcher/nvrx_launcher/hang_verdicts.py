"""The verdict on a hang under rank monitors: who is to blame, in one line on all nodes, before a rank is ended.

    a monitor is about to end its rank; its launcher asks the coordinator, and its own monitors
      --HANG_SUSPECTED--> all launchers ask their monitors --HANG_EVIDENCE--> the coordinator's launcher judges
      --HANG_JUDGED--> all launchers write the line; the monitor ends its rank

Whatever is missing when the time is over is stated. A launcher that is not told the verdict in time gives one by its
own ranks. The monitor does not wait for longer than a second, and who is ended does not depend on the verdict.
"""

from __future__ import annotations

import logging
import math
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, Protocol

from nvrx_core.fault.hang_report import HangReport
from nvrx_core.fault.hang_verdict import HangVerdict, judge, with_peers_stalled
from nvrx_launcher.rendezvous.failure_reports import CycleFailures
from nvrx_launcher.rendezvous.hang_relay import ONE_HANG
from nvrx_launcher.rendezvous.messages import Decision, DecisionKind, Member, MessageKind

__all__ = ["HangVerdicts"]

log = logging.getLogger("nvrx_launcher")
COLLECT_TIMEOUT: Final = 0.6
"""Seconds in which the coordinator's launcher has to hear from all nodes."""
VERDICT_TIMEOUT: Final = 0.85
"""Seconds after which a launcher gives a verdict by its own ranks: its monitors wait for a second."""


class Ranks(Protocol):
    """The monitored ranks of this node (`NodeEvidence`)."""

    def ask(self, answer: Callable[[Mapping[int, HangReport]], object], *, now: float) -> None:
        """Answer with the reports that come in time, by local rank."""


class Nodes(Protocol):
    """The connection to the other nodes (`Coordination`)."""

    def tell(self, kind: MessageKind, cycle: int, reason: str) -> None:
        """Send a message to the coordinator."""

    def failures(self, cycle: int) -> CycleFailures | None:
        """Return None where another launcher runs the coordinator."""


class HangEvents(Protocol):
    """The event file."""

    def hang_judged(self, cycle: int, verdict: HangVerdict) -> None:
        """Record who was to blame for a hang."""


class CycleVerdicts(Protocol):
    """The verdicts of cycles."""

    def hang_judged(self, cycle: int, line: str) -> None:
        """Take the line of a hang."""


class HangVerdicts:
    """Gives the verdicts on the hangs of a job.

    Args:
        ranks: those of this node.
        nodes: the connection to the other nodes.
        events: gets the verdicts.
        cycles: gets them, too.

    Attributes:
        deadline: when `tick` is due, monotonic seconds.
    """

    def __init__(self, ranks: Ranks, nodes: Nodes, events: HangEvents, cycles: CycleVerdicts) -> None:
        self._ranks, self._nodes, self._events, self._cycles = ranks, nodes, events, cycles
        self._host, self._node = socket.gethostname(), -1
        self._cycle, self._members = -1, tuple[Member, ...]()
        self._waiting = list[Callable[[], object]]()
        self._said_at = self._asked_at = self._own_at = -math.inf
        self._own: dict[int, HangReport] | None = None
        self._collected = dict[int, dict[int, HangReport]]()
        self._gives_up_at = self._judges_at = math.inf

    @property
    def deadline(self) -> float:
        """When `tick` is due."""
        return min(self._gives_up_at, self._judges_at)

    def joined(self, node: int) -> None:
        """Take this node's number."""
        self._node = node

    def decided(self, decision: Decision, *, now: float) -> None:
        """Handle a decision for all nodes."""
        match decision.verdict:
            case DecisionKind.RUN:
                self._end()
                self._cycle, self._members = decision.cycle, decision.members
                self._said_at = -math.inf
            case DecisionKind.STOP | DecisionKind.END:
                self._end()
                self._cycle = -1
            case DecisionKind.HANG_SUSPECTED if decision.cycle == self._cycle and self._is_news(now):
                self._asked_at = now
                if self._nodes.failures(self._cycle) is not None:
                    self._judges_at = min(self._judges_at, now + COLLECT_TIMEOUT)
                self._tell_evidence(now)
            case DecisionKind.HANG_JUDGED if decision.cycle == self._cycle and now - self._said_at >= ONE_HANG:
                with suppress(ValueError):
                    self._say(HangVerdict.decode(decision.reason), now)
            case _:
                pass

    def suspected(self, answer: Callable[[], object], *, now: float) -> None:
        """Handle that a monitor is about to end its rank; answer when the verdict is given.

        A verdict holds for a while: a rank that is ended soon after one belongs to the same hang.
        """
        if self._cycle < 0 or now - self._said_at < ONE_HANG:
            answer()
            return
        self._waiting.append(answer)
        if self._gives_up_at == math.inf:
            self._gives_up_at = now + VERDICT_TIMEOUT
            self._ask(now)
            if self._is_news(now):  # else another node has asked
                self._nodes.tell(MessageKind.HANG_SUSPECTED, self._cycle, "")

    def evidence_received(self, node: int, cycle: int, text: str, *, now: float) -> None:
        """Take the evidence of a node, at the coordinator's launcher; judge when that of all nodes is there."""
        if cycle != self._cycle or now - self._said_at < ONE_HANG:
            return
        reports = dict[int, HangReport]()
        for line in filter(None, text.split("\n")):
            with suppress(ValueError):
                report = HangReport.decode(line)
                reports[report.initial_rank] = report
        self._collected[node] = reports
        self._judges_at = min(self._judges_at, now + COLLECT_TIMEOUT)
        if self._collected.keys() >= {member.node for member in self._members}:
            self._judge()

    def tick(self, *, now: float) -> None:
        """Give the verdicts that cannot wait."""
        if now >= self._judges_at:
            self._judge()
        if now >= self._gives_up_at:
            self._say(self._verdict({**self._collected, self._node: self._own or {}}), now)

    def _is_news(self, now: float) -> bool:
        """Whether this is not the hang that this launcher gives evidence of already."""
        return now - max(self._asked_at, self._said_at) >= ONE_HANG

    def _ask(self, now: float) -> None:
        """Ask the ranks of this node, unless they are being asked, or have just been."""
        if now - self._own_at < ONE_HANG:
            return
        self._own, self._own_at, cycle = None, now, self._cycle
        self._ranks.ask(lambda reports: self._gathered(cycle, reports, now), now=now)

    def _gathered(self, cycle: int, reports: Mapping[int, HangReport], now: float) -> None:
        """Take the reports of the ranks of this node, which says who they are."""
        if (cycle, now) != (self._cycle, self._own_at):  # too late
            return
        first = next((member.first_rank for member in self._members if member.node == self._node), 0)
        self._own = {
            first + local_rank: report.placed(first + local_rank, self._host) for local_rank, report in reports.items()
        }
        if self._asked_at > -math.inf:
            self._tell_evidence(now)

    def _tell_evidence(self, now: float) -> None:
        """Send the evidence of this node, once it is there; a spare has none."""
        if not any(member.node == self._node for member in self._members):
            return
        if now - self._own_at >= ONE_HANG:
            self._ask(now)
        elif self._own is not None:
            text = "\n".join(report.encode() for report in self._own.values())
            self._nodes.tell(MessageKind.HANG_EVIDENCE, self._cycle, text)

    def _judge(self) -> None:
        """Judge by what there is, for all nodes."""
        verdict, self._collected, self._judges_at = self._verdict(self._collected), {}, math.inf
        self._nodes.tell(MessageKind.HANG_JUDGED, self._cycle, verdict.encode())

    def _verdict(self, case: Mapping[int, Mapping[int, HangReport]]) -> HangVerdict:
        told = [report for found in case.values() for report in found.values()]
        ranks = Counter(report.rank for report in told)
        reports = {report.rank: report for report in told if ranks[report.rank] == 1}  # else it is not known whose
        world = sum(member.workers for member in self._members)
        return judge(with_peers_stalled(reports), {*range(world), *reports}, may_name_missing=False)

    def _say(self, verdict: HangVerdict, now: float) -> None:
        self._said_at = now
        log.error("hang: %s", verdict.sentence)
        self._events.hang_judged(self._cycle, verdict)
        self._cycles.hang_judged(self._cycle, f"hang: {verdict.sentence}")
        self._end()

    def _end(self) -> None:
        """Forget the hang, and let the monitors go on."""
        waiting, self._waiting = self._waiting, []
        self._own, self._own_at, self._collected = None, -math.inf, {}
        self._asked_at, self._gives_up_at, self._judges_at = -math.inf, math.inf, math.inf
        for answer in waiting:
            answer()
