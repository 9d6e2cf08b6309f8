"""The verdict on the fault that a restart in process has followed. Pure.

What the record of a fault knows, an exit code or a signal among it, becomes what a launcher would have reported of the
rank, so that the same cascade decides as for a cycle.
"""

from __future__ import annotations

import json
import re
from typing import Final

from nvrx_core.attribution.cycle import CycleReport, FailureReport, verdict_of_cycle
from nvrx_core.attribution.verdict import Verdict
from nvrx_core.attribution.worker_report import BY_CODE, BY_SIGNAL
from nvrx_core.fault.interruption import Interruption
from nvrx_core.fault.record import LATE_COMPLETION, FaultRecord

__all__ = ["verdict_of_fault"]

_ENDED: Final = re.compile(r"process ended (?P<how>by|with exit code) (?P<rest>.+)", re.DOTALL)
"""The message of a process that has ended (`nvrx_core.process.lifeline.describe_exit`)."""


def verdict_of_fault(fault: FaultRecord) -> Verdict:
    """Return what a fault is called, and what to do about it.

    Only a text names a node here, so that none is to be excluded.

    Args:
        fault: that the ranks know of, the first one.
    """
    ranks = {fault.rank: fault.host} if fault.rank >= 0 else {}
    if (reported := _report_of(fault)) is not None:
        return verdict_of_cycle(CycleReport(ranks, (reported,)))
    event = {**fault.event_fields(), "event": "fault", "host": fault.host, "pid": fault.pid}
    return verdict_of_cycle(CycleReport(ranks, events=(json.dumps(event),)))


def _report_of(fault: FaultRecord) -> FailureReport | None:
    """Return what a launcher would report of a fault; None where it is the fault's text that says what has failed."""
    who = f"rank {fault.rank if fault.rank >= 0 else fault.initial_rank} (pid {fault.pid})"
    if fault.error_type == LATE_COMPLETION:  # it reports other ranks
        return FailureReport(None, fault.message)
    if fault.error_type == "SystemExit" and fault.exit_code:
        return FailureReport(fault.host, f"{who} {BY_CODE}{fault.exit_code}")
    match Interruption[fault.interruption]:
        case Interruption.UNRESPONSIVE:
            silent = fault.message.replace("no sign of life for", "has not moved its lease for")
            return FailureReport(None, f"a rank {silent}")
        case Interruption.TERMINATED if ended := _ENDED.match(fault.message):
            how = BY_SIGNAL if ended["how"] == "by" else BY_CODE
            return FailureReport(fault.host, f"{who} {how}{ended['rest']}")
        case Interruption.TERMINATED if fault.exit_code:
            return FailureReport(fault.host, f"{who} {BY_CODE}{fault.exit_code}")
        case _:
            return None
