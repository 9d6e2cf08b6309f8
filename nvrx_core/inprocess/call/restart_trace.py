"""The trace of a restart: one event for the timeline, one log line, and a record in the process.

The marks of a restart are the times of its steps. They are complete when the function is entered again. Another thread
reports them then: no restart waits for a file.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from nvrx_core.events.log import EventLog
from nvrx_core.events.phases import phases_from_marks
from nvrx_core.fault.log_rate import LogRate
from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.call.own_faults import FaultMaker
from nvrx_core.inprocess.coordination.housekeeping import Housekeeping
from nvrx_core.inprocess.protocol.decision import RoundDecision
from nvrx_core.inprocess.protocol.round import RoundView
from nvrx_core.inprocess.restart_record import RestartRecord, remember
from nvrx_core.inprocess.state import State
from nvrx_core.process.forks import forks_waiting
from nvrx_core.rank_assignment.base import AssignmentState, Mode

__all__ = ["RestartTrace"]

log = logging.getLogger("nvrx_core.inprocess")


class RestartTrace:
    """The restart in progress, if there is one.

    Args:
        state: the state of this rank.
        events: the event file.
        faults: converts the times of another host's fault.
        housekeeping: notified of each iteration that is entered, and of each round that has ended.
        defer: runs work soon, in a thread that no restart waits for.
        defer_idle: runs work when there was no restart for a while.
    """

    def __init__(
        self,
        state: State,
        events: EventLog,
        faults: FaultMaker,
        *,
        housekeeping: Housekeeping,
        defer: Callable[[Callable[[], None]], None],
        defer_idle: Callable[[Callable[[], None]], None],
    ) -> None:
        self._state, self._events, self._faults = state, events, faults
        self._housekeeping, self._defer, self._defer_idle = housekeeping, defer, defer_idle
        self._marks: dict[str, float] = {}
        self._ended: RoundView | None = None
        self._step = self._highest = -1
        self._rate = LogRate()

    def mark(self, name: str) -> None:
        """Record the time of a step, by a name of `nvrx_core.events.phases.MARKS`."""
        self._marks[name] = time.monotonic()

    def round_ended(self, view: RoundView, marks: Mapping[str, float], step: int = -1) -> None:
        """Begin a restart.

        Args:
            view: the round that has ended.
            marks: the marks of the monitor thread.
            step: the highest step that this rank had reported in the iteration, -1 for none.
        """
        self.report()
        self._ended, self._step = view, step
        self._marks |= marks

    def entered(self) -> None:
        """End and report the restart: the iteration has started."""
        self.mark("entered")
        self.report()
        if log.isEnabledFor(logging.DEBUG):
            begun, mode = "iteration %d begins: rank %s of %d, %s", self._state.mode.name.lower()
            iteration, rank, size = self._state.iteration, self._state.rank, self._state.world_size
            self._defer(lambda: log.debug(begun, iteration, rank, size, mode))
        self._housekeeping.entered(self._state)
        self._marks = {}

    def report(self) -> None:
        """Report the restart in progress, which has ended, or whose next iteration failed before it was entered."""
        if self._ended is None or (decision := self._ended.decision) is None:
            return
        state, marks = replace(self._state), self._marks
        self._marks, self._ended = {}, None
        for missed in ("initialized", "entered"):
            marks.setdefault(missed, time.monotonic())
        if decision.cause is not None:
            marks["occurred"], marks["announced"] = self._faults.on_my_clock(decision.cause)
        self._highest = max(self._highest, decision.step)
        remember(_record(state, decision, marks, step=self._step, highest=self._highest))
        left_out = self._rate.line(_failure(decision), now=time.monotonic())
        self._defer(lambda: _report(self._events, state, decision, marks))
        if left_out is not None:
            self._defer(lambda: _log(state, decision, marks, left_out))
        if (cause := decision.cause) is not None and state.rank == 0 and self._events.fileno() is not None:
            self._defer_idle(lambda: _judge(self._events, state.iteration, decision.iteration, cause))
        self._housekeeping.decided(state.rank, decision)


def _record(
    state: AssignmentState, decision: RoundDecision, marks: Mapping[str, float], *, step: int, highest: int
) -> RestartRecord:
    return RestartRecord(
        number=state.iteration,
        cause=decision.cause,
        culprits=decision.culprits,
        lost=decision.lost,
        rank=state.rank,
        world_size=state.world_size,
        active=state.mode is Mode.ACTIVE,
        step=step if step >= 0 else None,
        highest_step=highest if highest >= 0 else None,
        phases=phases_from_marks(marks),
        exit=decision.exit,
    )


def _report(events: EventLog, state: AssignmentState, decision: RoundDecision, marks: Mapping[str, float]) -> None:
    """Report the restart that led this rank to `state`, by `decision`."""
    fault = decision.cause
    names = ("initial_rank", "rank", "interruption", "category", "message", "origin", "host", "pid")
    events.write(
        "restart",
        state.iteration,
        ended_iteration=decision.iteration,
        cause=None if fault is None else {name: getattr(fault, name) for name in names},
        culprits=decision.culprits,
        lost=decision.lost,
        rank=state.rank,
        world_size=state.world_size,
        active=state.mode is Mode.ACTIVE,
        marks=dict(marks),
    )


def _judge(events: EventLog, iteration: int, ended: int, fault: FaultRecord) -> None:
    """Report what a fault is called, and what to do about it.

    The rules are of use to a rank that writes events, after its first restart: no other one imports them, which takes
    0.1 s, in which no other event is written.
    """
    with forks_waiting():
        from nvrx_core.attribution.restart import verdict_of_fault
    found = verdict_of_fault(fault).as_json()
    said = {name: found[name] for name in ("class", "error_type", "action", "confidence")}
    events.write("restart_verdict", iteration, ended_iteration=ended, **said)


def _failure(decision: RoundDecision) -> object:
    """Return the key by which failures count as equal."""
    cause = decision.cause
    return cause and (
        cause.error_type,
        cause.interruption,
        cause.origin,
        cause.raised_at,
        decision.culprits,
        decision.lost,
    )


def _log(state: AssignmentState, decision: RoundDecision, marks: Mapping[str, float], left_out: int) -> None:
    """Write the log line; the latency is that of this rank, the timeline has that of the job."""
    total = (marks.get("entered", 0.0) - marks.get("occurred", marks.get("entered", 0.0))) * 1000
    level = logging.WARNING if state.rank == 0 else logging.INFO
    more = f"; {left_out} restarts before it were not logged" if left_out else ""
    culprits = list(decision.culprits)
    blamed = f"initial ranks to blame: {culprits}" if culprits else "all ranks stalled alike"
    what = f"{decision.cause}; {blamed}; {_left(state, decision)}{more}"
    log.log(level, "restart %d in %.1f ms (this rank): %s", state.iteration, total, what)


def _left(state: AssignmentState, decision: RoundDecision) -> str:
    """Return the lost ranks, and how many of the others are active, unless all are."""
    active, size = state.active_world_size, state.world_size
    of = f"{active} of {size} ranks active"
    if not decision.lost:
        return f"none lost, {of}"
    lost = f"{len(decision.lost)} lost: {list(decision.lost)}"
    return f"{lost}, {size} left" if active == size else f"{lost}, {of}"
