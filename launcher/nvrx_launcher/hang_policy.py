"""The policy of the verdicts on hangs under rank monitors, at the launcher of one node. Pure.

    a monitor is about to end its rank: `suspected`
      --AskRanks--> `reported`; --HANG_SUSPECTED--> all launchers: `decided`, AskRanks, `reported`, ShareEvidence
      --HANG_EVIDENCE, of the last one--> the coordinator's launcher: `evidence_received`, GatherEvidence, `gathered`
      --HANG_JUDGED--> all launchers: `decided`, GiveVerdict, AnswerMonitors

Whatever is missing when the time is over is stated. A launcher that is not told the verdict in time gives one by its
own ranks, and says so. No monitor waits for longer than `OWN_VERDICT_TIMEOUT`, and who is ended does not depend on the
verdict.
"""

from __future__ import annotations

import math
import traceback
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePath
from typing import Final

from nvrx_core.fault.hang_report import HangReport
from nvrx_core.fault.hang_verdict import MAX_SENTENCE, HangOutcome, HangVerdict, judge, with_peers_stalled
from nvrx_core.values import value
from nvrx_launcher.rendezvous.hang_relay import ONE_HANG
from nvrx_launcher.rendezvous.messages import Decision, DecisionKind, Member, MessageKind

__all__ = [
    "AnswerMonitors",
    "AskRanks",
    "GatherEvidence",
    "GiveVerdict",
    "HangAction",
    "HangPolicy",
    "ShareEvidence",
    "TellCoordinator",
]

RANKS_TIMEOUT: Final = 0.45
"""Seconds for the ranks of a node. These times are one budget: a monitor ends its rank a second after its report."""
COLLECT_TIMEOUT: Final = 0.52
"""Seconds after which the coordinator's launcher reads what nodes have written, though not all have."""
JUDGE_TIMEOUT: Final = 0.8
"""Seconds after which it judges by its own ranks: the store has not answered. 8,000 reports take 0.25 s of a core."""
OWN_VERDICT_TIMEOUT: Final = 0.92
"""Seconds after which a launcher that is not told the verdict gives one by its own ranks."""
EVIDENCE_BYTES: Final = 1 << 23
"""The evidence of a job, of which each node has its share: 8 KiB of 1,000 nodes."""
EVIDENCE_BYTES_OF_NODE: Final = 1 << 18


@value
class AskRanks:
    """Ask the ranks of this node where they are; answer with `reported`, by this number, at this time at the latest."""

    number: int
    until: float


@value
class TellCoordinator:
    """Send the coordinator a message."""

    kind: MessageKind
    cycle: int
    reason: str


@value
class ShareEvidence:
    """Write the evidence of this node on a hang; the last one of so many nodes tells the coordinator."""

    cycle: int
    hang: str
    text: str
    nodes: int


@value
class GatherEvidence:
    """Read what these nodes have written of a hang, and answer with `gathered`.

    Attributes:
        cycle: the cycle.
        hang: the hang.
        members: the nodes that take part.
        lost: those of them that are not waited for.
        is_last: the verdict is given also if some have not written yet.
    """

    cycle: int
    hang: str
    members: tuple[Member, ...]
    lost: frozenset[int]
    is_last: bool

    def judged(self, texts: Sequence[bytes]) -> HangVerdict | None:
        """Return the verdict by what the nodes have written, in any thread.

        None if the store has not got that of all, or if some have not written yet, and it is not the last time.

        Args:
            texts: the evidence of each member, in their order; nothing if the store has not got that of all.
        """
        if not texts:
            return None
        most = _share_of({member.node for member in self.members})
        reports, missing = list[HangReport](), {member.node for member in self.members} - self.lost
        for member, text in zip(self.members, texts, strict=False):
            first, *lines = text.split(b"\n", member.workers) if len(text) <= most else [b""]
            if first != self.hang.encode():  # of an earlier hang
                continue
            missing.discard(member.node)
            for line in lines:
                with suppress(Exception):  # boundary: what ranks report must not end a job
                    report = HangReport.decode(line)
                    if 0 <= report.initial_rank - member.first_rank < member.workers:
                        reports.append(report)
        return _verdict(reports, self.members) if self.is_last or not missing else None


@value
class GiveVerdict:
    """Write the line.

    Attributes:
        cycle: the cycle that hangs.
        verdict: who is to blame.
        is_own: this launcher has judged, and writes the event.
        is_warning: the line is a warning here; information elsewhere.
        reason: why it is given now.
    """

    cycle: int
    verdict: HangVerdict
    is_own: bool
    is_warning: bool
    reason: str


@value
class AnswerMonitors:
    """Let all monitors that wait end their ranks."""

    reason: str


HangAction = AskRanks | TellCoordinator | ShareEvidence | GatherEvidence | GiveVerdict | AnswerMonitors


class HangPolicy:
    """Decides what becomes of a suspected hang at one launcher.

    Args:
        host: the name of this node's host.

    Attributes:
        deadline: when `tick` is due, monotonic seconds.
    """

    def __init__(self, host: str) -> None:
        self._host, self._node = host, -1
        self._cycle, self._members, self._lost = -1, tuple[Member, ...](), set[int]()
        self._said_at = self._named_at = self._asked_at = -math.inf
        self._question = 0
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

    def decided(self, decision: Decision, *, judges: bool, now: float) -> tuple[HangAction, ...]:
        """Handle a decision for all nodes.

        Args:
            decision: the decision.
            judges: this launcher runs the coordinator.
            now: monotonic seconds.
        """
        match decision.kind:
            case DecisionKind.RUN:
                ended = self._end(f"cycle {decision.cycle} begins")
                self._cycle, self._members, self._lost = decision.cycle, decision.members, set()
                self._said_at = -math.inf
                return ended
            case DecisionKind.STOP | DecisionKind.END:
                self._cycle = -1
                return self._end(decision.reason)
            case DecisionKind.LOST:
                self._lost.add(decision.node)
                is_awaited = self._reads_at < math.inf and self._hang != ""
                return self._gather(is_last=False) if is_awaited else ()  # perhaps all others have written
            case DecisionKind.HANG_SUSPECTED if decision.cycle == self._cycle and self._is_news(now):
                self._named_at, self._hang, self._has_told = now, decision.reason, False
                if judges:
                    self._expect_evidence(now)
                return self._give_evidence(now)
            case DecisionKind.HANG_JUDGED if decision.cycle == self._cycle and now - self._said_at >= ONE_HANG:
                with suppress(ValueError):
                    verdict = HangVerdict.decode(decision.reason)
                    is_own = decision.node == self._node
                    return self._give(verdict, now, is_own=is_own, reason=f"node {decision.node} has judged")
        return ()

    def suspected(self, *, judges: bool, now: float) -> tuple[HangAction, ...]:
        """Handle that a monitor is about to end its rank, and waits until that is answered.

        A verdict holds for a while: a rank that is ended soon after one belongs to the same hang.

        Args:
            judges: this launcher runs the coordinator.
            now: monotonic seconds.
        """
        if self._cycle < 0:
            return (AnswerMonitors("no cycle runs"),)
        if now - self._said_at < ONE_HANG:
            return (AnswerMonitors(f"there has been a verdict in the last {ONE_HANG:g} s"),)
        if self._gives_up_at < math.inf:  # another monitor waits
            return ()
        self._gives_up_at = now + OWN_VERDICT_TIMEOUT
        if judges:
            self._expect_evidence(now)
        asked = self._ask(now)
        if not self._is_news(now):  # another node has asked
            return asked
        hang = f"{self._cycle}:{self._node}:{now:.6f}"
        return (*asked, TellCoordinator(MessageKind.HANG_SUSPECTED, self._cycle, hang))

    def reported(self, number: int, reports: Mapping[int, HangReport]) -> tuple[HangAction, ...]:
        """Handle the reports of the ranks of this node, by local rank; the launcher says who they are.

        Args:
            number: of the question.
            reports: those that have come in time.
        """
        if number != self._question or self._asked_at == -math.inf:  # too late
            return ()
        first = next((member.first_rank for member in self._members if member.node == self._node), 0)
        self._own = {
            first + local_rank: report.placed(first + local_rank, self._host) for local_rank, report in reports.items()
        }
        return self._share() if self._hang else ()

    def evidence_received(self, cycle: int, hang: str, *, now: float) -> tuple[HangAction, ...]:
        """Handle that all nodes have written their evidence on a hang, at the coordinator's launcher."""
        if cycle != self._cycle or now - self._said_at < ONE_HANG or not hang:
            return ()
        self._hang = hang
        self._expect_evidence(now)
        return self._gather(is_last=False)

    def gathered(self, asked: GatherEvidence, verdict: HangVerdict | None) -> tuple[HangAction, ...]:
        """Handle what was read, unless it is of another hang, or there is a verdict meanwhile."""
        is_awaited = (asked.cycle, asked.hang) == (self._cycle, self._hang) and self._judges_at < math.inf
        return () if verdict is None or not is_awaited else self._tell(verdict)

    def tick(self, *, now: float) -> tuple[HangAction, ...]:
        """Give the verdicts that cannot wait."""
        actions = list[HangAction]()
        if now >= self._reads_at:
            self._reads_at = math.inf
            actions += self._gather(is_last=True) if self._hang else ()
        if now >= self._judges_at:
            actions += self._tell(self._own_verdict())
        if now >= self._gives_up_at:
            why = f"none was told within {OWN_VERDICT_TIMEOUT:g} s"
            actions += self._give(self._own_verdict(), now, is_own=True, is_alone=True, reason=why)
        return tuple(actions)

    def _is_news(self, now: float) -> bool:
        """Whether this is not the hang that this launcher gives evidence of already."""
        return now - max(self._named_at, self._said_at) >= ONE_HANG

    def _expect_evidence(self, now: float) -> None:
        """Begin to wait for the evidence of all nodes."""
        if not self._has_told and self._judges_at == math.inf:
            self._reads_at, self._judges_at = now + COLLECT_TIMEOUT, now + JUDGE_TIMEOUT

    def _ask(self, now: float) -> tuple[HangAction, ...]:
        """Ask the ranks of this node, unless they are being asked, or have just been."""
        if now - self._asked_at < ONE_HANG:
            return ()
        self._own, self._asked_at = None, now
        self._question += 1
        return (AskRanks(self._question, now + RANKS_TIMEOUT),)

    def _give_evidence(self, now: float) -> tuple[HangAction, ...]:
        """Write the evidence of this node, for which its ranks are asked unless they have just been."""
        if now - self._asked_at >= ONE_HANG and self._node in {member.node for member in self._members}:
            return self._ask(now)
        return self._share()

    def _share(self) -> tuple[HangAction, ...]:
        """Write the evidence of this node, if it is there; a spare has none."""
        nodes = {member.node for member in self._members}
        if self._own is None or self._node not in nodes:
            return ()
        text = _encoded(self._hang, self._own.values(), most=_share_of(nodes))
        return (ShareEvidence(self._cycle, self._hang, text, len(nodes - self._lost)),)

    def _gather(self, *, is_last: bool) -> tuple[HangAction, ...]:
        """Judge by what the nodes have written; unless this is the last time, only if all have."""
        return (GatherEvidence(self._cycle, self._hang, self._members, frozenset(self._lost), is_last),)

    def _tell(self, verdict: HangVerdict) -> tuple[HangAction, ...]:
        """Tell all nodes the verdict, once."""
        self._has_told, self._reads_at, self._judges_at = True, math.inf, math.inf
        return (TellCoordinator(MessageKind.HANG_JUDGED, self._cycle, verdict.encode()),)

    def _own_verdict(self) -> HangVerdict:
        """Return the verdict by the ranks of this node, which says so in a job of several nodes."""
        verdict = _verdict((self._own or {}).values(), self._members)
        if len(self._members) == 1:
            return verdict
        by = f"; by the ranks of {self._host} alone"
        return replace(verdict, sentence=f"{verdict.sentence[: MAX_SENTENCE - len(by)]}{by}")

    def _give(
        self, verdict: HangVerdict, now: float, *, is_own: bool, reason: str, is_alone: bool = False
    ) -> tuple[HangAction, ...]:
        """Write the line, as a warning where the verdict was given and where the culprit is: its end will be the error.

        Where each node gives one by its own ranks, those that cannot name anybody are no warning.
        """
        self._said_at = now
        here = next((member for member in self._members if member.node == self._node), Member(-1, 0, 0))
        is_here = any(0 <= rank - here.first_rank < here.workers for rank in verdict.culprits)
        is_one_of_many = is_alone and len(self._members) > 1
        is_warning = is_here or (is_own and not is_one_of_many)
        given = GiveVerdict(self._cycle, verdict, is_own, is_warning, reason)
        return (given, *self._end("the verdict is given"))

    def _end(self, reason: str) -> tuple[HangAction, ...]:
        """Forget the hang, and let the monitors go on."""
        is_awaited = self._gives_up_at < math.inf
        self._own, self._hang, self._has_told = None, "", False
        self._asked_at = self._named_at = -math.inf
        self._gives_up_at = self._reads_at = self._judges_at = math.inf
        return (AnswerMonitors(reason),) if is_awaited else ()


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


def _verdict(reports: Iterable[HangReport], members: Iterable[Member]) -> HangVerdict:
    told = list(reports)
    ranks = Counter(report.rank for report in told)
    found = {report.rank: report for report in told if ranks[report.rank] == 1}  # else it is not known whose
    world = {*range(sum(member.workers for member in members)), *found}
    try:
        return judge(with_peers_stalled(found), world, may_name_missing=False)
    except Exception as error:  # boundary: what ranks report must not end a job
        at = traceback.extract_tb(error.__traceback__)[-1]
        why = f"the evidence cannot be judged, {type(error).__name__} at {PurePath(at.filename).name}:{at.lineno}"
        return HangVerdict(HangOutcome.UNKNOWN, (), (), 0.0, f"who is to blame is not known: {why}")
