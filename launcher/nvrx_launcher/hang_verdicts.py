"""The verdicts on the hangs of a job, before a rank is ended: carries out what `HangPolicy` decides."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from nvrx_core.fault.hang_report import HangReport
from nvrx_core.fault.hang_verdict import HangVerdict
from nvrx_launcher.hang_policy import (
    AnswerMonitors,
    AskRanks,
    GatherEvidence,
    GiveVerdict,
    HangAction,
    HangPolicy,
    ShareEvidence,
    TellCoordinator,
)
from nvrx_launcher.history import History
from nvrx_launcher.rendezvous.coordination import Coordination
from nvrx_launcher.rendezvous.messages import Decision

__all__ = ["HangVerdicts"]

log = logging.getLogger("nvrx_launcher")


class EvidenceOfRanks(Protocol):
    """The monitored ranks of this node (`NodeEvidence`)."""

    def ask(self, answer: Callable[[Mapping[int, HangReport]], object], *, until: float) -> None:
        """Answer with the reports that come until then, by local rank."""


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
    """

    def __init__(
        self, ranks: EvidenceOfRanks, nodes: Coordination, events: History, cycles: HangsOfCycles, *,
        is_on: bool = True,
    ) -> None:  # fmt: skip
        self._ranks, self._nodes, self._events, self._cycles = ranks, nodes, events, cycles
        self._is_on, self._policy = is_on, HangPolicy(socket.gethostname())
        self._waiting = list[Callable[[], object]]()

    @property
    def deadline(self) -> float:
        """When `tick` is due, monotonic seconds."""
        return self._policy.deadline

    def joined(self, node: int) -> None:
        """Take this node's number."""
        self._policy.joined(node)

    def decided(self, decision: Decision, *, now: float) -> None:
        """Handle a decision for all nodes."""
        if self._is_on:
            self._carry_out(self._policy.decided(decision, judges=self._nodes.runs_coordinator, now=now))

    def suspected(self, answer: Callable[[], object], *, now: float) -> None:
        """Handle that a monitor is about to end its rank; answer when the verdict is given."""
        self._waiting.append(answer)
        self._carry_out(self._policy.suspected(judges=self._nodes.runs_coordinator, now=now))

    def evidence_received(self, cycle: int, hang: str, *, now: float) -> None:
        """Handle that all nodes have written their evidence on a hang, at the coordinator's launcher."""
        self._carry_out(self._policy.evidence_received(cycle, hang, now=now))

    def tick(self, *, now: float) -> None:
        """Give the verdicts that cannot wait."""
        self._carry_out(self._policy.tick(now=now))

    def _carry_out(self, actions: Sequence[HangAction]) -> None:
        for action in actions:
            match action:
                case AskRanks(number, until):
                    self._ranks.ask(partial(self._reported, number), until=until)
                case TellCoordinator(kind, cycle, reason):
                    self._nodes.tell(kind, cycle, reason)
                case ShareEvidence(cycle, hang, text, nodes):
                    self._nodes.share_evidence(cycle, hang, text, nodes)
                case GatherEvidence(members=members):
                    nodes_asked = [member.node for member in members]
                    self._nodes.gather_evidence(nodes_asked, action.judged, partial(self._gathered, action))
                case GiveVerdict(cycle, verdict):
                    level = logging.WARNING if action.is_warning else logging.INFO
                    log.log(level, "hang: %s", verdict.sentence)
                    if action.is_own:
                        self._events.hang_judged(cycle, verdict)
                    self._cycles.hang_judged(cycle, verdict)
                case AnswerMonitors(reason):
                    log.debug("rank monitors do not wait for a verdict any more: %s", reason)
                    waiting, self._waiting = self._waiting, []
                    for answer in waiting:
                        answer()

    def _reported(self, number: int, reports: Mapping[int, HangReport]) -> None:
        self._carry_out(self._policy.reported(number, reports))

    def _gathered(self, asked: GatherEvidence, verdict: HangVerdict | None) -> None:
        self._carry_out(self._policy.gathered(asked, verdict))
