"""The reasons for which a node leaves the job, and how its workers are ended for each. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from nvrx_launcher.exit_codes import FAILED, SIGNALLED
from nvrx_launcher.node_actions import Cause, EndLaunch, StopWorkers
from nvrx_launcher.rendezvous.messages import Decision

__all__ = [
    "Departure",
    "StopTimeouts",
    "coordination_lost",
    "decided",
    "excluded",
    "kill",
    "refused",
    "signalled",
    "survived",
]

SIGTERM: Final = 15
SIGKILL: Final = 9
"""Their numbers, signal(7)."""
IMPATIENT: Final = 2.0
"""Seconds that workers have after a second signal to the launcher."""


@dataclass(frozen=True)
class StopTimeouts:
    """The seconds that workers have to end.

    Attributes:
        workers_stop_timeout: when they are asked to end.
        term_timeout: when the launcher passes a signal on.
    """

    workers_stop_timeout: float
    term_timeout: float

    @property
    def after_a_second_signal(self) -> float:
        """When the launcher passes on another signal."""
        return min(IMPATIENT, self.term_timeout)

    def ask(self, cause: Cause, reason: str) -> StopWorkers:
        """Return the action that asks the workers to end."""
        return StopWorkers(SIGTERM, self.workers_stop_timeout, cause, reason)


def kill(cause: Cause, reason: str) -> StopWorkers:
    """Return the action that kills the workers."""
    return StopWorkers(SIGKILL, math.inf, cause, reason)


@dataclass(frozen=True)
class Departure:
    """A node's departure from the job.

    Attributes:
        cause: for programs.
        reason: for people.
        code: the launcher's exit code; None: the launcher stays, without workers, until the job ends.
        signum: the signal that is passed on to the workers; 0: they are asked to end.
        is_repeated: the launcher has received one before.
        is_immediate: the workers are killed.
        is_announced: the coordinator is notified at once, not when the workers have ended.
        is_decisive: its code replaces that of an earlier departure.
    """

    cause: Cause
    reason: str
    code: int | None
    signum: int = 0
    is_repeated: bool = False
    is_immediate: bool = False
    is_announced: bool = False
    is_decisive: bool = False

    def end(self, earlier: EndLaunch | None) -> EndLaunch | None:
        """Return how the launcher ends once the workers are gone; None: it does not."""
        if self.code is None or (earlier is not None and not self.is_decisive):
            return earlier
        return EndLaunch(self.code, self.cause, self.reason)

    def stop(self, timeouts: StopTimeouts) -> StopWorkers:
        """Return the action that ends the workers."""
        if self.is_immediate:
            return kill(self.cause, self.reason)
        if self.signum:
            grace = timeouts.after_a_second_signal if self.is_repeated else timeouts.term_timeout
            return StopWorkers(self.signum, grace, self.cause, self.reason)
        return timeouts.ask(self.cause, self.reason)


def signalled(signum: int, *, before: int = 0) -> Departure:
    """Return the departure of a launcher that has received a signal, which is passed on to its workers.

    Args:
        signum: the signal.
        before: how many it has received before: after one of them the workers have 2 s left, after two they are killed.
    """
    reason = f"the launcher has received signal {signum}" + (", and signals before" if before else "")
    return Departure(
        Cause.SIGNAL, reason, SIGNALLED + signum, signum, is_repeated=before > 0, is_immediate=before > 1,
        is_announced=True, is_decisive=True,
    )  # fmt: skip


def survived(reason: str, *, is_needed: bool) -> Departure:
    """Return the departure of a node with workers that SIGKILL does not end.

    Args:
        reason: for people.
        is_needed: the others need its launcher.
    """
    return Departure(Cause.SURVIVED, reason, None if is_needed else FAILED, is_announced=True)


def excluded(reason: str, *, is_needed: bool) -> Departure:
    """Return the departure of a node that is excluded from the job.

    Args:
        reason: for people.
        is_needed: the others need its launcher.
    """
    return Departure(Cause.EXCLUDED, reason, None if is_needed else FAILED, is_announced=True)


def coordination_lost(code: int, reason: str) -> Departure:
    """Return the departure of a node that has lost the coordinator."""
    return Departure(Cause.STORE_LOST, reason, code)


def decided(decision: Decision) -> Departure:
    """Return the departure of a node whose job has ended by a decision for all nodes."""
    return Departure(Cause.DECISION, decision.reason, decision.code)


def refused(decision: Decision) -> Departure:
    """Return the departure of a node that the coordinator has refused."""
    return Departure(Cause.DECISION, decision.reason, decision.code, is_immediate=True, is_decisive=True)
