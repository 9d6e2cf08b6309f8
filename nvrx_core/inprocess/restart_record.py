"""The restart that led to the present iteration, as a record in the process.

The event file has the same for all ranks and all restarts (`nvrx_core.events`); this is for code that runs in the
wrapped function: loggers, callbacks, checkpoint logic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from nvrx_core.fault.record import FaultRecord
from nvrx_core.rank_assignment.identity import InitialRank
from nvrx_core.values import value

__all__ = ["RestartRecord", "last_restart"]


@value
class RestartRecord:
    """One restart, from the point of view of this rank.

    It holds numbers and texts only: no exception, no frame, no object of the function.

    Attributes:
        number: how many restarts of the call there were, this one included; the iteration that it led to.
        cause: the fault that ended the iteration before; None where the ranks know of none.
        culprits: the initial ranks to blame; empty when all ranks stalled alike.
        lost: the initial ranks that the restart has left behind.
        rank: this rank's wrapper rank after it.
        world_size: the wrapper's world size after it.
        active: whether this rank runs the function; False for a reserve.
        step: the highest step that this rank had reported with `CallWrapper.progress` in the iteration that ended;
            None when it had reported none.
        highest_step: the highest step that any rank has reported in the call; None when none has.
        phases: seconds by phase, in order (`nvrx_core.events.phases.PHASES`).
        exit: the fault of a lost rank that has left with an exit code, the cause before any other; None where none has.
    """

    number: int
    cause: FaultRecord | None
    culprits: tuple[InitialRank, ...]
    lost: tuple[InitialRank, ...]
    rank: int
    world_size: int
    active: bool
    step: int | None
    highest_step: int | None
    phases: Mapping[str, float]
    exit: FaultRecord | None = None

    @property
    def seconds(self) -> float:
        """The time from the fault to the function's entry, seconds: the sum of the phases."""
        return sum(self.phases.values())

    def __str__(self) -> str:
        lost = f"; lost: initial ranks {list(self.lost)}" if self.lost else ""
        return f"restart {self.number} in {self.seconds * 1000:.1f} ms: {self.cause or 'no fault is known'}{lost}"


_last: Final[dict[str, RestartRecord]] = {}


def last_restart() -> RestartRecord | None:
    """Return the restart that led to the present iteration of the wrapped call in this process.

    It is there when the function is entered again, and stays until the next restart, or until the next call begins.

    Returns:
        The record; None in iteration 0, and in a process that has not restarted.
    """
    return _last.get("restart")


def remember(record: RestartRecord | None) -> None:
    """Let `last_restart` return this record; None when a call begins."""
    if record is None:
        _last.clear()
    else:
        _last["restart"] = record
