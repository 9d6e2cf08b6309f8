"""The events of a launcher, in the event file that `nvrx-timeline` reads."""

from __future__ import annotations

from collections.abc import Mapping

from nvrx_core.errors import ConfigurationError, ParameterError
from nvrx_core.events.log import EventLog
from nvrx_core.events.schema import LAUNCHER
from nvrx_core.fault.hang_verdict import HangVerdict
from nvrx_core.fault.stragglers import StragglerNews
from nvrx_core.fault_tolerance.data import WorkloadControlRequest
from nvrx_core.fault_tolerance.peers import HungRank
from nvrx_launcher.node_actions import StartWorkers
from nvrx_launcher.rendezvous.messages import Decision, DecisionKind

__all__ = ["History"]


class History:
    """Writes the events of one launcher; without a folder, none.

    Args:
        folder: the folder of the event files; None: nothing is written.

    Attributes:
        cycle: the cycle that this launcher knows of; -1 before the first one.

    Raises:
        ConfigurationError: when the folder cannot be made or written to.
    """

    def __init__(self, folder: str | None) -> None:
        try:
            self._events = EventLog(folder, LAUNCHER)
        except ParameterError as error:
            advice = "set it to a directory that this user can make and write to, or not at all"
            problem = f"{folder!r} is not {error.rule}"
            raise ConfigurationError("environment", "NVRX_EVENTS_DIR", problem, advice) from None
        self.cycle = self._node = -1

    def close(self) -> None:
        """Close the file."""
        self._events.close()

    def launched(self, workers: int, run_id: str) -> None:
        """Record that the launcher has started."""
        self._write("launcher_started", workers=workers, run_id=run_id)

    def joined(self, node: int) -> None:
        """Record that it has joined its job."""
        self._node = node
        self._write("joined", node=node)

    def decided(self, decision: Decision) -> None:
        """Record that a cycle is to be run, perhaps without this node, or to be stopped."""
        self.cycle = max(self.cycle, decision.cycle)
        if decision.kind is DecisionKind.RUN:
            if self._node not in {member.node for member in decision.members}:
                self._write("spare", reason=decision.reason)
        elif decision.kind is DecisionKind.STOP or (decision.kind is DecisionKind.END and decision.code):
            self._write("cycle_stopped", reason=decision.reason)

    def judged(self, cycle: int, sentence: str, verdict: Mapping[str, object]) -> None:
        """Record who was to blame for the end of a cycle; from any thread."""
        self._events.write("cycle_verdict", cycle, sentence=sentence, verdict=verdict)

    def attributed(self, cycle: int, advice: str, reason: str, explanation: str) -> None:
        """Record what the attribution service says of a cycle; from any thread."""
        self._events.write("cycle_attribution", cycle, advice=advice, reason=reason, explanation=explanation)

    def workers_started(self, action: StartWorkers) -> None:
        """Record that the workers of this node run."""
        decision, place = action.decision, action.place
        self._write(
            "cycle_started", reason=decision.reason, world_size=decision.world_size, first_rank=place.first_rank,
            workers=place.workers,
        )  # fmt: skip

    def worker_failed(self, rank: int, code: int, report: str, *, in_process: bool) -> None:
        """Record that a worker has failed; `in_process`: the job may continue without it."""
        self._write("worker_failed", rank=rank, code=code, reason=report, in_process=in_process)

    def rank_hung(self, report: HungRank) -> None:
        """Record that a worker is hung, and about to be ended by its monitor."""
        reason = f"rank {report.rank} (pid {report.pid}) is hung: {report.reason}"
        self._write("rank_hung", rank=report.rank, worker=report.pid, reason=reason, stack=report.stack)

    def recovered(self, report: HungRank, why: str) -> None:
        """Record that a worker that was about to be ended as hung is not."""
        reason = f"rank {report.rank} (pid {report.pid}) {why}, and is not ended as hung"
        self._write("recovered", rank=report.rank, worker=report.pid, reason=reason)

    def hang_judged(self, cycle: int, verdict: HangVerdict) -> None:
        """Record who was to blame for a hang, before a worker is ended for it."""
        self._events.write("hang_verdict", cycle, **verdict.event_fields())

    def straggles(self, news: StragglerNews) -> None:
        """Record that ranks have become stragglers, or that this is over."""
        sections = {each.section: {"seconds": each.seconds, "peers": each.peers} for each in news.findings}
        self._write(
            "straggler_found" if news.has_begun else "straggler_over", ranks=news.ranks, node_host=news.host,
            sections=sections, sentence=news.sentence,
        )  # fmt: skip

    def goes_on_without(self, rank: int) -> None:
        """Record that in-process restart continues without a rank."""
        self._write("rank_lost", rank=rank)

    def store_lost(self, reason: str) -> None:
        """Record that the store of in-process restart, which this launcher hosts, is lost."""
        self._write("control_store_lost", reason=reason)

    def requested(self, rank: int, request: WorkloadControlRequest) -> None:
        """Record a rank's request."""
        self._write("request", rank=rank, action=request.action.name, reason=request.description)

    def monitor_replaced(self, local_rank: int, reason: str) -> None:
        """Record that a rank monitor was lost and replaced."""
        self._write("rank_monitor_replaced", local_rank=local_rank, reason=reason)

    def ended(self, code: int, reason: str) -> None:
        """Record that the launcher exits."""
        self._write("launcher_ended", code=code, reason=reason)

    def _write(self, event: str, **fields: object) -> None:
        self._events.write(event, self.cycle, **fields)
