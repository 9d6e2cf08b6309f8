"""What a restart leaves behind: one event for the timeline, and one log line."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from nvrx_core.events.log import EventLog
from nvrx_core.fault.record import FaultRecord
from nvrx_core.inprocess.protocol.decision import Decision
from nvrx_core.rank_assignment.base import Mode, State

__all__ = ["report"]

log = logging.getLogger("nvrx_core.inprocess")


def report(events: EventLog, state: State, decision: Decision, marks: Mapping[str, float]) -> None:
    """Report the restart that has brought this rank into `state`.

    Args:
        events: where the event goes.
        state: the rank's state in the new iteration.
        decision: what ended the last one.
        marks: the times of the restart's steps, monotonic seconds.
    """
    events.write(
        "restart",
        state.iteration,
        ended_iteration=decision.iteration,
        cause=_cause(decision.cause),
        culprits=decision.culprits,
        lost=decision.lost,
        rank=state.rank,
        world_size=state.world_size,
        active=state.mode is Mode.ACTIVE,
        marks=dict(marks),
    )
    total = (marks.get("entered", 0.0) - marks.get("struck", marks.get("entered", 0.0))) * 1000
    level = logging.WARNING if state.rank == 0 else logging.INFO
    active = f"{state.active_world_size} of {state.world_size} ranks active"
    log.log(level, "restart %d in %.1f ms: %s; %s; %s", state.iteration, total, decision.cause, _who(decision), active)


def _who(decision: Decision) -> str:
    blamed = f"initial ranks to blame: {list(decision.culprits)}" if decision.culprits else "all ranks stalled alike"
    return f"{blamed}, lost: {list(decision.lost) or 'none'}"


def _cause(fault: FaultRecord | None) -> dict[str, object] | None:
    names = ("initial_rank", "rank", "interruption", "category", "message", "origin", "host", "pid")
    return None if fault is None else {name: getattr(fault, name) for name in names}
