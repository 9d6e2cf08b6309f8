"""A fault of every kind at every failpoint of the wrapper: nothing is lost but, at most, the faulty rank.

One case of each point runs in `make test`, all in `make test-all`. Rank 1 is the faulty one. Where a point is passed
only in a restart, rank 0 fails first.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.harness.process.oracle import Restart, assert_nothing_lost, restart

from .conftest import Launch

KINDS = {"kill": "kill", "stop": "stop", "raise": "exception", "exit": "os_exit_0"}
CODES = {"kill": (-signal.SIGKILL,), "stop": (-signal.SIGTERM, -signal.SIGKILL), "raise": (1,), "exit": (0,)}
LIVES = 0  # the code of a rank that goes on
QUICK = {
    "soft_timeout": 1.1,
    "hard_timeout": 2.2,
    "termination_grace_time": 0.2,
    "monitor_process_interval": 0.2,
}
WAYS = "TERMINATED HARD_TIMEOUT SOFT_TIMEOUT"
FIRST = {(0, 0, 3): "exception"}


@dataclass(frozen=True)
class Case:
    """A failpoint of rank 1, what else must happen so that it is passed, and what must come of it."""

    point: str
    nightly: tuple[str, ...]
    iteration: int = 0
    faults: dict[tuple[int, int, int], str] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    recovers: bool = False  # from an exception

    def lost(self, kind: str) -> tuple[int, ...]:
        return () if kind == "raise" and self.recovers else (1,)

    def restarts(self, kind: str) -> list[Restart]:
        """The restart that the fault costs, or that it happens in."""
        causes = "EXCEPTION" if self.lost(kind) == () else WAYS
        own = restart(causes, by=None if kind == "stop" else [1], lost=self.lost(kind))
        match self.point:
            case "store-connect":
                return []
            case "barrier-before" | "abort-before" | "abort-during":
                return [restart("EXCEPTION", by=None, lost=self.lost(kind))]
            case "decision-after" | "entry-before":
                return [restart("EXCEPTION", by=[0]), own]
            case "monitor-ready" | "monitor-reattach":
                return [restart("TERMINATED", by=[1], lost=[1])]
            case _:
                return [own]


GROUP = {"group": True}
ATOMIC = {"atomic": {"1": 0.05}}
CASES = [
    Case("store-connect", ("kill", "stop", "exit"), -1),
    Case("init-pg-before", ("raise", "stop", "exit"), plan=GROUP, recovers=True),
    Case("init-pg-after", ("kill", "stop", "raise"), plan=GROUP, recovers=True),
    Case("atomic-enter", ("kill", "stop", "exit"), plan=ATOMIC, recovers=True),
    Case("atomic-exit", ("stop", "raise", "exit"), plan=ATOMIC, recovers=True),
    Case("abort-before", ("kill", "stop", "exit"), faults=FIRST),
    Case("abort-during", ("kill", "raise", "exit"), faults=FIRST, plan=GROUP, recovers=True),
    Case("barrier-before", ("kill", "stop", "raise"), faults=FIRST),
    Case("decision-after", ("kill", "raise", "exit"), faults=FIRST),
    Case("entry-before", ("stop", "raise", "exit"), 1, faults=FIRST, recovers=True),
    Case("monitor-ready", ("kill", "raise", "exit"), -1, faults={(1, 0, 3): "kill"}),
    Case("monitor-reattach", ("kill", "stop", "raise"), faults={(1, 0, 1): "monitor_kill", (1, 0, 40): "kill"}),
]


def cases() -> list[Any]:
    """All of them; those that are left for the night are marked."""
    return [
        pytest.param(case, kind, id=f"{case.point}-{kind}", marks=[pytest.mark.nightly] * (kind in case.nightly))
        for case in CASES
        for kind in KINDS
    ]


@pytest.mark.parametrize(("case", "kind"), cases())
def test_a_fault_at_a_failpoint_costs_at_most_the_faulty_rank(launch: Launch, case: Case, kind: str) -> None:
    place = (1, case.iteration, case.point)
    job = launch({**case.faults, place: KINDS[kind]}, wrapper=QUICK if kind == "stop" else {}, **case.plan).finish()
    assert job.injections() == [f"1:{case.iteration}@{case.point}"]
    absent = case.lost(kind) if case.iteration < 0 and case.point == "store-connect" else ()
    expected = CODES["kill"] if case.point.startswith("monitor-") else CODES[kind]
    code = job.codes[1]
    assert code in (expected if case.lost(kind) else (LIVES,))
    assert_nothing_lost(job, *case.restarts(kind), codes={1: code}, absent=absent)


def test_a_thread_that_holds_the_interpreter_while_its_rank_waits_ends_the_rank(launch: Launch) -> None:
    job = launch({**FIRST, (1, 0, "decision-after"): "gil_locked"}, wrapper=QUICK).finish()
    code = job.codes[1]
    assert code in CODES["stop"]
    assert_nothing_lost(job, restart("EXCEPTION", by=[0]), restart(WAYS, by=None, lost=[1]), codes={1: code})


@pytest.mark.nightly
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.point)
def test_a_rank_that_is_late_at_a_failpoint_costs_nothing(launch: Launch, case: Case) -> None:
    place = (1, case.iteration, case.point)
    job = launch({**case.faults, place: "delay:0.4"}, **case.plan).finish()
    assert job.injections() == [f"1:{case.iteration}@{case.point}"]
    if case.point.startswith("monitor-"):
        assert_nothing_lost(job, *case.restarts("kill"), codes={1: CODES["kill"][0]})
    else:
        assert_nothing_lost(job, *[restart("EXCEPTION", by=[0])] * bool(case.faults))
