"""How a monitor process tells of a death: its own rank's, or another member's that shows no life. Pure."""

from __future__ import annotations

from collections.abc import Callable

from nvrx_core.inprocess.protocol.decision import Decision
from nvrx_core.inprocess.protocol.effects import (
    AwaitDecision,
    DeleteIfOver,
    Flow,
    MarkLeft,
    ReadDecision,
    SetRendezvous,
)
from nvrx_core.inprocess.protocol.play import play
from nvrx_core.inprocess.protocol.round import Action, DeathReport, Enter, Finish

__all__ = ["report_death", "report_unresponsive"]

Clock = Callable[[], float]


def report_death(obituary: DeathReport, now: Clock) -> Flow[None]:
    """Announce the death of this monitor process's rank and arrive for it, until a decision says that it is lost."""
    report: DeathReport | None = obituary
    while report is not None:
        rest = yield from _announce(report, now)
        if any(isinstance(action, Finish) for action in rest):
            break
        decision = yield AwaitDecision(report.iteration)
        report = _following(report, decision, now)
    yield MarkLeft(obituary.member)
    yield DeleteIfOver()


def report_unresponsive(obituary: DeathReport, now: Clock) -> Flow[None]:
    """Announce that another member's lease stands still, and arrive for it.

    A round that is decided already is followed by the next one, where the member is reported if the decision counts it
    among the living. A decision that follows this report counts it so only because it has arrived after the report.
    """
    report: DeathReport | None = obituary
    while report is not None:
        decision = yield ReadDecision(report.iteration)
        if decision is None:
            yield from _announce(report, now)
            if report.ends_round:
                return
            decision = yield ReadDecision(report.iteration)
        report = _following(report, decision, now) if decision is not None else None


def _announce(report: DeathReport, now: Clock) -> Flow[list[Action]]:
    rest: list[Action] = yield from play(report, report.died(now=now()), now)
    yield SetRendezvous(report.iteration, "")
    return rest


def _following(report: DeathReport, decision: Decision, now: Clock) -> DeathReport | None:
    """The report in the next round, if the decision counts the dead among the living."""
    actions = report.decided(decision, now=now())
    return next((report.next(action.members) for action in actions if isinstance(action, Enter)), None)
