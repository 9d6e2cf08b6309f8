"""How a monitor process reports a death: that of its own rank, or of an unresponsive member. Pure.

`DeathReport` is the machine of one round; the flows follow it from round to round.
"""

from __future__ import annotations

from dataclasses import replace

from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.protocol.decision import Arrival, ArrivalStatus, RoundDecision
from nvrx_core.inprocess.protocol.ports import CallStorePort
from nvrx_core.inprocess.protocol.round import (
    Announce,
    Barrier,
    CountArrival,
    Enter,
    Finish,
    PutArrival,
    RoundAction,
    run_store_actions,
)
from nvrx_core.rank_assignment.identity import InitialRank

__all__ = ["DeathReport", "report_death", "report_unresponsive"]


class DeathReport(Barrier):
    """A dead member's round, executed by its monitor process, or by that of a sibling if a whole node is lost.

    Args:
        iteration: the last round that the member is known to have begun.
        member: the dead member's initial rank.
        members: the initial ranks that take part.
        fault: the fault that ended it.

    Attributes:
        ends_round: the round's event is this death, not another fault: all members have arrived after its announcement.
    """

    def __init__(
        self, iteration: int, member: InitialRank, members: frozenset[InitialRank], fault: FaultRecord
    ) -> None:
        super().__init__(iteration, member, members)
        self.fault, self.ends_round = fault, False

    def died(self) -> tuple[RoundAction, ...]:
        """Announce that the member is dead."""
        return (Announce(self.fault),)

    def announced(self, cause: FaultRecord | None) -> tuple[RoundAction, ...]:
        """Handle the round's event after the announcement: arrive for the dead member; None: the round is completed."""
        if cause is None:
            return (Finish(f"iteration {self.iteration} was completed before initial rank {self.member} died"),)
        self.ends_round = (cause.initial_rank, cause.interruption) == (self.member, self.fault.interruption)
        dead = Arrival(initial_rank=self.member, rank=self.fault.rank, status=ArrivalStatus.DEAD, fault=self.fault)
        return (PutArrival(dead), CountArrival())

    def decided(self, decision: RoundDecision) -> tuple[RoundAction, ...]:
        """Handle the round's decision; one that counts the dead member as living is followed into the next round."""
        if self.member in decision.lost:
            return ()
        return (self._enter(decision),)

    def next(self, members: frozenset[InitialRank]) -> DeathReport:
        """Return the report of the same death in the following round, where the member has no known rank."""
        return DeathReport(self.iteration + 1, self.member, members, replace(self.fault, rank=-1))


async def report_death(death: DeathReport, store: CallStorePort) -> None:
    """Announce the death of this monitor process's rank and arrive for it, until a decision lists it as lost."""
    report: DeathReport | None = death
    while report is not None:
        rest = await _announce(report, store)
        if any(isinstance(action, Finish) for action in rest):
            break
        decision = await store.await_decision(report.iteration)
        report = _following(report, decision)
    await store.mark_left(death.member)
    await store.delete_if_over()


async def report_unresponsive(silence: DeathReport, reporter: InitialRank, store: CallStorePort) -> None:
    """Announce that another member's lease is not renewed, and arrive for it.

    A reporter that is itself lost reports nothing: the others' leases may have been deleted with their call.

    If the round is decided already, the member is reported in the next one if the decision counts it as living. A
    decision after this report counts it as living only if it has arrived after the report.
    """
    report: DeathReport | None = silence
    while report is not None:
        decision = await store.read_decision(report.iteration)
        if decision is None:
            await _announce(report, store)
            if report.ends_round:
                return
            decision = await store.read_decision(report.iteration)
        if decision is None or reporter in decision.lost:
            return
        report = _following(report, decision)


async def _announce(report: DeathReport, store: CallStorePort) -> list[RoundAction]:
    rest = await run_store_actions(report, report.died(), store)
    await store.set_rendezvous(report.iteration, "")
    return rest


def _following(report: DeathReport, decision: RoundDecision) -> DeathReport | None:
    """Return the report in the next round, if the decision counts the dead member as living."""
    actions = report.decided(decision)
    return next((report.next(action.members) for action in actions if isinstance(action, Enter)), None)
