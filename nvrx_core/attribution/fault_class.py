"""The class of one fault of a restart in process, by its record alone. Pure.

The ranks have agreed on the fault that is the cause of a restart; its record says what it is. No log is read.
"""

from __future__ import annotations

import re
from typing import Final

from nvrx_core.attribution.classification import SIGNALS, ending, rule_of
from nvrx_core.attribution.rules import BY_NAME, Kind
from nvrx_core.attribution.verdict import Action
from nvrx_core.fault.record import OUT_OF_MEMORY, FaultRecord

__all__ = ["class_of_fault"]

MAX_SEARCHED: Final = 200
"""Characters of a message that are looked at: the time of a search grows with them."""
_BY_INTERRUPTION: Final = {"SOFT_TIMEOUT": "hang", "HARD_TIMEOUT": "hang", "UNRESPONSIVE": "peer_lost"}
_SIGNAL: Final = re.compile(r"\bSIG[A-Z]+\b")


def class_of_fault(fault: FaultRecord | None) -> tuple[str, Action]:
    """Return the class of a fault, a name of `rules.CLASSES`, and what to do; text alone excludes no node.

    Args:
        fault: the fault; None where the ranks know of none.
    """
    failure, action = _of_record(fault) if fault is not None else ("unknown", None)
    action = action or BY_NAME[failure].action
    return failure, Action.RESTART if action is Action.EXCLUDE_NODE else action


def _of_record(fault: FaultRecord) -> tuple[str, Action | None]:
    if known := _BY_INTERRUPTION.get(fault.interruption):
        return known, None
    failure, rule, _ = rule_of(fault.message[:MAX_SEARCHED])
    if rule is not None and rule.kind < Kind.SYMPTOM and failure != "unknown":
        return failure, rule.action
    if fault.category == OUT_OF_MEMORY:
        return "host_out_of_memory", None
    if fault.interruption != "TERMINATED":
        return "user_exception", None
    signal = _SIGNAL.search(fault.message)
    failure, _, action = ending(-SIGNALS.get(signal[0], 0)) if signal else ("unknown", Kind.ENDED, None)
    return failure, action
