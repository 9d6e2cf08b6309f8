"""The plan of a test for its ranks, passed as JSON in the environment.

The test process writes a `Plan`, each rank reads the same one. It defines the faults to inject, what the ranks do
meanwhile, and the settings of the wrapper.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nvrx_core.testing import FailpointTrigger, FaultKind, Point, Schedule
from nvrx_core.testing.faults import kind_of

__all__ = ["BEFORE_GROUP", "BEFORE_INIT", "INJECTIONS", "ON_ENTRY", "Plan"]

ENVIRONMENT = "NVRX_TEST_PLAN"
INJECTIONS = "NVRX_TEST_INJECTIONS"  # the file that records the failpoints with an injected fault
ON_ENTRY = -2  # the step of a fault injected at the function's entry
BEFORE_INIT = -3  # the step of a fault injected between the connection to the group's store and its creation
BEFORE_GROUP = -1  # the step of a fault injected while the others are inside init_process_group
_ENDS_THE_RANK_ONLY = (FaultKind.EXIT_0,)


@dataclass(frozen=True)
class Plan:
    """One job."""

    faults: str = ""
    collective: bool = False  # the ranks run an all_reduce a step; else they only sleep
    group: bool = False  # the ranks have a process group, though they use it only when `collective`
    steps: int = 6
    step_seconds: float = 0.01
    endless: bool | None = None  # whether iterations with a fault go on until interrupted; None: if it takes all down
    wrapper: dict[str, float | str] = field(default_factory=dict)  # seconds become timedelta
    kept_in: str = ""  # another store than torch's TCPStore: its kind and where it is, as `workers.stores` reads it
    calls: int = 1
    clock_ahead: dict[str, float] = field(default_factory=dict)  # initial rank: seconds that its wall clock is ahead
    clock_jump: dict[str, float] = field(default_factory=dict)  # initial rank: how far its wall clock jumps in step 2
    active: int | None = None  # MaxActiveWorldSize
    assignment: str = ""  # a name in `workers.assignments`
    die_in_assignment: dict[str, int] = field(default_factory=dict)  # initial rank: iteration whose assignment kills it
    atomic: dict[str, float] = field(default_factory=dict)  # initial rank: seconds of its atomic section, from a fault
    unprotected: dict[str, float] = field(default_factory=dict)  # initial rank: seconds asleep without hang protection
    monitor_after: dict[str, float] = field(default_factory=dict)  # initial rank: seconds to its monitor's start
    late: dict[str, float] = field(default_factory=dict)  # initial rank: seconds before it joins the first group
    slow: dict[str, float] = field(default_factory=dict)  # initial rank: seconds that it adds to step 1
    abort: dict[str, float] = field(default_factory=dict)  # initial rank: seconds that its abort takes
    finalize_fails: int | None = None  # the initial rank whose finalize raises
    untidy: bool = False  # what is cleaned up, in the function and at the end of the process, raises
    after: str = "enter"  # a fault at a step waits until the others have recorded this in its iteration
    gate: str = ""  # a fault, or step 3 of a job without faults, waits for this file
    together: str = ""  # faults wait for each other: a file with the moment of all of them
    progress: bool = False  # the ranks report each step
    model: bool = False  # a model from before the first iteration outlives them all
    save_every: int = 0  # steps between two checkpoints; 0: none
    disk: str = ""  # what is wrong with the disk in iteration 0, or was done to it after: a name in `workers.disk`

    @classmethod
    def of_environment(cls) -> Plan:
        return cls(**json.loads(os.environ[ENVIRONMENT]))

    def environment(self) -> dict[str, str]:
        return {ENVIRONMENT: json.dumps(dataclasses.asdict(self))}

    def schedule(self) -> Schedule:
        return Schedule.parse(self.faults)

    def runs_on(self, iteration: int) -> bool:
        """Whether the ranks without a fault go on until they are interrupted."""
        faults = self.schedule().of_iteration(iteration)
        waits = self.collective or any(
            kind not in _ENDS_THE_RANK_ONLY and isinstance(kind, FaultKind) for kind in faults.values()
        )
        return bool(faults) and waits if self.endless is None else self.endless and bool(faults)


def schedule_text(faults: Mapping[tuple[int, int, int | str], str]) -> str:
    """Of faults by initial rank, iteration, and step or failpoint."""
    places = {place: FailpointTrigger(*place) if isinstance(place[2], str) else Point(*place) for place in faults}
    return str(Schedule({places[place]: kind_of(kind) for place, kind in faults.items()}))


def wrapper_settings(plan: Plan) -> dict[str, Any]:
    from datetime import timedelta

    plain = ("logfile", "pidfile", "limit")
    given = {
        name: value if isinstance(value, str) or name.endswith(plain) else timedelta(seconds=value)
        for name, value in plan.wrapper.items()
    }
    return {"no_progress_limit": None, **given}
