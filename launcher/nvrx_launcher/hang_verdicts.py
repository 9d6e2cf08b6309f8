"""The verdict on a hang under rank monitors: who is to blame, in one line on all nodes, before a rank is ended.

    a monitor is about to end its rank; its launcher asks the coordinator, and its own monitors
      --HANG_SUSPECTED--> all launchers ask their monitors, and write the evidence of their node to the store
      --HANG_EVIDENCE, of the last one--> the coordinator's launcher reads that of all nodes, and judges
      --HANG_JUDGED--> all launchers write the line; the monitor ends its rank

Whatever is missing when the time is over is stated. A launcher that is not told the verdict in time gives one by its
own ranks. The monitor does not wait for longer than a second, and who is ended does not depend on the verdict.
"""

from __future__ import annotations

import logging
import math
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from nvrx_core.fault.hang_report import HangReport
from nvrx_core.fault.hang_verdict import HangOutcome, HangVerdict, judge, with_peers_stalled
from nvrx_launcher.rendezvous.hang_relay import ONE_HANG
from nvrx_launcher.rendezvous.messages import Decision, DecisionKind, Member, MessageKind

__all__ = ["HangVerdicts"]

log = logging.getLogger("nvrx_launcher")
RANKS_TIMEOUT: Final = 0.45
"""Seconds for the ranks of a node. These times are one budget: a monitor ends its rank a second after its report."""
COLLECT_TIMEOUT: Final = 0.52
"""Seconds after which the coordinator's launcher reads what nodes have written, though not all have."""
JUDGE_TIMEOUT: Final = 0.8
"""Seconds after which it judges by its own ranks: the store has not answered. 8,000 reports take 0.25 s of a core."""
VERDICT_TIMEOUT: Final = 0.92
"""Seconds after which a launcher that is not told the verdict gives one by its own ranks."""
EVIDENCE_BYTES: Final = 1 << 23
"""The evidence of a job, of which each node has its share: 8 KiB of 1,000 nodes."""
EVIDENCE_BYTES_OF_NODE: Final = 1 << 18


class EvidenceOfRanks(Protocol):
    """The monitored ranks of this node (`NodeEvidence`)."""

    def ask(self, answer: Callable[[Mapping[int, HangReport]], object], *, within: float, now: float) -> None:
        """Answer with the reports that come within seconds, by local rank."""


class EvidenceExchange(Protocol):
    """The connection to the other nodes (`Coordination`)."""

    @property
    def runs_coordinator(self) -> bool:
        """Whether this launcher judges."""

    def tell(self, kind: MessageKind, cycle: int, reason: str) -> None:
        """Send a message to the coordinator."""

    def share_evidence(self, cycle: int, hang: str, text: str, nodes: int) -> None:
        """Write the evidence of this node on a hang; the last one of so many nodes tells the coordinator."""

    def gather_evidence(
        self,
        nodes: Sequence[int],
        judged: Callable[[Sequence[bytes]], HangVerdict | None],
        answer: Callable[[HangVerdict | None], object],
    ) -> None:
        """Answer with what `judged`, which may run in another thread, returns for the evidence of nodes."""


class HangEvents(Protocol):
    """The event file."""

    def hang_judged(self, cycle: int, verdict: HangVerdict) -> None:
        """Record who was to blame for a hang."""


class HangsOfCycles(Protocol):
    """The verdicts of cycles."""

    def hang_judged(self, cycle: int, verdict: HangVerdict) -> None:
        """Take the verdict on a hang."""


class HangVerdicts:
    """Gives the verdicts on the hangs of a job.

    Args:
        ranks: those of this node.
        nodes: the connection to the other nodes.
        events: gets the verdicts that this launcher gives.
        cycles: gets all of them.
        is_on: verdicts are given; else a rank is ended at once.

    Attributes:
        deadline: when `tick` is due, monotonic seconds.
    """

    def __init__(
        self, ranks: EvidenceOfRanks, nodes: EvidenceExchange, events: HangEvents, cycles: HangsOfCycles, *,
        is_on: bool = True,
    ) -> None:  # fmt: skip
        self._is_on = is_on
        self._ranks, self._nodes, self._events, self._cycles = ranks, nodes, events, cycles
        self._host, self._node = socket.gethostname(), -1
        self._cycle, self._members, self._lost = -1, tuple[Member, ...](), set[int]()
        self._waiting = list[Callable[[], object]]()
        self._said_at = self._asked_at = self._own_at = -math.inf
        self._own: dict[int, HangReport] | None = None
        self._hang, self._has_told = "", False
        self._gives_up_at = self._reads_at = self._judges_at = math.inf

    @property
    def deadline(self) -> float:
        """When `tick` is due."""
        return min(self._gives_up_at, self._reads_at, self._judges_at)

    def joined(self, node: int) -> None:
        """Take this node's number."""
        self._node = node

    def decided(self, decision: Decision, *, now: float) -> None:
        """Handle a decision for all nodes."""
        match decision.verdict:
            case DecisionKind.RUN if self._is_on:
                self._end()
                self._cycle, self._members, self._lost = decision.cycle, decision.members, set()
                self._said_at = -math.inf
            case DecisionKind.STOP | DecisionKind.END:
                self._end()
                self._cycle = -1
            case DecisionKind.LOST:
                self._lost.add(decision.node)
                if self._reads_at < math.inf and self._hang:  # perhaps all others have written
                    self._gather(is_last=False)
            case DecisionKind.HANG_SUSPECTED if decision.cycle == self._cycle and self._is_news(now):
                self._asked_at, self._hang, self._has_told = now, decision.reason, False
                if self._nodes.runs_coordinator:
                    self._expect_evidence(now)
                self._share_evidence(now)
            case DecisionKind.HANG_JUDGED if decision.cycle == self._cycle and now - self._said_at >= ONE_HANG:
                with suppress(ValueError):
                    self._say(HangVerdict.decode(decision.reason), now, is_own=decision.node == self._node)
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
            if self._nodes.runs_coordinator:
                self._expect_evidence(now)
            self._ask(now)
            if self._is_news(now):  # else another node has asked
                self._nodes.tell(MessageKind.HANG_SUSPECTED, self._cycle, f"{self._cycle}:{self._node}:{now:.6f}")

    def evidence_received(self, cycle: int, hang: str, *, now: float) -> None:
        """Handle that all nodes have written their evidence on a hang, at the coordinator's launcher."""
        if cycle == self._cycle and now - self._said_at >= ONE_HANG and hang:
            self._hang = hang
            self._expect_evidence(now)
            self._gather(is_last=False)

    def tick(self, *, now: float) -> None:
        """Give the verdicts that cannot wait."""
        if now >= self._reads_at:
            self._reads_at = math.inf
            if self._hang:
                self._gather(is_last=True)
        if now >= self._judges_at:
            self._tell(self._own_verdict())
        if now >= self._gives_up_at:
            self._say(self._own_verdict(), now, is_own=True)

    def _is_news(self, now: float) -> bool:
        """Whether this is not the hang that this launcher gives evidence of already."""
        return now - max(self._asked_at, self._said_at) >= ONE_HANG

    def _expect_evidence(self, now: float) -> None:
        """Begin to wait for the evidence of all nodes."""
        if not self._has_told and self._judges_at == math.inf:
            self._reads_at, self._judges_at = now + COLLECT_TIMEOUT, now + JUDGE_TIMEOUT

    def _ask(self, now: float) -> None:
        """Ask the ranks of this node, unless they are being asked, or have just been."""
        if now - self._own_at < ONE_HANG:
            return
        self._own, self._own_at, cycle = None, now, self._cycle
        self._ranks.ask(lambda reports: self._take_own(cycle, reports, now), within=RANKS_TIMEOUT, now=now)

    def _take_own(self, cycle: int, reports: Mapping[int, HangReport], now: float) -> None:
        """Take the reports of the ranks of this node, which says who they are."""
        if (cycle, now) != (self._cycle, self._own_at):  # too late
            return
        first = next((member.first_rank for member in self._members if member.node == self._node), 0)
        self._own = {
            first + local_rank: report.placed(first + local_rank, self._host) for local_rank, report in reports.items()
        }
        if self._hang:
            self._share_evidence(now)

    def _share_evidence(self, now: float) -> None:
        """Write the evidence of this node, once it is there; a spare has none."""
        nodes = {member.node for member in self._members}
        if self._node not in nodes:
            return
        if now - self._own_at >= ONE_HANG:
            self._ask(now)
        elif self._own is not None:
            text = _encoded(self._hang, self._own.values(), most=_share_of(nodes))
            self._nodes.share_evidence(self._cycle, self._hang, text, len(nodes - self._lost))

    def _gather(self, *, is_last: bool) -> None:
        """Judge by what the nodes have written; unless this is the last time, only if all have."""
        cycle, hang = self._cycle, self._hang
        members, lost = self._members, frozenset(self._lost)
        self._nodes.gather_evidence(
            [member.node for member in members],
            partial(_judged, hang, members, lost, is_last=is_last),
            lambda verdict: self._gathered(cycle, hang, verdict),
        )

    def _gathered(self, cycle: int, hang: str, verdict: HangVerdict | None) -> None:
        if verdict is not None and (cycle, hang) == (self._cycle, self._hang) and self._judges_at < math.inf:
            self._tell(verdict)

    def _tell(self, verdict: HangVerdict) -> None:
        """Tell all nodes the verdict, once."""
        self._has_told, self._reads_at, self._judges_at = True, math.inf, math.inf
        self._nodes.tell(MessageKind.HANG_JUDGED, self._cycle, verdict.encode())

    def _own_verdict(self) -> HangVerdict:
        return _verdict((self._own or {}).values(), self._members)

    def _say(self, verdict: HangVerdict, now: float, *, is_own: bool) -> None:
        """Write the line: as an error where the verdict was given, and where the culprit is."""
        self._said_at = now
        here = next((member for member in self._members if member.node == self._node), Member(-1, 0, 0))
        is_here = any(0 <= rank - here.first_rank < here.workers for rank in verdict.culprits)
        log.log(logging.ERROR if is_own or is_here else logging.INFO, "hang: %s", verdict.sentence)
        if is_own:
            self._events.hang_judged(self._cycle, verdict)
        self._cycles.hang_judged(self._cycle, verdict)
        self._end()

    def _end(self) -> None:
        """Forget the hang, and let the monitors go on."""
        waiting, self._waiting = self._waiting, []
        self._own, self._own_at, self._hang, self._has_told = None, -math.inf, "", False
        self._asked_at, self._gives_up_at = -math.inf, math.inf
        self._reads_at = self._judges_at = math.inf
        for answer in waiting:
            answer()


def _share_of(nodes: set[int]) -> int:
    """Return how many bytes one of these nodes may write."""
    return min(EVIDENCE_BYTES_OF_NODE, EVIDENCE_BYTES // len(nodes))


def _encoded(hang: str, reports: Iterable[HangReport], *, most: int) -> str:
    """Return the evidence on a hang, in at most so many bytes: if they do not suffice, without the longest reports."""
    lines, left = [hang], most - len(hang)
    for line in sorted((report.encode() for report in reports), key=len):
        left -= len(line.encode()) + 1
        if left >= 0:
            lines.append(line)
    return "\n".join(lines)


def _judged(
    hang: str, members: Sequence[Member], lost: frozenset[int], texts: Sequence[bytes], *, is_last: bool
) -> HangVerdict | None:
    """Return the verdict by what nodes have written.

    None if the store has not got that of all, or if some have not written yet, and it is not the last time.
    """
    if not texts:
        return None
    most = _share_of({member.node for member in members})
    reports, missing = list[HangReport](), {member.node for member in members} - lost
    for member, text in zip(members, texts, strict=False):
        first, *lines = text[: most + 1].split(b"\n", member.workers) if len(text) <= most else [b""]
        if first != hang.encode():  # of an earlier hang
            continue
        missing.discard(member.node)
        for line in lines:
            with suppress(Exception):  # boundary, as below
                report = HangReport.decode(line)
                if 0 <= report.initial_rank - member.first_rank < member.workers:
                    reports.append(report)
    return _verdict(reports, members) if is_last or not missing else None


def _verdict(reports: Iterable[HangReport], members: Iterable[Member]) -> HangVerdict:
    told = list(reports)
    ranks = Counter(report.rank for report in told)
    found = {report.rank: report for report in told if ranks[report.rank] == 1}  # else it is not known whose
    world = {*range(sum(member.workers for member in members)), *found}
    try:
        return judge(with_peers_stalled(found), world, may_name_missing=False)
    except Exception:  # boundary: what ranks report must not end a job
        log.warning("the evidence of a hang cannot be judged", exc_info=True)
        return HangVerdict(HangOutcome.UNKNOWN, (), (), 0.0, "who is to blame is not known")
