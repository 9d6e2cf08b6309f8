"""Whether the workers may be started again, and when: failures use up restarts, lost nodes do not. Pure.

Workers also fail because a node that they talk to is lost. They may be noticed before the loss, or long after it where
the cycle goes on without the node: a failure is forgiven when a node was lost in the same cycle, or turns out to be
lost before all have stopped, and it is settled afterwards.

The loss of the control store is no failure of the workers either: the first `FORGIVEN_STORES` losses of a job use up no
restart. Further ones do, so that a job whose store dies in each cycle ends.

A cycle made no progress if it ended before its first step. After the first such cycle the next one starts at once,
after further ones in a row it starts 1, 2, 4 ... 60 s later, until a cycle has taken a step.

A job that loses a node in each cycle is paced, and ends as well: after the second of such cycles in a row that has
lasted for less than `SHORT_CYCLE` the next one starts 1 s later, then 2, 4 ... 60 s, and after `SHORT_CYCLES` of them
the job ends. Nodes that are lost now and then cost no more than the cycle, however many they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from nvrx_core.backoff import Backoff
from nvrx_core.parsing import integer, number, string

__all__ = [
    "FORGIVEN_STORES", "SHORT_CYCLE", "SHORT_CYCLES", "BudgetState", "PacingRules", "RestartBudget", "RestartPacing",
    "finite", "seconds",
]  # fmt: skip

FORGIVEN_STORES: Final = 3
SHORT_CYCLE: Final = 60.0
"""Seconds from the begin of a cycle to the end of its last worker."""
SHORT_CYCLES: Final = 16
PAUSES: Final = Backoff(1.0, 60.0)
"""Before the next cycle, after cycles in a row that have come to nothing."""


@dataclass(frozen=True)
class PacingRules:
    """The limits of the pace.

    Attributes:
        window: seconds in which restarts are counted.
        max_in_window: how many restarts there may be in them; None: any number.
        backoff: seconds before each restart at least; None: there is no pause at all.
    """

    window: float = 600.0
    max_in_window: int | None = None
    backoff: float | None = 0.0


@dataclass(frozen=True)
class BudgetState:
    """The full state of a budget; times in seconds ago, because hosts do not share a clock.

    Attributes:
        restarts: how many cycles were started because a worker had failed.
        failure: the worker's failure by which the cycle is stopped.
        no_progress: that cycle ended before its first step.
        is_forgiven: a node of the cycle was lost, or its control store.
        no_progress_cycles: how many cycles before have, one after the other.
        restarted: when the workers were restarted, as far as it counts.
        begins_in: seconds until the next cycle may begin; `-inf` for at any time.
        lost_stores: how many control stores were lost.
        has_lost_node: a node of the cycle was lost.
        runs_for: seconds since the cycle began; `-inf` for not yet.
        short_losses: how many short cycles before have lost a node, one after the other.
    """

    restarts: int = 0
    failure: str = ""
    no_progress: bool = False
    is_forgiven: bool = False
    no_progress_cycles: int = 0
    restarted: tuple[float, ...] = ()
    begins_in: float = -math.inf
    lost_stores: int = 0
    has_lost_node: bool = False
    runs_for: float = -math.inf
    short_losses: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the wire format."""
        return {
            **vars(self), "no_progress": int(self.no_progress), "is_forgiven": int(self.is_forgiven),
            "has_lost_node": int(self.has_lost_node), "restarted": list(self.restarted),
            "begins_in": finite(self.begins_in), "runs_for": finite(self.runs_for),
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Parse the wire format.

        Raises:
            ValueError: when it is malformed.
        """
        return cls(
            integer(data.get("restarts"), 0), string(data.get("failure")), bool(integer(data.get("no_progress"), 0)),
            bool(integer(data.get("is_forgiven"), 0)), integer(data.get("no_progress_cycles"), 0),
            tuple(float(number(each)) for each in data.get("restarted", ())),
            seconds(data.get("begins_in")), integer(data.get("lost_stores", 0), 0),
            bool(integer(data.get("has_lost_node", 0), 0)), seconds(data.get("runs_for")),
            integer(data.get("short_losses", 0), 0),
        )  # fmt: skip


class RestartBudget:
    """The restarts of a job.

    Args:
        max_restarts: the maximum number of restarts.
        pacing: how fast they may follow each other.
        state: what another budget knew.
        now: the time.

    Attributes:
        restarts: how many there were.
        begins_at: before which the next cycle does not begin, monotonic seconds; `-inf`: at any time.
    """

    def __init__(
        self, max_restarts: int, pacing: PacingRules, state: BudgetState | None = None, *, now: float = 0.0
    ) -> None:
        state = state or BudgetState()
        self._max_restarts = max_restarts
        self.restarts, self._failure, self._no_progress = state.restarts, state.failure, state.no_progress
        self._is_forgiven, self._lost_stores = state.is_forgiven, state.lost_stores
        self._pacing = RestartPacing(pacing, ages=state.restarted, no_progress_cycles=state.no_progress_cycles, now=now)
        self.begins_at = now + state.begins_in
        losses = PacingRules(backoff=None if pacing.backoff is None else 0.0)
        self._losses = RestartPacing(losses, no_progress_cycles=state.short_losses)
        self._has_lost_node, self._began = state.has_lost_node, now - state.runs_for

    def state(self, *, now: float) -> BudgetState:
        """Return everything that later decisions depend on."""
        return BudgetState(
            self.restarts, self._failure, self._no_progress, self._is_forgiven, self._pacing.no_progress_cycles,
            self._pacing.ages(now=now), self.begins_at - now if self.begins_at > now else -math.inf,
            self._lost_stores, self._has_lost_node, now - self._began, self._losses.no_progress_cycles,
        )  # fmt: skip

    @property
    def is_restart(self) -> bool:
        """Whether a failure that is not forgiven has stopped the cycle, so that the next one is a restart."""
        return bool(self._failure)

    def began(self, *, now: float) -> None:
        """Record that a cycle begins."""
        self._began = now

    def failed(self, failure: str, *, no_progress: bool, now: float) -> str:
        """Record the failure of a worker; return why the cycle is stopped, and when the next one begins, if it does."""
        if self._is_forgiven:
            return f"{failure}; no restart is used up, for this cycle has lost a node or its control store before"
        self._failure, self._no_progress = failure, no_progress
        pause = 0.0 if self.spent(now=now) else self._pacing.pause(no_progress=no_progress)
        return f"{failure}; the next cycle is {pause:g} s away" if pause else failure

    def forgive(self) -> None:
        """Record that the cycle has lost a node, or its control store, which explains the failures of its workers."""
        self._failure, self._is_forgiven = "", True

    def node_lost(self, loss: str, *, now: float) -> str:
        """Record that the cycle has lost a node; return why it is stopped, if it is, and when the next one begins."""
        self.forgive()
        self._has_lost_node = True
        pause = 0.0 if self.spent(now=now) else self._losses.pause(no_progress=self._is_short(now))
        return f"{loss}; the next cycle is {pause:g} s away" if pause else loss

    def _is_short(self, now: float) -> bool:
        return now - self._began < SHORT_CYCLE

    def store_lost(self, loss: str, *, now: float) -> str:
        """Record that the control store of the cycle was lost; return why the cycle is stopped."""
        self._lost_stores += 1
        if self._lost_stores > FORGIVEN_STORES:
            return self.failed(f"{loss}; it is loss {self._lost_stores} of a store", no_progress=False, now=now)
        self.forgive()
        return f"{loss}; no restart is used up"

    def spent(self, *, now: float) -> str:
        """Return why the failure is the job's, "" if it is none, or there may be another restart."""
        if self._has_lost_node and self._is_short(now) and self._losses.no_progress_cycles + 1 >= SHORT_CYCLES:
            return f"{SHORT_CYCLES} cycles in a row have lost a node within {SHORT_CYCLE:g} s"
        if not self._failure:
            return ""
        if self.restarts >= self._max_restarts:
            why = f"after {self.restarts} restarts" if self._max_restarts else "with --max-restarts 0"
        else:
            why = self._pacing.exceeded(now=now)
        return f"{self._failure}, {why}" if why else ""

    def settle(self, *, now: float) -> None:
        """Record that all workers have stopped: the next cycle is a restart if one had failed."""
        if self._failure:
            self.restarts += 1
            self.begins_at = now + self._pacing.pause(no_progress=self._no_progress)
            self._pacing.restarted(no_progress=self._no_progress, now=now)
        elif self._has_lost_node:
            is_short = self._is_short(now)
            self.begins_at = now + self._losses.pause(no_progress=is_short)
            self._losses.restarted(no_progress=is_short, now=now)
        self._failure, self._no_progress, self._is_forgiven, self._has_lost_node = "", False, False, False


class RestartPacing:
    """The pace of restarts: backoff after cycles without a step, and a limit within a window.

    Args:
        rules: the limits.
        ages: seconds since earlier restarts.
        no_progress_cycles: the number of cycles without progress in a row, up to now.
        now: the time.
    """

    def __init__(
        self, rules: PacingRules, *, ages: tuple[float, ...] = (), no_progress_cycles: int = 0, now: float = 0.0
    ) -> None:
        self._rules, self.no_progress_cycles = rules, no_progress_cycles
        self._restarts = [now - age for age in ages]

    def ages(self, *, now: float) -> tuple[float, ...]:
        """Return the seconds since the restarts that still count."""
        self._forget(now)
        return tuple(now - each for each in self._restarts)

    def exceeded(self, *, now: float) -> str:
        """Return why no further restart is allowed, "" if one is."""
        self._forget(now)
        limit = self._rules.max_in_window
        if limit is None or len(self._restarts) < limit:
            return ""
        return f"after {len(self._restarts)} restarts within {self._rules.window:g} s"

    def pause(self, *, no_progress: bool) -> float:
        """Return the number of seconds before the next cycle."""
        if self._rules.backoff is None:
            return 0.0
        return max(self._rules.backoff, PAUSES.pause(self.no_progress_cycles if no_progress else 0))

    def restarted(self, *, no_progress: bool, now: float) -> None:
        """Record a restart."""
        self.no_progress_cycles = self.no_progress_cycles + 1 if no_progress else 0
        if self._rules.max_in_window is not None:
            self._restarts.append(now)

    def _forget(self, now: float) -> None:
        self._restarts = [each for each in self._restarts if now - each < self._rules.window]


def finite(seconds: float) -> float | None:
    """Return seconds for JSON, which has no infinity: None for those since what has not happened."""
    return None if math.isinf(seconds) else seconds


def seconds(value: object) -> float:
    """Return what `finite` has written.

    Raises:
        ValueError: when it is malformed.
    """
    return -math.inf if value is None else float(number(value))
